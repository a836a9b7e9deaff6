"""
Store turns with their images beside them, and load the images where they are shown or edited.

The images of a bucket of turns, `owner:chain`, are in the bucket `owner:chain:images`, and those of a conversation in
`owner:chain:conversation:images`. They are written in the same change as the turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from app.core.history.images import (
    ImageReference,
    attach_images,
    detach_images,
    read_images,
    references,
    with_image,
)
from app.core.history.turns import Turn
from app.core.ids import bucket_of
from app.core.types.frozen import frozen
from app.core.types.request import Item
from app.runtime.threads import run_in_thread_if_large
from app.stores import Change, images_bucket


class RecordSource(Protocol):
    """What records are read from, by the same method: a `Store`, or layers of several."""

    async def get(self, bucket: str, name: str) -> bytes | None: ...


async def turn_changes(
    bucket: str, turn: Turn, *, name: str | None = None, requires: str | None = None, listed: bool = True
) -> list[Change]:
    """
    Return the changes that store a turn: that of its own bucket first, then that of its images, if it has any.

    `name` is that of the record, by default the response's id; the images always have that id. `listed` is whether the
    turn is put with an entry.
    """
    return await run_in_thread_if_large(_turn_changes, bucket, turn, name, requires, listed)


def _turn_changes(bucket: str, turn: Turn, name: str | None, requires: str | None, listed: bool) -> list[Change]:
    response_id = turn.response["id"]
    images = images_bucket(bucket)
    stored, record = detach_images(turn, images.split(":", 2)[2])
    entries = {response_id: stored.entry()} if listed else {}
    change = Change(bucket, {name or response_id: stored.record()}, requires=requires, entries=entries)
    return [change, Change(images, {response_id: record})] if record else [change]


async def load_images(source: RecordSource, owner: str, turn: Turn) -> Turn:
    """Return a stored turn with its images. The `result` of one that is gone is None."""
    reference = next(iter(references(turn).values()), None)  # they are all in one record
    return attach_images(turn, await _record(source, owner, reference)) if reference else turn


async def _record(source: RecordSource, owner: str, reference: ImageReference) -> bytes | None:
    bucket = bucket_of(owner, reference.turn_id, reference.part)
    return await source.get(bucket, reference.turn_id) if bucket else None


@frozen
class StoredImages:
    """The images of stored turns, by item id."""

    source: RecordSource
    owner: str
    references: Mapping[str, ImageReference]

    def __contains__(self, item_id: object) -> bool:
        return item_id in self.references

    async def load(self, item_id: str) -> str | None:
        """Return an image, in base64; None if it is gone. Raises `StoreUnavailable`."""
        return read_images(await _record(self.source, self.owner, self.references[item_id])).get(item_id)

    async def add_to(self, item: Item) -> Item:
        """Return an item with its image, if it has one; raises `StoreUnavailable`."""
        item_id = str(item.get("id"))
        return with_image(item, {item_id: await self.load(item_id)}) if item_id in self.references else item
