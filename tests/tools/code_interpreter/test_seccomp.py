"""The filters of system calls, run by an interpreter of their instructions, for every type of machine."""

from __future__ import annotations

import errno
import struct

import pytest

from app.tools.code_interpreter.bubblewrap.seccomp import _NUMBERS, code_filter, seccomp_filter

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
SIGCONT, SIGTERM = 18, 15
THREAD, FORK, NEW_USER = 0x3D0F00, 0x1200011, 0x10000011
LOAD, AND, EQUAL, ABOVE, RETURN = 0x20, 0x54, 0x15, 0x25, 0x06


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
            holds = {EQUAL: accumulator == operand, ABOVE: accumulator > operand}[operation]
            position += if_true if holds else if_false


@pytest.mark.parametrize("machine", ARCHITECTURES)
@pytest.mark.parametrize(
    ("call", "arguments", "error"),
    [
        ("ptrace", (), errno.EPERM),
        ("vmsplice", (), errno.EPERM),
        ("timer_create", (), errno.ENOSYS),
        ("clone3", (), errno.ENOSYS),
        ("setxattr", (), errno.EOPNOTSUPP),
        ("clone", (THREAD,), 0),
        ("clone", (FORK,), 0),
        ("clone", (NEW_USER,), errno.EPERM),
        ("clone", (FORK & ~0xFF | SIGCONT,), errno.EPERM),
        ("socket", (1,), 0),
        ("socket", (10,), 0),
        ("socket", (16,), errno.EAFNOSUPPORT),
        ("fcntl", (0, 1), 0),
        ("fcntl", (0, 10, SIGTERM), errno.EPERM),
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
    number = _NUMBERS[call][[*ARCHITECTURES].index(machine)]
    assert number is not None
    assert result(seccomp_filter(machine), ARCHITECTURES[machine], number, *arguments) == error


@pytest.mark.parametrize("machine", ARCHITECTURES)
@pytest.mark.parametrize(
    ("call", "place"),
    [
        ("kill", 1),
        ("tkill", 1),
        ("rt_sigqueueinfo", 1),
        ("pidfd_send_signal", 1),
        ("tgkill", 2),
        ("rt_tgsigqueueinfo", 2),
    ],
)
def test_supervisor_alone_continues_processes(machine: str, call: str, place: int) -> None:
    number = _NUMBERS[call][[*ARCHITECTURES].index(machine)]
    assert number is not None
    for signal, error in ((SIGCONT, errno.EPERM), (SIGCONT | 1 << 32, errno.EPERM), (SIGTERM, 0)):
        arguments = [SIGTERM] * 4
        arguments[place] = signal
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
