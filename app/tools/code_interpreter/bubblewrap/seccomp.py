"""
Seccomp filters: the system calls allowed in a sandbox.

`system_calls.tsv` lists them: Docker's default profile for containers without capabilities, minus calls that trace
processes, create memory outside the memory limit, or share limits with the host. Other calls fail with EPERM, or with
ENOSYS if newer than Linux 5.16.

Only Unix and IP sockets are allowed: a network namespace does not isolate other families, such as vsock (to the
hypervisor).
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

_NEWEST = 449  # futex_waitv; higher numbers belong to later calls and other ABIs

_SIGCONT = 18
_NAMESPACES = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET
_EXIT_SIGNAL = 0xFF  # bits in clone's flags with the signal sent to the parent
_SOCKETS = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6
_F_SETSIG, _F_SETPIPE_SZ = 10, 1031
_MAP_SHARED, _MAP_ANONYMOUS, _MAP_HUGETLB = 0x01, 0x20, 0x40000
_PR_SET_PDEATHSIG, _PR_SCHED_CORE = 1, 62
_RLIMIT_CORE = 4
_ALL = 0xFFFFFFFF


class _If(NamedTuple):
    """The lower 32 bits of a call argument, masked, equal any of `values` (with `unless`, none)."""

    argument: int
    values: tuple[int, ...]
    mask: int = _ALL
    unless: bool = False
    upper: bool = False  # check the upper 32 bits instead


class _Rule(NamedTuple):
    """If all conditions hold, the calls fail."""

    calls: Sequence[str]
    error: int
    conditions: Sequence[_If] = ()


_RULES = [
    # Filters cannot read clone3's flags (in memory); the C library falls back to `clone`. Likewise the signals of
    # timers (programs fall back to alarms) and message queues.
    _Rule(["clone3", "timer_create", "mq_open", "mq_notify"], errno.ENOSYS),
    # Counted per host user. Programs fall back to polling.
    _Rule(["inotify_init", "inotify_init1"], errno.ENOSYS),
    _Rule(["clone"], errno.EPERM, [_If(0, (0,), _NAMESPACES, unless=True)]),
    _Rule(["clone"], errno.EPERM, [_If(0, (_SIGCONT,), _EXIT_SIGNAL)]),
    _Rule(["prctl"], errno.EPERM, [_If(0, (_PR_SET_PDEATHSIG,)), _If(1, (_SIGCONT,))]),
    _Rule(["prctl"], errno.EINVAL, [_If(0, (_PR_SCHED_CORE,))]),  # would exclude others from the CPU's second thread
    # The kernel counts pipe pages per user, and fails with EPERM above its limit.
    _Rule(["fcntl"], errno.EPERM, [_If(1, (_F_SETSIG, _F_SETPIPE_SZ))]),
    _Rule(["socket"], errno.EAFNOSUPPORT, [_If(0, _SOCKETS, unless=True)]),
    # Anonymous shared memory outlives its mappings, and is then charged to no process.
    _Rule(["mmap"], errno.EPERM, [_If(3, (_MAP_SHARED | _MAP_ANONYMOUS,), _MAP_SHARED | _MAP_ANONYMOUS)]),
    _Rule(["mmap"], errno.ENOMEM, [_If(3, (_MAP_HUGETLB,), _MAP_HUGETLB)]),  # pages reserved for other programs
    # Extended attributes and access lists use memory in addition to a file system's size.
    _Rule(["setxattr", "lsetxattr", "fsetxattr"], errno.EOPNOTSUPP),
    # At the limit 1, the kernel does not start the host's core dump program; at 0 it would.
    _Rule(["setrlimit"], errno.EPERM, [_If(0, (_RLIMIT_CORE,))]),
    *(
        _Rule(["prlimit64"], errno.EPERM, [_If(1, (_RLIMIT_CORE,)), _If(2, (0,), unless=True, upper=upper)])
        for upper in (False, True)
    ),
]
# For code, not for the supervisor: SIGCONT would resume stopped processes.
_CODE_RULES = [
    _Rule(["kill", "tkill", "rt_sigqueueinfo", "pidfd_send_signal"], errno.EPERM, [_If(1, (_SIGCONT,))]),
    _Rule(["tgkill", "rt_tgsigqueueinfo"], errno.EPERM, [_If(2, (_SIGCONT,))]),
]

_TABLE = Path(__file__).with_name("system_calls.tsv")
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH values, in the table's column order

_LOAD, _AND, _EQUAL, _ABOVE, _FROM, _RETURN = 0x20, 0x54, 0x15, 0x25, 0x35, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # in `struct seccomp_data`

_Instruction = tuple[int, int, int, int]  # operation, jumps if true and if false, operand


def seccomp_filter(machine: str | None = None) -> bytes:
    """Raises `ValueError` for an unknown architecture."""
    return _program(_RULES, machine or platform.machine(), allow_list=True)


def code_filter(machine: str | None = None) -> bytes:
    """For processes started by the supervisor."""
    return _program(_CODE_RULES, machine or platform.machine(), allow_list=False)


def _program(rules: Sequence[_Rule], machine: str, *, allow_list: bool) -> bytes:
    if machine not in _ARCHITECTURES:
        raise ValueError(f"no seccomp filter is available for {machine}, only for {', '.join(_ARCHITECTURES)}")
    column = 1 + [*_ARCHITECTURES].index(machine)
    rows = [line.split("\t") for line in _TABLE.read_text(encoding="ascii").splitlines() if not line.startswith("#")]
    numbers = {row[0]: int(row[column]) for row in rows if row[column]}
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
                # The accumulator is the call number again.
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


def _ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """First and last number in each run."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges


def _conditions(rule: _Rule) -> list[_Instruction]:
    """Skip the next instruction unless all conditions hold."""
    program: list[_Instruction] = []
    for condition in reversed(rule.conditions):
        fail = len(program) + 1  # distance from after this condition to after the rule's return
        steps: list[_Instruction] = [
            (_LOAD, 0, 0, _ARGUMENTS + 8 * condition.argument + 4 * condition.upper),
            (_AND, 0, 0, condition.mask),
        ]
        count = len(condition.values)
        for index, value in enumerate(condition.values):
            left = count - index - 1
            if condition.unless:
                steps.append((_EQUAL, left + fail, 0, value))
            else:
                steps.append((_EQUAL, left, 0 if left else fail, value))
        program = [*steps, *program]
    return program
