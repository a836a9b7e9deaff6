from __future__ import annotations

from collections.abc import Callable

from app.core.types import JSONMapping, JSONObject

# The key in encrypted content, and its name in earlier versions.
PROVIDER_FIELDS, PROVIDER_FIELDS_V1 = "upstream", "said"


class ReasoningEncryption:
    """
    Encrypts a response's provider fields, for clients that store the items.

    The backend needs fields such as signatures back. A call's fields are encrypted with the preceding reasoning, or in
    a separate reasoning item; a message's fields only with reasoning that follows.
    """

    def __init__(self, encrypt: Callable[[JSONObject], str]) -> None:
        self._encrypt = encrypt
        self._calls: dict[str, JSONMapping] = {}  # not yet encrypted, by call id or item id

    def hold(self, call_id: str, fields: JSONMapping) -> None:
        """Store fields for the next encrypted content, by call id, or by a message's item id."""
        self._calls[call_id] = fields

    @property
    def holds(self) -> bool:
        return bool(self._calls)

    def content(self, fields: JSONMapping) -> str:
        """Return `encrypted_content` for an item's fields and all held fields."""
        calls, self._calls = self._calls, {}
        return self._encrypt({PROVIDER_FIELDS: fields, "calls": calls} if calls else {PROVIDER_FIELDS: fields})
