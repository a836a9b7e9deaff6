"""Tunes the process of a server: memory, garbage collection, and its end."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def gc_paused() -> Iterator[None]:
    """
    Never run the garbage collector for the objects that are made in the context, which live as long as the process.

    While a server starts it would traverse 100,000 of them several times, which takes a fifth of the time, to free the
    2 % that are garbage.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def tune_gc() -> None:
    """
    Run the garbage collector less often, and never for the objects that exist now, which live as long as the process.

    Those of a stream are freed by reference counting. By default all would be traversed every few reads.
    """
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
_mallopt, _malloc_trim = getattr(_libc, "mallopt", None), getattr(_libc, "malloc_trim", None)
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_LARGE_BLOCK = 288 * 1024  # bytes; more than asyncio allocates for each read of a socket
_FREE = 1024 * 1024  # bytes at the end of the heap that may be free: otherwise each such read would extend the heap


def map_large_blocks() -> None:
    """
    Return each large block to the system when it is freed, where the C library is glibc.

    By default glibc keeps blocks of up to 32 MiB in its heap once one has been freed, and a request of 8 MiB, which is
    copied and encoded, takes the process twice the memory that is in use at any time.
    """
    if _mallopt:
        _mallopt(_MMAP_THRESHOLD, _LARGE_BLOCK)
        _mallopt(_TRIM_THRESHOLD, _FREE)


def return_free_memory() -> None:
    """
    Return the free memory within the heap to the system, where the C library is glibc.

    By itself glibc returns only what is free at the end of the heap, and one block that stays in use behind the freed
    pieces of a large text keeps them all.
    """
    if _malloc_trim:
        _malloc_trim(0)


def pass_no_descriptors() -> None:
    """
    Let child processes inherit only the descriptors that are passed to them on purpose.

    uvloop does not close the others in a child process, and the listening sockets of uvicorn's workers are inheritable.
    """
    with suppress(FileNotFoundError):
        for name in os.listdir("/dev/fd"):
            with suppress(OSError):  # the descriptor of the directory itself
                os.set_inheritable(int(name), int(name) <= 2)


def end_with_parent() -> None:
    """If this process is a worker, stop it when its parent ends: otherwise it would hold on to the port."""
    if parent := multiprocessing.parent_process():

        def watch() -> None:
            parent.join()
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=watch, name="antiphon-parent", daemon=True).start()
