"""OpenRouter's `reasoning_details`: reasoning in fragments that have to go back as wholes."""

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
