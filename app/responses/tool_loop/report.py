"""What a session of a hosted tool tells of its work while the loop waits for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from app.core.stream.event_builder import OpenCall
from app.core.types.items import ITEM_TYPES
from app.core.types.request import Item
from app.tools import OutcomeStatus

if TYPE_CHECKING:
    from app.responses.tool_loop import ToolLoop


class LoopReport:
    """What a session tells of its work, as events of the response; see `app.tools.Report`."""

    def __init__(self, loop: ToolLoop, call: OpenCall | None = None) -> None:
        """`call` is the one that runs; None while functions are read."""
        self._loop = loop
        self._call = call

    def event(self, name: str, **fields: Any) -> None:
        """Emit an event of the call's item."""
        assert self._call
        self._loop.progress(self._call, name, fields)

    def add(self, type: str, **fields: Any) -> AddedItem:
        """Add an item to the output."""
        return AddedItem(self._loop, self._loop.add_item(ITEM_TYPES[type], fields))

    def notes(self, item: Item) -> Mapping[str, Any]:
        """Return what a session has noted of an item."""
        return self._loop.session_notes(item)

    def warn(self, message: str) -> None:
        """Tell the caller what was left out or adapted."""
        self._loop.warn(message)


class AddedItem:
    """An item that a session has added."""

    def __init__(self, loop: ToolLoop, item: OpenCall) -> None:
        self.id: str = item.item["id"]
        self._loop = loop
        self._item = item

    def event(self, name: str, **fields: Any) -> None:
        """Emit an event of the item."""
        self._loop.progress(self._item, name, fields)

    def note(self, **notes: Any) -> None:
        """Note something of the item."""
        self._loop.note(self.id, session={**self._loop.session_notes({"id": self.id}), **notes})

    def close(self, status: OutcomeStatus = "completed", **fields: Any) -> None:
        """End the item."""
        self._loop.close_item(self._item, status, fields)
