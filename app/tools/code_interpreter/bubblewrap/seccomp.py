"""
The seccomp filters of a sandbox: the system calls that its processes can make.

`system_calls.tsv` lists the allowed calls: Docker's default profile for containers without capabilities, minus calls
that trace processes, that create memory outside the memory limit, or that share limits with the host. Other calls fail
with EPERM, or with ENOSYS if they are newer than Linux 5.16. The rules restrict some allowed calls by their arguments:
SIGCONT would end the stop (SIGSTOP) in which a process is kept between calls; Unix and IP sockets are isolated by the
network namespace, other families, such as vsock (to the hypervisor), are not.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

_NEWEST = 449  # futex_waitv; the numbers above it are those of later calls, and of other ABIs

_SIGCONT = 18
_NAMESPACES = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET
_EXIT_SIGNAL = 0xFF  # the bits of clone's flags with the signal that the parent gets
_SOCKETS = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6
_F_SETSIG, _F_SETPIPE_SZ = 10, 1031
_MAP_SHARED, _MAP_ANONYMOUS, _MAP_HUGETLB = 0x01, 0x20, 0x40000
_PR_SET_PDEATHSIG, _PR_SCHED_CORE = 1, 62
_RLIMIT_CORE = 4
_ALL = 0xFFFFFFFF


class _If(NamedTuple):
    """A condition on an argument of a call: its lower 32 bits, masked, are one of `values`, or with `unless` none."""

    argument: int
    values: tuple[int, ...]
    mask: int = _ALL
    unless: bool = False
    upper: bool = False  # the upper 32 bits instead


class _Rule(NamedTuple):
    """Calls that fail with an error, always or if all conditions hold."""

    calls: Sequence[str]
    error: int
    conditions: Sequence[_If] = ()


_RULES = [
    # The flags of clone3 are in memory, which a filter cannot read; the C library falls back to `clone`. So it is with
    # the signals of timers, which programs fall back from to alarms, and of message queues.
    _Rule(["clone3", "timer_create", "mq_open", "mq_notify"], errno.ENOSYS),
    # The kernel counts inotify instances per user of the host, so all sandboxes share them. Programs poll without them.
    _Rule(["inotify_init", "inotify_init1"], errno.ENOSYS),
    _Rule(["clone"], errno.EPERM, [_If(0, (0,), _NAMESPACES, unless=True)]),
    _Rule(["clone"], errno.EPERM, [_If(0, (_SIGCONT,), _EXIT_SIGNAL)]),
    _Rule(["prctl"], errno.EPERM, [_If(0, (_PR_SET_PDEATHSIG,)), _If(1, (_SIGCONT,))]),
    _Rule(["prctl"], errno.EINVAL, [_If(0, (_PR_SCHED_CORE,))]),  # would keep others from the CPU's second thread
    # The kernel counts pipe pages per user, too, and enlarges no pipe of a user who has too many (with this error).
    _Rule(["fcntl"], errno.EPERM, [_If(1, (_F_SETSIG, _F_SETPIPE_SZ))]),
    _Rule(["socket"], errno.EAFNOSUPPORT, [_If(0, _SOCKETS, unless=True)]),
    # Shared memory without a file remains when nothing maps it any more; no process then has it.
    _Rule(["mmap"], errno.EPERM, [_If(3, (_MAP_SHARED | _MAP_ANONYMOUS,), _MAP_SHARED | _MAP_ANONYMOUS)]),
    _Rule(["mmap"], errno.ENOMEM, [_If(3, (_MAP_HUGETLB,), _MAP_HUGETLB)]),  # pages reserved for other programs
    # Extended attributes and access lists take memory beside the size of a file system.
    _Rule(["setxattr", "lsetxattr", "fsetxattr"], errno.EOPNOTSUPP),
    # The limit is 1, for which the kernel starts no program of the host with a core dump; at 0 it would.
    _Rule(["setrlimit"], errno.EPERM, [_If(0, (_RLIMIT_CORE,))]),
    *(
        _Rule(["prlimit64"], errno.EPERM, [_If(1, (_RLIMIT_CORE,)), _If(2, (0,), unless=True, upper=upper)])
        for upper in (False, True)
    ),
]
# For the code, but not for the supervisor, which continues the processes.
_CODE_RULES = [
    _Rule(["kill", "tkill", "rt_sigqueueinfo", "pidfd_send_signal"], errno.EPERM, [_If(1, (_SIGCONT,))]),
    _Rule(["tgkill", "rt_tgsigqueueinfo"], errno.EPERM, [_If(2, (_SIGCONT,))]),
]

_TABLE = Path(__file__).with_name("system_calls.tsv")
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # the kernel's AUDIT_ARCH values, in the table's order

_LOAD, _AND, _EQUAL, _ABOVE, _FROM, _RETURN = 0x20, 0x54, 0x15, 0x25, 0x35, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in the kernel's `struct seccomp_data`

_Instruction = tuple[int, int, int, int]  # operation, jumps if true and if false, operand


def seccomp_filter(machine: str | None = None) -> bytes:
    """Return the BPF program for all processes of a sandbox; raises `ValueError` for an unknown type of machine."""
    return _program(_RULES, machine or platform.machine(), allow_list=True)


def code_filter(machine: str | None = None) -> bytes:
    """Return the BPF program that the supervisor adds for the processes that it starts."""
    return _program(_CODE_RULES, machine or platform.machine(), allow_list=False)


def _program(rules: Sequence[_Rule], machine: str, *, allow_list: bool) -> bytes:
    if machine not in _ARCHITECTURES:
        raise ValueError(f"there is no filter of system calls for {machine}, only for {', '.join(_ARCHITECTURES)}")
    numbers = _numbers([*_ARCHITECTURES].index(machine))
    program: list[_Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, _ARCHITECTURES[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_ABOVE, 0, 1, _NEWEST),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
    ]
    for rule in rules:
        for number in (numbers[call] for call in rule.calls if call in numbers):
            block = [*_conditions(rule), (_RETURN, 0, 0, _ERRNO | rule.error)]
            if rule.conditions:
                # After the block the accumulator has the number of the call again.
                program += [(_EQUAL, 0, len(block) + 1, number), *block, (_LOAD, 0, 0, _NUMBER)]
            else:
                program += [(_EQUAL, 0, 1, number), *block]
    if allow_list:
        for first, last in _ranges(numbers.values()):
            program += [(_FROM, 0, 2, first), (_ABOVE, 1, 0, last), (_RETURN, 0, 0, _ALLOW)]
        program.append((_RETURN, 0, 0, _ERRNO | errno.EPERM))
    else:
        program.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)


def _numbers(column: int) -> dict[str, int]:
    """Return the number of each call in the table that exists on a type of machine."""
    lines = _TABLE.read_text(encoding="ascii").splitlines()
    rows = [line.split("\t") for line in lines if not line.startswith("#")]
    return {name: int(number) for name, *both in rows if (number := both[column])}


def _ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and last number of each run of consecutive numbers."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges


def _conditions(rule: _Rule) -> list[_Instruction]:
    """Return instructions that jump behind the next instruction unless all conditions of a rule hold."""
    program: list[_Instruction] = []
    for condition in reversed(rule.conditions):
        fail = len(program) + 1  # from behind this condition to behind the rule's return
        steps: list[_Instruction] = [
            (_LOAD, 0, 0, _ARGUMENTS + 8 * condition.argument + 4 * condition.upper),
            (_AND, 0, 0, condition.mask),
        ]
        count = len(condition.values)
        for index, value in enumerate(condition.values):
            left = count - index - 1  # comparisons that follow
            if condition.unless:
                steps.append((_EQUAL, left + fail, 0, value))
            else:
                steps.append((_EQUAL, left, 0 if left else fail, value))
        program = [*steps, *program]
    return program
