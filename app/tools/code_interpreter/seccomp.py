"""
The seccomp filter of a sandbox: the system calls that its processes may not make.

bubblewrap removes privileges and access to files. The filter closes kernel interfaces that code does not need: tracing,
mounting, namespaces, keys, io_uring, and memory that belongs to no process and would escape the memory limit. Unix and
IP sockets are allowed, since the network namespace isolates them; other families, such as vsock (to the hypervisor),
ignore namespaces and are denied.
"""

from __future__ import annotations

import errno
import platform
import struct
from typing import NamedTuple


class _Calls(NamedTuple):
    """System call numbers of one architecture."""

    clone: int
    socket: int
    denied: tuple[int, ...]


_X86 = _Calls(
    clone=56,
    socket=41,
    denied=(
        *(29, 30, 64, 68, 101, 103, 134, 135, 153, 154, 155, 159, 161, 163, 164, 165, 166, 167, 168, 169, 172, 173),
        *(175, 176, 179, 203, 212, 227, 237, 238, 246, 248, 249, 250, 256, 272, 279, 298, 300, 303, 304, 305, 308),
        *(310, 311, 312, 313, 319, 320, 321, 323),
    ),
)
_ARM = _Calls(
    clone=220,
    socket=198,
    denied=(
        *(18, 39, 40, 41, 51, 58, 60, 89, 92, 97, 104, 105, 106, 112, 116, 117, 122, 142, 170, 171, 186, 190, 194, 196),
        *(217, 218, 219, 224, 225, 235, 237, 238, 239, 241, 262, 264, 265, 266, 268, 270, 271, 272, 273, 279, 280, 282),
        294,
    ),
)
# Newer calls have the same number on all architectures: io_uring, the new mount calls, pidfd_getfd, memfd_secret.
_DENIED_EVERYWHERE = (425, 426, 427, 428, 429, 430, 431, 432, 433, 438, 442, 447)
_CLONE3 = 435
# By machine: the kernel's AUDIT_ARCH value, and the numbers of its calls.
_MACHINES = {"x86_64": (0xC000003E, _X86), "aarch64": (0xC00000B7, _ARM)}

_NAMESPACES = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET
_SOCKETS = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in the kernel's `struct seccomp_data`
_OTHER_ABI = 0x40000000  # numbers from here on belong to the x32 ABI


def seccomp_filter(machine: str | None = None) -> bytes:
    """Return the BPF program for a machine type, by default this one's; raises `ValueError` for other types."""
    machine = machine or platform.machine()
    if machine not in _MACHINES:
        raise ValueError(f"there is no filter of system calls for {machine}, only for {', '.join(_MACHINES)}")
    architecture, calls = _MACHINES[machine]
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _OTHER_ABI),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
    ]
    for number in (*calls.denied, *_DENIED_EVERYWHERE):
        program += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | errno.EPERM)]
    program += [
        # The flags of clone3 are in memory, which a filter cannot read; the C library falls back to `clone`.
        (_EQUAL, 0, 1, _CLONE3),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
        (_EQUAL, 0, 3, calls.clone),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_ANY_BIT, 0, 4 + len(_SOCKETS), _NAMESPACES),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
        (_EQUAL, 0, 2 + len(_SOCKETS), calls.socket),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        *((_EQUAL, len(_SOCKETS) - index, 0, family) for index, family in enumerate(_SOCKETS)),
        (_RETURN, 0, 0, _ERRNO | errno.EAFNOSUPPORT),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)
