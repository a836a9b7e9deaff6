"""
Store a turn's images separately from its record.

Turns load the whole conversation, but not its images (megabytes of base64). A turn's images are one record with the
turn's lifetime.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import orjson

from app.core.history.turns import Turn
from app.core.types.request import Item, Response

_TYPE = "image_generation_call"


class ImageReference(NamedTuple):
    turn_id: str  # the record's name
    part: str  # the chain's part: see `partition_of`


def references(turn: Turn) -> dict[str, ImageReference]:
    return {item_id: ImageReference(turn.response["id"], part) for item_id, part in (turn.images or {}).items()}


def detach_images(turn: Turn, part: str) -> tuple[Turn, bytes | None]:
    images: dict[str, str] = {}
    items = [_without_image(item, images) for item in turn.input]
    output = [_without_image(item, images) for item in turn.response.get("output", ())]
    if not images:
        return turn, None
    response: Response = {**turn.response, "output": output}
    return turn._replace(response=response, input=items, images=dict.fromkeys(images, part)), orjson.dumps(images)


def _without_image(item: Item, images: dict[str, str]) -> Item:
    """Move an item's image to `images`; a different image with the same id stays."""
    if item["type"] != _TYPE:
        return item
    item_id, image = item.get("id"), item.get("result")
    if not item_id or not isinstance(image, str) or images.setdefault(item_id, image) != image:
        return item
    return {**item, "result": None}


def attach_images(turn: Turn, record: bytes | None) -> Turn:
    """Deleted images become None."""
    images = read_images(record)
    output = [with_image(item, images) for item in turn.response["output"]]
    response: Response = {**turn.response, "output": output}
    return turn._replace(response=response, input=[with_image(item, images) for item in turn.input], images=None)


def read_images(record: bytes | None) -> dict[str, str]:
    images: dict[str, str] = orjson.loads(record) if record else {}
    return images


def with_image(item: Item, images: Mapping[str, object]) -> Item:
    if item["type"] != _TYPE or item.get("result") or item.get("id") not in images:
        return item
    return {**item, "result": images[item["id"]]}


def without_images(record: bytes | None, deleted: set[str]) -> bytes | None:
    images = {item_id: image for item_id, image in read_images(record).items() if item_id not in deleted}
    return orjson.dumps(images) if images else None
