"""
The images of a turn, which are stored beside its record.

A conversation is loaded whole for each turn, and an image has megabytes of base64: a turn that continues needs to know
only that it exists. The images of one turn are one record, so that they come and go with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import orjson

from app.core.history.turns import Turn
from app.core.types.request import Item, Response

_TYPE = "image_generation_call"


class ImageReference(NamedTuple):
    """Where the image of an item is stored: see `bucket_of`."""

    turn_id: str  # the name of the record
    part: str  # of the chain


def references(turn: Turn) -> dict[str, ImageReference]:
    """Return where the images of a stored turn are, by item id."""
    return {item_id: ImageReference(turn.response["id"], part) for item_id, part in (turn.images or {}).items()}


def detach_images(turn: Turn, part: str) -> tuple[Turn, bytes | None]:
    """Return a turn without its images, which go to that part of its chain, and the record of them, if it has any."""
    images: dict[str, str] = {}
    items = [_without_image(item, images) for item in turn.input]
    output = [_without_image(item, images) for item in turn.response.get("output", ())]
    if not images:
        return turn, None
    response: Response = {**turn.response, "output": output}
    return turn._replace(response=response, input=items, images=dict.fromkeys(images, part)), orjson.dumps(images)


def _without_image(item: Item, images: dict[str, str]) -> Item:
    """Return an item without its image, which is added to `images`; two of the same id are one image, or stay."""
    item_id, image = item.get("id"), item.get("result")
    if item["type"] != _TYPE or not item_id or not isinstance(image, str) or images.setdefault(item_id, image) != image:
        return item
    return {**item, "result": None}


def attach_images(turn: Turn, record: bytes | None) -> Turn:
    """Return a stored turn with its images; None, if they are gone."""
    images = read_images(record)
    output = [with_image(item, images) for item in turn.response["output"]]
    response: Response = {**turn.response, "output": output}
    return turn._replace(response=response, input=[with_image(item, images) for item in turn.input], images=None)


def read_images(record: bytes | None) -> dict[str, str]:
    """Return the images of a record, in base64, by item id."""
    images: dict[str, str] = orjson.loads(record) if record else {}
    return images


def with_image(item: Item, images: Mapping[str, object]) -> Item:
    """Return an item with its image, if that was stored beside it."""
    if item["type"] != _TYPE or item.get("result") or item.get("id") not in images:
        return item
    return {**item, "result": images[item["id"]]}


def without_images(record: bytes | None, deleted: set[str]) -> bytes | None:
    """Return a record of images without those of some items; None, if none are left."""
    images = {item_id: image for item_id, image in read_images(record).items() if item_id not in deleted}
    return orjson.dumps(images) if images else None
