"""
Starts bubblewrap: `python launch.py OPTIONS COMMAND...`, with options as a JSON object.

It is a program of its own, and not code that runs in the server between `fork` and `exec`, so that a sandbox has its
limits before the first of its processes begins, whatever threads and event loop the server has.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys

_OUT_OF_MEMORY_SCORE = 500  # if the machine has no memory left, the kernel ends a sandbox rather than the server
_CORE = 1  # byte; at 1 the kernel neither writes a core dump nor starts the host's program for these
_NICE = 10


def launch() -> None:
    """Become the command, with the options applied."""
    options, command = json.loads(sys.argv[1]), sys.argv[2:]
    for name in os.listdir("/proc/self/fd"):  # uvloop closes nothing of the server's
        if int(name) not in {0, 1, 2, *options["files"]}:
            with contextlib.suppress(OSError):  # the descriptor of the directory itself
                os.close(int(name))
    if "group" in options:
        with open(f"{options['group']}/cgroup.procs", "w") as file:
            file.write("0")  # this process
    if "cpus" in options:
        os.sched_setaffinity(0, options["cpus"])
    with contextlib.suppress(OSError, ValueError):  # the server's own limit may be lower
        resource.setrlimit(resource.RLIMIT_CORE, (_CORE, _CORE))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(_OUT_OF_MEMORY_SCORE))
    os.nice(_NICE)
    if "user" in options:
        os.setgroups([])
        os.setgid(options["user"])
        os.setuid(options["user"])
    os.execve(command[0], command, {})  # Python itself has added variables


if __name__ == "__main__":
    launch()
