"""
Store the images of turns in separate records, loaded only to be shown or edited.

Images of partition `owner:chain` are in `owner:chain:images`, of `owner:chain:conversation` in
`owner:chain:conversation:images`. A single change writes both.
"""

from __future__ import annotations

from collections.abc import Mapping

from app.core.history.turns import (
    ImageReference,
    Turn,
    attach_images,
    detach_images,
    image_references,
    read_images,
    with_image,
)
from app.core.ids import partition_of
from app.core.types import frozen
from app.core.types.request import Item
from app.stores import Change, LayeredStore, Store, images_partition


def turn_changes(
    partition: str, turn: Turn, *, name: str | None = None, requires: str | None = None, listed: bool = True
) -> list[Change]:
    """
    The changes that store a turn: first its own partition's, then its images', if any.

    `name` is the record's name, by default the response id, which always names the images. `listed` adds a list entry.
    """
    response_id = turn.response["id"]
    images = images_partition(partition)
    stored, record = detach_images(turn, images.split(":", 2)[2])
    entries = {response_id: stored.entry()} if listed else {}
    change = Change(partition, {name or response_id: stored.record()}, requires=requires, entries=entries)
    return [change, Change(images, {response_id: record})] if record else [change]


async def load_images(source: Store | LayeredStore, owner: str, turn: Turn) -> Turn:
    """A stored turn with its images; a missing image's `result` is None."""
    reference = next(iter(image_references(turn).values()), None)  # all images share a record
    return attach_images(turn, await _record(source, owner, reference)) if reference else turn


async def _record(source: Store | LayeredStore, owner: str, reference: ImageReference) -> bytes | None:
    partition = partition_of(owner, reference.turn_id, reference.part)
    return await source.get(partition, reference.turn_id) if partition else None


@frozen
class StoredImages:
    """Images of stored turns by item id."""

    source: Store | LayeredStore
    owner: str
    references: Mapping[str, ImageReference]

    def __contains__(self, item_id: object) -> bool:
        return item_id in self.references

    async def load(self, item_id: str) -> str | None:
        """The image as base64; None if it was deleted. Raises `StoreUnavailable`."""
        return read_images(await _record(self.source, self.owner, self.references[item_id])).get(item_id)

    async def add_to(self, item: Item) -> Item:
        """Add an item's image, if any. Raises `StoreUnavailable`."""
        item_id = str(item.get("id"))
        return with_image(item, {item_id: await self.load(item_id)}) if item_id in self.references else item
