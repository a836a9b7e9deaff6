"""A server's process tuning."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import time
from pathlib import Path

import pytest

from app.runtime.process import gc_paused, return_free_memory
from tests.api.huge_bodies import status_of
from tests.faults.servers import LINUX, server


def test_garbage_collector_is_off_while_a_server_is_built_and_leaves_out_what_was_built() -> None:
    """The garbage collector ignores everything built, even if building failed."""
    frozen = gc.get_freeze_count()
    try:
        with pytest.raises(ValueError), gc_paused():
            assert not gc.isenabled()
            raise ValueError
        assert gc.isenabled() and gc.get_freeze_count() > frozen
    finally:
        gc.unfreeze()


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library is not glibc")
def test_free_memory_between_blocks_in_use_is_returned_to_the_system() -> None:
    pieces = [b"x" * 60_000 for _ in range(500)]
    in_use = pieces[::10]
    del pieces
    before = status_of("VmRSS")
    return_free_memory()
    assert before - status_of("VmRSS") > 400 * 60_000
    assert len(in_use) == 50


@LINUX
@pytest.mark.parametrize("workers", [1, 2])
def test_descriptors_of_a_server_are_not_inheritable(tmp_path: Path, workers: int) -> None:
    with server(workers=workers, store_url=f"sqlite:///{tmp_path}/a.db", backend_url="http://127.0.0.1:9") as served:
        serving = served.workers() if workers > 1 else [served.pid]
        assert len(serving) == workers
        deadline = time.monotonic() + 60  # the other worker may still be starting
        while any(map(inheritable_descriptors, serving)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert [inheritable_descriptors(pid) for pid in serving] == [[]] * workers


def inheritable_descriptors(pid: int) -> list[int]:
    """A process's descriptors that child processes inherit, except standard streams."""
    found = []
    for file in Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(OSError):  # it has been closed
            fields = dict(line.split(":", 1) for line in file.read_text().splitlines()[:2])
            if int(file.name) > 2 and not int(fields["flags"], 8) & os.O_CLOEXEC:
                found.append(int(file.name))
    return found
