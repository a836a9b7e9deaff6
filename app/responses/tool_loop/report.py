from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from app.core.items import ITEM_TYPES, ItemType
from app.core.items.readings import NOTES
from app.core.stream.event_builder import EventBuilder
from app.core.stream.open_items import OpenCall
from app.core.types import JSONMapping, Usage
from app.core.types.request import TERMINAL, Item
from app.errors import Warnings
from app.observability.lifecycle import ResponseLifecycle
from app.responses.images import StoredImages
from app.responses.tool_loop.options import LoopOptions
from app.tools import OutcomeStatus

logger = logging.getLogger(__name__)


class HostedItems:
    """A response's items from hosted tools, and notes on them."""

    def __init__(self, builder: EventBuilder, options: LoopOptions, warnings: Warnings) -> None:
        self.changed = asyncio.Event()  # set when events can be delivered
        self._builder = builder
        self._options = options
        self._warnings = warnings

    def add_item(self, kind: ItemType, fields: JSONMapping) -> OpenCall:
        """After the response's end, the item is discarded."""
        if self._builder.response["status"] in TERMINAL:
            return OpenCall(None, {"type": kind.type, "id": self._builder.new_id(kind.prefix)}, kind)
        self.changed.set()
        return self._builder.add_item(kind, fields)

    @property
    def images(self) -> StoredImages | None:
        return self._options.images

    def progress(self, item: OpenCall, name: str, fields: JSONMapping) -> None:
        self._builder.progress(item, name, fields)
        self.changed.set()

    def close_item(self, item: OpenCall, status: str, fields: JSONMapping) -> None:
        self._builder.end_call(item, status, fields)
        self.changed.set()

    def warn(self, message: str) -> None:
        if message not in self._warnings:
            self._warnings.add(message)
            logger.warning("hosted tool warning", extra={"reason": message})
            self.changed.set()

    def add_notes(self, item_id: str, **notes: object) -> None:
        """Notes are stored with the item, for later requests."""
        upstream = self._builder.upstream.setdefault(item_id, {})
        upstream[NOTES] = {**upstream.get(NOTES, {}), **notes}

    def session_notes(self, item: JSONMapping) -> JSONMapping:
        notes = self.notes(str(item.get("id"))).get("session")
        return notes if isinstance(notes, Mapping) else {}

    def notes(self, item_id: str) -> JSONMapping:
        upstream = self._builder.upstream.get(item_id) or self._options.upstream.get(item_id) or {}
        notes: Mapping[str, object] = upstream.get(NOTES, {})
        return notes


class SessionReport:
    """Implements `app.tools.Report`."""

    def __init__(self, items: HostedItems, lifecycle: ResponseLifecycle, call: OpenCall | None = None) -> None:
        """`call` is None while functions are listed."""
        self._items = items
        self._lifecycle = lifecycle
        self._call = call

    def event(self, name: str, **fields: object) -> None:
        assert self._call
        self._items.progress(self._call, name, fields)

    def add(self, item_type: str, **fields: object) -> AddedItem:
        return AddedItem(self._items, self._items.add_item(ITEM_TYPES[item_type], fields))

    def private_data(self, item: Item) -> JSONMapping:
        return self._items.session_notes(item)

    def has_stored_image(self, item: Item) -> bool:
        images = self._items.images
        return images is not None and item.get("id") in images

    async def stored_image(self, item: Item) -> str | None:
        images = self._items.images
        return await images.load(item["id"]) if images and item.get("id") in images else None

    def warn(self, message: str) -> None:
        self._items.warn(message)

    async def check_limits(self) -> None:
        await self._lifecycle.check_limits()

    def charge_request(self, model: str, backend: str, usage: Usage) -> None:
        self._lifecycle.charge_request(model, backend, usage)


class AddedItem:
    """Implements `app.tools.ReportedItem`."""

    def __init__(self, items: HostedItems, item: OpenCall) -> None:
        self.id: str = item.item["id"]
        self._items = items
        self._item = item

    def event(self, name: str, **fields: object) -> None:
        self._items.progress(self._item, name, fields)

    def set_private_data(self, **data: object) -> None:
        self._items.add_notes(self.id, session={**self._items.session_notes({"id": self.id}), **data})

    def close(self, status: OutcomeStatus = "completed", **fields: Any) -> None:
        self._items.close_item(self._item, status, fields)
