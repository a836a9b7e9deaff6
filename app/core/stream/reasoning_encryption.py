"""The `encrypted_content` of reasoning items: what the backend sent for them, for clients that store the items."""

from __future__ import annotations

from collections.abc import Callable

from app.core.types import JSONMapping, JSONObject

# The field of encrypted reasoning with what the backend sent, and its name in content of earlier versions.
UPSTREAM, EARLIER_UPSTREAM = "upstream", "said"


class ReasoningEncryption:
    """
    Encrypts what the backend sent for the reasoning items, calls and messages of one response.

    Fields that a backend sends with a tool call or a message, such as signatures, must be sent back as well, but
    clients store no such fields. They are encrypted with the reasoning before the call, or with a separate reasoning
    item; fields of a message only with reasoning after it.
    """

    def __init__(self, encrypt: Callable[[JSONObject], str]) -> None:
        """`encrypt` returns JSON content in encrypted form."""
        self._encrypt = encrypt
        self._calls: dict[str, JSONMapping] = {}  # fields of calls that are not encrypted yet, by id

    def hold(self, call_id: str, fields: JSONMapping) -> None:
        """Keep the fields of a call or a message (by its item id), to be encrypted with the next content."""
        self._calls[call_id] = fields

    @property
    def holds(self) -> bool:
        """Whether there are fields of calls that are not encrypted yet."""
        return bool(self._calls)

    def content(self, fields: JSONMapping) -> str:
        """Return the `encrypted_content` of an item with these fields, and with those of calls that were kept."""
        calls, self._calls = self._calls, {}
        return self._encrypt({UPSTREAM: fields, "calls": calls} if calls else {UPSTREAM: fields})
