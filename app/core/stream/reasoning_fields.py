"""Reasoning fields that servers expect back: streamed fragments are joined, fields for stateless clients encrypted."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from app.core.types import JSONMapping, JSONObject, json_objects, json_text

_JOINED = ("text", "summary", "data")  # fields that arrive in pieces


class ReasoningDetails:
    """
    Merges fragments with the same index and type; calling it returns the details.

    The signature, sent with the last fragment, covers the whole detail.
    """

    def __init__(self) -> None:
        self._details: dict[tuple[int | str, str], JSONObject] = {}

    def feed(self, fragments: list[object]) -> None:
        for fragment in json_objects(fragments):
            index, item_id, type_ = (fragment.get(name) for name in ("index", "id", "type"))
            if not isinstance(index, int):
                index = item_id if item_id and isinstance(item_id, str) else len(self._details)
            key = (index, str(type_))
            detail = self._details.setdefault(key, {})
            for name, value in fragment.items():
                if name not in _JOINED:
                    if value is not None or name not in detail:
                        detail[name] = value
                elif isinstance(value, str):
                    detail[name] = detail.get(name) or []
                    detail[name].append(value)
                else:
                    detail.setdefault(name, None)

    def __call__(self) -> list[JSONObject]:
        return [
            {name: "".join(value) if name in _JOINED and value else value for name, value in detail.items()}
            for detail in self._details.values()
        ]

    @staticmethod
    def texts(fragments: list[object]) -> Iterator[str]:
        """Readable texts, without encrypted data."""
        texts = (json_text(each.get(name)) for each in json_objects(fragments) for name in ("text", "summary"))
        return filter(None, texts)


class ThinkingBlocks:
    """
    Merges thinking block fragments; calling it returns the blocks.

    A signature ends a block. A redacted fragment is a separate block.
    """

    def __init__(self) -> None:
        self._blocks: list[JSONObject] = []
        self._open = False  # whether the next fragment can belong to the last block

    def feed(self, fragments: list[object]) -> None:
        for fragment in json_objects(fragments):
            is_thinking = fragment.get("type") == "thinking"
            if not (is_thinking and self._open):
                self._blocks.append({**fragment, "thinking": []} if is_thinking else fragment)
            if is_thinking:
                block = self._blocks[-1]
                block["thinking"].append(text if isinstance(text := fragment.get("thinking"), str) else "")
                block["signature"] = fragment.get("signature") or block.get("signature")
            self._open = is_thinking and not fragment.get("signature")

    def __call__(self) -> list[JSONObject]:
        """Without unsigned blocks, which the server would reject."""
        return [
            {**block, "thinking": "".join(block["thinking"])} if block.get("type") == "thinking" else block
            for block in self._blocks
            if block.get("signature") or block.get("type") != "thinking"
        ]

    @staticmethod
    def texts(fragments: list[object]) -> Iterator[str]:
        return filter(None, (json_text(each.get("thinking")) for each in json_objects(fragments)))


# By the backend's field name.
FRAGMENTS: dict[str, type[ReasoningDetails] | type[ThinkingBlocks]] = {
    "reasoning_details": ReasoningDetails,
    "thinking_blocks": ThinkingBlocks,
}


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
