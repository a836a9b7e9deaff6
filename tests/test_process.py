"""What the process of a server is tuned to."""

from __future__ import annotations

import gc

import pytest

from app.process import uncollected


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
