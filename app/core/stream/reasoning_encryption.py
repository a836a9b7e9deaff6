"""The `encrypted_content` of reasoning items: what the backend sent for them, for clients that store the items."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from app.core.size import Size
from app.core.types import JSONMapping, JSONObject

# The field of encrypted reasoning with what the backend sent, and its name in content of earlier versions.
UPSTREAM, EARLIER_UPSTREAM = "upstream", "said"


class ReasoningEncryption:
    """
    Encrypts what the backend sent for the reasoning items and calls of one response.

    Fields that a backend sends with a tool call, such as signatures, have to be sent back as well, but clients store
    no such fields of a call. They are encrypted with the reasoning before the call, or with a reasoning item of their
    own.
    """

    def __init__(self, encrypt: Callable[[JSONObject], str]) -> None:
        """`encrypt` returns JSON content in encrypted form."""
        self.slow = False  # whether the open item has so much text that its content should be prepared
        self._encrypt = encrypt
        self._calls: dict[str, JSONMapping] = {}  # fields of calls that are not encrypted yet, by id
        self._characters = 0  # of the open item
        self._prepared: tuple[JSONObject, str] | None = None  # content that was encrypted in advance

    def note_text(self, deltas: Sequence[str]) -> None:
        """Count the text of the open item."""
        self._characters += sum(map(len, deltas))
        if Size(self._characters).large:
            self.slow = True
            self._prepared = None

    def prepare(self, fields: JSONMapping) -> None:
        """Encrypt the fields of the open item in advance; may take long, and may be called in a thread."""
        if self._prepared is None:
            content = {UPSTREAM: fields}
            self._prepared = content, self._encrypt(content)

    @property
    def prepared(self) -> bool:
        """Whether the content of the open item is encrypted already, so that nothing can be added to it."""
        return self._prepared is not None

    def hold(self, call_id: str, fields: JSONMapping) -> None:
        """Keep the fields of a call, to be encrypted with the next content."""
        self._calls[call_id] = fields

    @property
    def holds(self) -> bool:
        """Whether there are fields of calls that are not encrypted yet."""
        return bool(self._calls)

    def content(self, fields: JSONMapping) -> str:
        """Return the `encrypted_content` of an item with these fields, and with those of calls that were kept."""
        calls, self._calls = self._calls, {}
        content = {UPSTREAM: fields, "calls": calls} if calls else {UPSTREAM: fields}
        prepared, self._prepared = self._prepared, None
        self._characters, self.slow = 0, False
        return prepared[1] if prepared and prepared[0] == content else self._encrypt(content)
