"""System call filters, run by an interpreter of their instructions, for each machine type."""

from __future__ import annotations

import errno
import struct

import pytest

from app.tools.code_interpreter.bubblewrap.seccomp import _CODE_RULES, _RULES, code_filter, seccomp_filter

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
SIGCONT, SIGTERM = 18, 15
THREAD, FORK = 0x3D0F00, 0x1200011
NAMESPACES = (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
# The numbers of calls on x86-64 and on 64-bit ARM, as in the kernel's `unistd.h`; None where a call does not exist.
REFUSED: dict[str, tuple[int | None, int | None]] = {
    "_sysctl": (156, None),
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "afs_syscall": (183, None),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "clone3": (435, 435),
    "create_module": (174, None),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsetxattr": (190, 7),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "get_kernel_syms": (177, None),
    "get_mempolicy": (239, 236),
    "getpmsg": (181, None),
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
    "lookup_dcookie": (212, 18),
    "lsetxattr": (189, 6),
    "mbind": (237, 235),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "migrate_pages": (256, 238),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "mq_notify": (244, 184),
    "mq_open": (240, 180),
    "msgget": (68, 186),
    "name_to_handle_at": (303, 264),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "putpmsg": (182, None),
    "query_module": (178, None),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "sched_setaffinity": (203, 122),
    "security": (185, None),
    "semget": (64, 190),
    "set_mempolicy": (238, 237),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "setxattr": (188, 5),
    "shmat": (30, 196),
    "shmget": (29, 194),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "sysfs": (139, None),
    "syslog": (103, 116),
    "timer_create": (222, 107),
    "tuxcall": (184, None),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "uselib": (134, None),
    "userfaultfd": (323, 282),
    "ustat": (136, None),
    "vhangup": (153, 58),
    "vmsplice": (278, 75),
    "vserver": (236, None),
}
CONDITIONAL: dict[str, tuple[int | None, int | None]] = {
    "clone": (56, 220),
    "fcntl": (72, 25),
    "kill": (62, 129),
    "mmap": (9, 222),
    "pidfd_send_signal": (424, 424),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "setrlimit": (160, 164),
    "socket": (41, 198),
    "tgkill": (234, 131),
    "tkill": (200, 130),
}
ERRORS = {
    **dict.fromkeys(("clone3", "inotify_init", "inotify_init1", "mq_notify", "mq_open", "timer_create"), errno.ENOSYS),
    **dict.fromkeys(("fsetxattr", "lsetxattr", "setxattr"), errno.EOPNOTSUPP),
}
# Unassigned numbers up to 449.
UNUSED = {"x86_64": {*range(335, 424)}, "aarch64": {*range(244, 260), *range(295, 424)}}
LOAD, AND, EQUAL, ABOVE, FROM, RETURN = 0x20, 0x54, 0x15, 0x25, 0x35, 0x06


def result(program: bytes, architecture: int, number: int, *arguments: int) -> int | None:
    """Return the error of a call; 0 if it is allowed, and None if the process is killed."""
    data = struct.pack("<iIQ6Q", number, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
    instructions = [*struct.iter_unpack("<HBBI", program)]
    accumulator = position = 0
    while True:
        operation, if_true, if_false, operand = instructions[position]
        position += 1
        if operation == LOAD:
            (accumulator,) = struct.unpack_from("<I", data, operand)
        elif operation == AND:
            accumulator &= operand
        elif operation == RETURN:
            return {0x7FFF0000: 0, 0x80000000: None}.get(operand, operand & 0xFFFF)
        else:
            holds = {EQUAL: accumulator == operand, ABOVE: accumulator > operand, FROM: accumulator >= operand}[
                operation
            ]
            position += if_true if holds else if_false


def number_of(call: str, machine: str) -> int | None:
    return {**REFUSED, **CONDITIONAL}[call][[*ARCHITECTURES].index(machine)]


@pytest.mark.parametrize("machine", ARCHITECTURES)
@pytest.mark.parametrize("call", REFUSED)
def test_system_call_is_refused_with_any_arguments(machine: str, call: str) -> None:
    number = number_of(call, machine)
    if number is None:
        assert machine == "aarch64"
        return
    for argument in (0, 1, 0xFFFFFFFFFFFFFFFF):
        error = result(seccomp_filter(machine), ARCHITECTURES[machine], number, *[argument] * 6)
        assert error == ERRORS.get(call, errno.EPERM)


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_system_calls_that_are_not_refused_are_allowed(machine: str) -> None:
    """Call by call: every number is refused, unused, restricted by its arguments, or allowed."""
    column = [*ARCHITECTURES].index(machine)
    refused = {numbers[column] for numbers in REFUSED.values()} - {None}
    restricted = {numbers[column] for numbers in CONDITIONAL.values()} - {None}
    program = seccomp_filter(machine)
    allowed = {number for number in range(450) if result(program, ARCHITECTURES[machine], number, *[1] * 6) == 0}
    assert allowed | restricted == {*range(450)} - refused - UNUSED[machine]
    assert len(allowed) > 220
    for number in UNUSED[machine]:
        assert result(program, ARCHITECTURES[machine], number) == errno.EPERM


def test_table_has_all_calls_that_are_restricted_by_their_arguments() -> None:
    assert {call for rule in (*_RULES, *_CODE_RULES) if rule.conditions for call in rule.calls} == {*CONDITIONAL}


@pytest.mark.parametrize("machine", ARCHITECTURES)
@pytest.mark.parametrize(
    ("call", "arguments", "error"),
    [
        ("clone", (THREAD,), 0),
        ("clone", (FORK,), 0),
        *(("clone", (FORK | namespace,), errno.EPERM) for namespace in NAMESPACES),
        ("clone", (FORK & ~0xFF | SIGCONT,), errno.EPERM),
        ("socket", (1,), 0),
        ("socket", (2,), 0),
        ("socket", (10,), 0),
        ("socket", (16,), errno.EAFNOSUPPORT),
        ("fcntl", (0, 1), 0),
        ("fcntl", (0, 10, SIGTERM), errno.EPERM),
        ("fcntl", (0, 1031, 1 << 20), errno.EPERM),
        ("fcntl", (0, 1032), 0),
        ("prctl", (1, SIGTERM), 0),
        ("prctl", (1, SIGCONT), errno.EPERM),
        ("prctl", (15, SIGCONT), 0),
        ("prctl", (62,), errno.EINVAL),
        ("mmap", (0, 4096, 3, 0x22), 0),
        ("mmap", (0, 4096, 3, 0x01), 0),
        ("mmap", (0, 4096, 3, 0x21), errno.EPERM),
        ("mmap", (0, 4096, 3, 0x23), errno.EPERM),
        ("mmap", (0, 4096, 3, 0x40022), errno.ENOMEM),
        ("setrlimit", (3,), 0),
        ("setrlimit", (4,), errno.EPERM),
        ("prlimit64", (0, 4, 0), 0),
        ("prlimit64", (0, 3, 1 << 32), 0),
        ("prlimit64", (0, 4, 1 << 32), errno.EPERM),
        ("prlimit64", (0, 4, 1), errno.EPERM),
    ],
)
def test_system_call_is_allowed_or_fails(machine: str, call: str, arguments: tuple[int, ...], error: int) -> None:
    number = number_of(call, machine)
    assert number is not None
    assert result(seccomp_filter(machine), ARCHITECTURES[machine], number, *arguments) == error


@pytest.mark.parametrize("machine", ARCHITECTURES)
@pytest.mark.parametrize(
    ("call", "index"),
    [
        ("kill", 1),
        ("tkill", 1),
        ("rt_sigqueueinfo", 1),
        ("pidfd_send_signal", 1),
        ("tgkill", 2),
        ("rt_tgsigqueueinfo", 2),
    ],
)
def test_supervisor_alone_continues_processes(machine: str, call: str, index: int) -> None:
    number = number_of(call, machine)
    assert number is not None
    for signal, error in ((SIGCONT, errno.EPERM), (SIGCONT | 1 << 32, errno.EPERM), (SIGTERM, 0)):
        arguments = [SIGTERM] * 4
        arguments[index] = signal
        assert result(code_filter(machine), ARCHITECTURES[machine], number, *arguments) == error
        assert result(seccomp_filter(machine), ARCHITECTURES[machine], number, *arguments) == 0


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_system_calls_that_are_not_listed_fail(machine: str) -> None:
    architecture = ARCHITECTURES[machine]
    other = next(one for one in ARCHITECTURES.values() if one != architecture)
    for program in (seccomp_filter(machine), code_filter(machine)):
        assert result(program, architecture, 449) == 0
        assert result(program, architecture, 450) == errno.ENOSYS
        assert result(program, architecture, 0x40000000) == errno.ENOSYS  # the x32 ABI
        assert result(program, other, 0) is None


def test_unknown_machine_has_no_filter() -> None:
    with pytest.raises(ValueError, match="only for x86_64, aarch64"):
        seccomp_filter("riscv64")
