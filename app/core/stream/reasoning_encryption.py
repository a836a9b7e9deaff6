from __future__ import annotations

from collections.abc import Callable

from app.core.types import JSONMapping, JSONObject

# The key in encrypted content, and its name in earlier versions.
PROVIDER_FIELDS, PROVIDER_FIELDS_V1 = "upstream", "said"


class ReasoningEncryption:
    """
    Encrypts provider fields, such as signatures, for clients that store items themselves.

    A call's fields are encrypted with the preceding reasoning, or in a separate reasoning item; a message's only with
    later reasoning.
    """

    def __init__(self, encrypt: Callable[[JSONObject], str]) -> None:
        self._encrypt = encrypt
        self._calls: dict[str, JSONMapping] = {}  # not yet encrypted, by call id or item id

    def hold(self, call_id: str, fields: JSONMapping) -> None:
        """Fields for the next encrypted content, by call id, or by a message's item id."""
        self._calls[call_id] = fields

    @property
    def holds(self) -> bool:
        return bool(self._calls)

    def content(self, fields: JSONMapping) -> str:
        """`encrypted_content` for an item's fields and all held fields."""
        calls, self._calls = self._calls, {}
        return self._encrypt({PROVIDER_FIELDS: fields, "calls": calls} if calls else {PROVIDER_FIELDS: fields})
