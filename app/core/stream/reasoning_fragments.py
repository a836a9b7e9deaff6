"""
Reasoning in fragments that have to go back as wholes.

OpenRouter has them in `reasoning_details`, LiteLLM Claude's in `thinking_blocks`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_JOINED = ("text", "summary", "data")  # the fields that come in pieces


class ReasoningDetails:
    """
    Merges the fragments of a stream, and gives the whole when called.

    Fragments of one index and type are one detail: their texts are joined, and the signature, which comes with the
    last, belongs to the whole.
    """

    def __init__(self) -> None:
        self._details: dict[Any, dict[str, Any]] = {}

    def feed(self, fragments: list[Any]) -> None:
        for fragment in fragments:
            if not isinstance(fragment, dict):
                continue
            index, id, type_ = (fragment.get(name) for name in ("index", "id", "type"))
            if not isinstance(index, int):  # whatever comes under one id, else one after the other
                index = id if id and isinstance(id, str) else len(self._details)
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

    def __call__(self) -> list[dict[str, Any]]:
        return [
            {name: "".join(value) if name in _JOINED and value else value for name, value in detail.items()}
            for detail in self._details.values()
        ]

    @staticmethod
    def texts(fragments: list[Any]) -> Iterator[str]:
        """Yield what fragments say in plain words: their texts and summaries, not what is encrypted."""
        for fragment in fragments:
            for name in ("text", "summary"):
                if isinstance(fragment, dict) and (text := fragment.get(name)) and isinstance(text, str):
                    yield text


class ThinkingBlocks:
    """
    Merges the fragments of Claude's blocks, and gives the whole when called.

    A signature ends a block; what is redacted is a block by itself.
    """

    def __init__(self) -> None:
        self._blocks: list[dict[str, Any]] = []
        self._open = False  # may the next fragment belong to the last block?

    def feed(self, fragments: list[Any]) -> None:
        for fragment in fragments:
            if not isinstance(fragment, dict):
                continue
            thinks = fragment.get("type") == "thinking"
            if not (thinks and self._open):
                self._blocks.append({**fragment, "thinking": []} if thinks else fragment)
            if thinks:
                block = self._blocks[-1]
                block["thinking"].append(text if isinstance(text := fragment.get("thinking"), str) else "")
                block["signature"] = fragment.get("signature") or block.get("signature")
            self._open = thinks and not fragment.get("signature")

    def __call__(self) -> list[dict[str, Any]]:
        """Return the blocks; those without a signature would be refused, so they are left out."""
        return [
            {**block, "thinking": "".join(block["thinking"])} if block.get("type") == "thinking" else block
            for block in self._blocks
            if block.get("signature") or block.get("type") != "thinking"
        ]

    @staticmethod
    def texts(fragments: list[Any]) -> Iterator[str]:
        """Yield what fragments say in plain words."""
        for fragment in fragments:
            if isinstance(fragment, dict) and (text := fragment.get("thinking")) and isinstance(text, str):
                yield text


# By the names of their fields, as they are sent and sent back.
FRAGMENTS: dict[str, type[ReasoningDetails] | type[ThinkingBlocks]] = {
    "reasoning_details": ReasoningDetails,
    "thinking_blocks": ThinkingBlocks,
}
