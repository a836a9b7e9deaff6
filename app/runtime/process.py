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

from app.core.ids import UNUSED_DIGITS

os.register_at_fork(after_in_child=UNUSED_DIGITS.clear)  # ids must be unique


@contextmanager
def gc_paused() -> Iterator[None]:
    """
    Pause garbage collection, and freeze the new objects.

    At startup the collector would traverse 100,000 objects several times to free 2 %, for a fifth of the startup time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def tune_gc() -> None:
    """
    Freeze all existing objects, and collect garbage less often.

    Reference counting frees a stream's objects. With Python's defaults, all objects would be traversed every few reads.
    """
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
_mallopt, _malloc_trim = getattr(_libc, "mallopt", None), getattr(_libc, "malloc_trim", None)
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h
_LARGE_BLOCK = 288 * 1024  # bytes; above asyncio's allocation per socket read
_FREE = 1024 * 1024  # bytes kept free; otherwise each socket read would extend the heap


def map_large_blocks() -> None:
    """
    Return each freed large block to the system (glibc only).

    By default glibc keeps freed blocks of up to 32 MiB, so copying an 8 MiB request doubles the process's memory.
    """
    if _mallopt:
        _mallopt(_MMAP_THRESHOLD, _LARGE_BLOCK)
        _mallopt(_TRIM_THRESHOLD, _FREE)


def return_free_memory() -> None:
    """Return free memory within the heap to the system; by itself glibc only returns the heap's end."""
    if _malloc_trim:
        _malloc_trim(0)


def pass_no_descriptors() -> None:
    """
    Make all descriptors except stdin, stdout and stderr non-inheritable.

    uvloop does not close others in a child process, and the listening sockets of uvicorn's workers are inheritable.
    """
    with suppress(FileNotFoundError):
        for name in os.listdir("/dev/fd"):
            with suppress(OSError):  # the directory's own descriptor
                os.set_inheritable(int(name), int(name) <= 2)


def end_with_parent() -> None:
    """Stop a worker when its parent exits, to release the port."""
    if parent := multiprocessing.parent_process():

        def watch() -> None:
            parent.join()
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=watch, name="antiphon-parent", daemon=True).start()
