"""
The seccomp filters of a sandbox: the system calls that its processes may not make.

bubblewrap removes privileges and access to files. The filters close kernel interfaces that code does not need: tracing,
mounting, namespaces, keys, io_uring; memory that belongs to no process, and would escape the memory limit; and all that
can send SIGCONT, with which a process would leave the stop (SIGSTOP) in which it is kept between calls. Unix and IP
sockets are allowed, since the network namespace isolates them; other families, such as vsock (to the hypervisor),
ignore namespaces and are denied. Calls that are newer than the list do not exist for the sandbox.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Sequence
from typing import NamedTuple

# Each call's number on x86-64, and on 64-bit ARM; None where it does not exist.
_NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "clone3": (435, 435),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "fcntl": (72, 25),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsetxattr": (190, 7),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "kill": (62, 129),
    "lookup_dcookie": (212, 18),
    "lsetxattr": (189, 6),
    "mbind": (237, 235),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "migrate_pages": (256, 238),
    "mmap": (9, 222),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "mq_notify": (244, 184),
    "mq_open": (240, 180),
    "msgget": (68, 186),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "pivot_root": (155, 41),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "sched_setaffinity": (203, 122),
    "semget": (64, 190),
    "set_mempolicy": (238, 237),
    "setns": (308, 268),
    "setrlimit": (160, 164),
    "settimeofday": (164, 170),
    "setxattr": (188, 5),
    "shmat": (30, 196),
    "shmget": (29, 194),
    "socket": (41, 198),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "tgkill": (234, 131),
    "timer_create": (222, 107),
    "tkill": (200, 130),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "uselib": (134, None),
    "vhangup": (153, 58),
    "vmsplice": (278, 75),
}
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
    _Rule(
        [
            *("acct", "add_key", "adjtimex", "bpf", "chroot", "clock_adjtime", "clock_settime", "delete_module"),
            *("fanotify_init", "finit_module", "fsconfig", "fsmount", "fsopen", "fspick", "init_module"),
            *("io_uring_enter", "io_uring_register", "io_uring_setup", "ioperm", "iopl", "kcmp", "kexec_file_load"),
            *("kexec_load", "keyctl", "lookup_dcookie", "mbind", "memfd_create", "memfd_secret", "migrate_pages"),
            *("modify_ldt", "mount", "mount_setattr", "move_mount", "move_pages", "msgget", "name_to_handle_at"),
            *("open_by_handle_at", "open_tree", "perf_event_open", "personality", "pidfd_getfd", "pivot_root"),
            *("process_vm_readv", "process_vm_writev", "ptrace", "quotactl", "quotactl_fd", "reboot", "request_key"),
            *("sched_setaffinity", "semget", "set_mempolicy", "setns", "settimeofday", "shmat", "shmget", "swapoff"),
            *("swapon", "syslog", "umount2", "unshare", "userfaultfd", "uselib", "vhangup", "vmsplice"),
        ],
        errno.EPERM,
    ),
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

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # the kernel's AUDIT_ARCH values, in the order above

_LOAD, _AND, _EQUAL, _ABOVE, _RETURN = 0x20, 0x54, 0x15, 0x25, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in the kernel's `struct seccomp_data`

_Instruction = tuple[int, int, int, int]  # operation, jumps if true and if false, operand


def seccomp_filter(machine: str | None = None) -> bytes:
    """Return the BPF program for all processes of a sandbox; raises `ValueError` for an unknown type of machine."""
    return _program(_RULES, machine or platform.machine())


def code_filter(machine: str | None = None) -> bytes:
    """Return the BPF program that the supervisor adds for the processes that it starts."""
    return _program(_CODE_RULES, machine or platform.machine())


def _program(rules: Sequence[_Rule], machine: str) -> bytes:
    if machine not in _ARCHITECTURES:
        raise ValueError(f"there is no filter of system calls for {machine}, only for {', '.join(_ARCHITECTURES)}")
    column = [*_ARCHITECTURES].index(machine)
    program: list[_Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, _ARCHITECTURES[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_ABOVE, 0, 1, _NEWEST),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
    ]
    for rule in rules:
        numbers = [number for call in rule.calls if (number := _NUMBERS[call][column]) is not None]
        for number in numbers:
            block = [*_conditions(rule), (_RETURN, 0, 0, _ERRNO | rule.error)]
            if rule.conditions:
                # Behind the block the accumulator has the number of the call again.
                program += [(_EQUAL, 0, len(block) + 1, number), *block, (_LOAD, 0, 0, _NUMBER)]
            else:
                program += [(_EQUAL, 0, 1, number), *block]
    program.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)


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
