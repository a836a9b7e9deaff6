"""Labels for models that are not listed yet at a response's end."""

from __future__ import annotations

import asyncio

import pytest

from app.observability import labels
from app.observability.labels import ModelLabels


async def test_name_whose_listing_is_in_progress_at_shutdown_gets_its_label() -> None:
    listed = asyncio.Event()

    async def models() -> list[dict[str, object]]:
        await listed.wait()
        return [{"id": "m"}]

    names, used = ModelLabels(models), list[str]()
    names.expect("m")
    names.resolve("m", used.append)
    asyncio.get_running_loop().call_soon(listed.set)
    await names.aclose()
    await asyncio.sleep(0)  # for the callback
    assert used == ["m"]


async def test_listing_that_takes_long_does_not_hold_up_the_shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    async def models() -> list[dict[str, object]]:
        await asyncio.Event().wait()
        return []

    monkeypatch.setattr(labels, "LAST_LISTING_TIMEOUT", 0.01)
    names, used = ModelLabels(models, {"known": "known"}.get), list[str]()
    names.expect("m")
    names.resolve("m", used.append)
    names.resolve("known", used.append)
    await names.aclose()
    await asyncio.sleep(0)
    assert sorted(used) == ["known", "other"]
