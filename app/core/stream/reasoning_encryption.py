"""Encrypt provider fields, for clients that store the items."""

from __future__ import annotations

from collections.abc import Callable

from app.core.types import JSONMapping, JSONObject

# The provider fields' key in encrypted content, and its name in content from earlier versions.
PROVIDER_FIELDS, PROVIDER_FIELDS_V1 = "upstream", "said"


class ReasoningEncryption:
    """
    Encrypts a response's provider fields for reasoning items, calls and messages.

    The backend needs fields such as signatures back, but clients do not store them. A call's fields are encrypted with
    the preceding reasoning, or in a separate reasoning item; a message's fields only with reasoning that follows.
    """

    def __init__(self, encrypt: Callable[[JSONObject], str]) -> None:
        """`encrypt` serializes and encrypts a JSON value."""
        self._encrypt = encrypt
        self._calls: dict[str, JSONMapping] = {}  # not yet encrypted, by call id or item id

    def hold(self, call_id: str, fields: JSONMapping) -> None:
        """Store the fields of a call or message (by its item id) for the next encrypted content."""
        self._calls[call_id] = fields

    @property
    def holds(self) -> bool:
        return bool(self._calls)

    def content(self, fields: JSONMapping) -> str:
        """Return `encrypted_content` for an item's fields and all held fields."""
        calls, self._calls = self._calls, {}
        return self._encrypt({PROVIDER_FIELDS: fields, "calls": calls} if calls else {PROVIDER_FIELDS: fields})
