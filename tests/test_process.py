"""What the process of a server is tuned to."""

from __future__ import annotations

import ctypes
import gc

import pytest

from app.process import return_free_memory, uncollected
from tests.api.huge_bodies import status_of


def test_garbage_collector_is_off_while_a_server_is_built_and_leaves_out_what_was_built() -> None:
    """The garbage collector traverses nothing that was built, also where building failed."""
    frozen = gc.get_freeze_count()
    try:
        with pytest.raises(ValueError), uncollected():
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
