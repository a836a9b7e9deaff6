"""The progress reports of a hosted tool's session, as events of the response."""

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
    """The items of one response that hosted tools add and change, and their notes."""

    def __init__(self, builder: EventBuilder, options: LoopOptions, warnings: Warnings) -> None:
        """`warnings` is the response's list; `warn` appends to it."""
        self.changed = asyncio.Event()  # set when there are events to deliver
        self._builder = builder
        self._options = options
        self._warnings = warnings

    def add_item(self, kind: ItemType, fields: JSONMapping) -> OpenCall:
        """Add an item for a session; after the end of the response it is discarded."""
        if self._builder.response["status"] in TERMINAL:
            return OpenCall(None, {"type": kind.type, "id": self._builder.new_id(kind.prefix)}, kind)
        self.changed.set()
        return self._builder.add_item(kind, fields)

    @property
    def images(self) -> StoredImages | None:
        """The images of earlier turns."""
        return self._options.images

    def progress(self, item: OpenCall, name: str, fields: JSONMapping) -> None:
        """Emit a progress event of a running call or of an item that a session added."""
        self._builder.progress(item, name, fields)
        self.changed.set()

    def close_item(self, item: OpenCall, status: str, fields: JSONMapping) -> None:
        """End an item that a session added."""
        self._builder.end_call(item, status, fields)
        self.changed.set()

    def warn(self, message: str) -> None:
        """Add a warning for the caller about something that was left out or changed."""
        if message not in self._warnings:
            self._warnings.add(message)
            logger.warning("hosted tool warning", extra={"reason": message})
            self.changed.set()

    def note(self, item_id: str, **notes: object) -> None:
        """Store notes on an item, for later requests that contain it."""
        upstream = self._builder.upstream.setdefault(item_id, {})
        upstream[NOTES] = {**upstream.get(NOTES, {}), **notes}

    def session_notes(self, item: JSONMapping) -> JSONMapping:
        """Return the notes of sessions on an item of this response or of the conversation."""
        notes = self.notes(str(item.get("id"))).get("session")
        return notes if isinstance(notes, Mapping) else {}

    def notes(self, item_id: str) -> JSONMapping:
        """Return the notes on an item of this response or of the conversation."""
        upstream = self._builder.upstream.get(item_id) or self._options.upstream.get(item_id) or {}
        notes: Mapping[str, object] = upstream.get(NOTES, {})
        return notes


class SessionReport:
    """Reports the progress of a session as events of the response; see `app.tools.Report`."""

    def __init__(self, items: HostedItems, lifecycle: ResponseLifecycle, call: OpenCall | None = None) -> None:
        """`call` is the running call; None while functions are listed."""
        self._items = items
        self._lifecycle = lifecycle
        self._call = call

    def event(self, name: str, **fields: object) -> None:
        """Emit an event of the call's item."""
        assert self._call
        self._items.progress(self._call, name, fields)

    def add(self, item_type: str, **fields: object) -> AddedItem:
        """Add an item to the output."""
        return AddedItem(self._items, self._items.add_item(ITEM_TYPES[item_type], fields))

    def private_data(self, item: Item) -> JSONMapping:
        """Return the notes of sessions on an item."""
        return self._items.session_notes(item)

    def has_stored_image(self, item: Item) -> bool:
        """Tell whether the image of an item is stored beside its turn."""
        images = self._items.images
        return images is not None and item.get("id") in images

    async def stored_image(self, item: Item) -> str | None:
        """Return the image that is stored beside the turn of an item."""
        images = self._items.images
        return await images.load(item["id"]) if images and item.get("id") in images else None

    def warn(self, message: str) -> None:
        """Add a warning for the caller."""
        self._items.warn(message)

    async def check_limits(self) -> None:
        await self._lifecycle.check_limits()

    def charge_request(self, model: str, backend: str, usage: Usage) -> None:
        self._lifecycle.charge_request(model, backend, usage)


class AddedItem:
    """An item added by a session."""

    def __init__(self, items: HostedItems, item: OpenCall) -> None:
        self.id: str = item.item["id"]
        self._items = items
        self._item = item

    def event(self, name: str, **fields: object) -> None:
        """Emit an event of the item."""
        self._items.progress(self._item, name, fields)

    def set_private_data(self, **data: object) -> None:
        """Store notes on the item."""
        self._items.note(self.id, session={**self._items.session_notes({"id": self.id}), **data})

    def close(self, status: OutcomeStatus = "completed", **fields: Any) -> None:
        """End the item."""
        self._items.close_item(self._item, status, fields)
