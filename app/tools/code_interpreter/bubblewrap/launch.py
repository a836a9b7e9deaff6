"""
Starts bubblewrap: `python launch.py OPTIONS COMMAND...`, with options as a JSON object.

In a separate program, since limits must apply before the sandbox's first process.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys

_OUT_OF_MEMORY_SCORE = 500  # the kernel kills a sandbox before the server
_CORE = 1  # byte; at 1, the kernel neither writes a core dump nor runs the host's core dump program
_NICE = 10


def launch() -> None:
    options, command = json.loads(sys.argv[1]), sys.argv[2:]
    for name in os.listdir("/proc/self/fd"):  # uvloop does not close inherited descriptors
        if int(name) not in {0, 1, 2, *options["files"]}:
            with contextlib.suppress(OSError):
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
    os.execve(command[0], command, {})  # without variables added by Python


if __name__ == "__main__":
    launch()
