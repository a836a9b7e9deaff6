"""
Estimate token counts, for truncating conversations and backends that do not report them, not for billing.

With large vocabularies, most words, numbers and runs of punctuation are one or two tokens; scripts without spaces have
about one token per character.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from app.core.bounded_json import to_json
from app.core.types import JSONMapping

# Regardless of size; vision models use some hundreds to two thousand tokens per image.
TOKENS_PER_MEDIA_ITEM = 1000
_MESSAGE = 4  # a message's role and delimiters
_SAMPLE = 100_000  # characters; the rest is extrapolated

# Scripts without spaces (Chinese, Japanese, Korean, Thai and others), and emoji.
_WIDE = r"\u0e00-\u0fff\u1100-\u11ff\u2e80-\ud7ff\uf900-\ufaff\uff00-\uffef\U00010000-\U0010ffff"
_TOKENS = re.compile(
    r"[A-Za-z]{1,7}|[0-9]{1,3}|[!-/:-@\[-`{-~]{1,2}"  # words, numbers, punctuation
    r"|\s{2,16}|\n|(?<=\s)\s"  # white space, except for a single space
    rf"|[{_WIDE}]|[^\s!-~{_WIDE}]{{1,3}}"
)


def estimate(text: str) -> int:
    sample = text[:_SAMPLE]
    tokens = _tokens(sample)
    return tokens * len(text) // len(sample) if len(text) > len(sample) else tokens


def _tokens(text: str) -> int:
    return len(_TOKENS.findall(text))


def estimate_json(value: object) -> int:
    """
    All strings in a JSON value, without field names.

    With many strings, counts only the start of each, which costs no more than one long string.
    """
    texts: list[str] = []
    others = _collect(value, texts)
    length = sum(map(len, texts))
    if length <= _SAMPLE:
        return others + sum(map(_tokens, texts))
    share = _SAMPLE / length
    sample = [text[: math.ceil(len(text) * share)] for text in texts]
    # A single space between strings is not counted.
    return others + _tokens(" ".join(sample)) * length // sum(map(len, sample))


def _collect(value: object, texts: list[str]) -> int:
    others = 0
    values = [value]
    while values:
        node = values.pop()
        if isinstance(node, str):
            texts.append(node)
        elif isinstance(node, dict):
            for name, inner in node.items():
                if name in DATA and inner:
                    others += TOKENS_PER_MEDIA_ITEM
                else:
                    values.append(inner)
        elif isinstance(node, Mapping):
            values.append(dict(node))
        elif isinstance(node, Iterable):
            values.extend(node)
        elif node is not None:
            others += 1
    return others


DATA = frozenset({"data", "file_data", "file_url", "image_url", "input_audio", "video_url"})


def conversation_of(body: JSONMapping) -> Sequence[Any]:
    """A request's messages or items; other bodies are one message."""
    for name in ("messages", "input"):
        if name in body:
            conversation: Sequence[Any] = body[name] or ()
            return [conversation] if isinstance(conversation, str) else conversation
    rest = {name: value for name, value in body.items() if name not in _COUNTED_SEPARATELY}
    return [rest] if rest else ()


_INSTRUCTIONS = ("instructions", "system")
_COUNTED_SEPARATELY = {*_INSTRUCTIONS, "tools", "model"}


def estimate_prompt(body: JSONMapping) -> int:
    conversation = conversation_of(body)
    tokens = (_MESSAGE - 1) * len(conversation) + estimate_json(conversation)  # the role is counted as a text
    tokens += sum(_MESSAGE + estimate_json(body[name]) for name in _INSTRUCTIONS if body.get(name))
    if tools := body.get("tools"):
        tokens += estimate(to_json(tools))
    return tokens
