"""The progress reports of a hosted tool's session, as events of the response."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from app.core.items import ITEM_TYPES
from app.core.stream.event_builder import OpenCall
from app.core.types.request import Item
from app.tools import OutcomeStatus

if TYPE_CHECKING:
    from app.responses.tool_loop.calls import HostedCalls


class SessionReport:
    """Reports the progress of a session as events of the response; see `app.tools.Report`."""

    def __init__(self, calls: HostedCalls, call: OpenCall | None = None) -> None:
        """`call` is the running call; None while functions are listed."""
        self._calls = calls
        self._call = call

    def event(self, name: str, **fields: Any) -> None:
        """Emit an event of the call's item."""
        assert self._call
        self._calls.progress(self._call, name, fields)

    def add(self, item_type: str, **fields: Any) -> AddedItem:
        """Add an item to the output."""
        return AddedItem(self._calls, self._calls.add_item(ITEM_TYPES[item_type], fields))

    def notes(self, item: Item) -> Mapping[str, Any]:
        """Return the notes of sessions on an item."""
        return self._calls.session_notes(item)

    def has_stored_image(self, item: Item) -> bool:
        """Tell whether the image of an item is stored beside its turn."""
        images = self._calls.images
        return images is not None and item.get("id") in images

    async def stored_image(self, item: Item) -> str | None:
        """Return the image that is stored beside the turn of an item."""
        images = self._calls.images
        return await images.load(item["id"]) if images and item.get("id") in images else None

    def warn(self, message: str) -> None:
        """Add a warning for the caller."""
        self._calls.warn(message)


class AddedItem:
    """An item that a session has added."""

    def __init__(self, calls: HostedCalls, item: OpenCall) -> None:
        self.id: str = item.item["id"]
        self._calls = calls
        self._item = item

    def event(self, name: str, **fields: Any) -> None:
        """Emit an event of the item."""
        self._calls.progress(self._item, name, fields)

    def note(self, **notes: Any) -> None:
        """Store notes on the item."""
        self._calls.note(self.id, session={**self._calls.session_notes({"id": self.id}), **notes})

    def close(self, status: OutcomeStatus = "completed", **fields: Any) -> None:
        """End the item."""
        self._calls.close_item(self._item, status, fields)
