"""Ids are unique, also in forked processes."""

from __future__ import annotations

import multiprocessing
import re

import pytest

from app.core.ids import chain_key, new_id, new_key
from app.runtime import process


def test_new_ids_are_unique_and_end_with_their_key() -> None:
    key = new_key()
    ids = {new_id("msg", key) for _ in range(2000)}
    assert len(ids) == 2000
    assert {chain_key(each) for each in ids} == {key}
    assert all(re.fullmatch(r"msg_[0-9a-f]{40}", each) for each in ids)


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
def test_forked_process_creates_other_ids() -> None:
    assert process  # clears the digits
    new_id("msg", "")
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=lambda: sender.send([new_id("msg", "") for _ in range(300)]))
    child.start()
    ours, theirs = [new_id("msg", "") for _ in range(300)], receiver.recv()
    child.join()
    assert not {*ours} & {*theirs}
