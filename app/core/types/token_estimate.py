"""
Guess how many tokens something is, where nobody counts them.

Large vocabularies have most words, runs of digits and signs as one or two tokens, and about one token for each
character of scripts without spaces. A guess on that ground is good enough to tell how much of a conversation fits, and
not for a bill.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

# What a picture, a sound or a file is taken for: their data says nothing of it. Vision models make some hundreds to two
# thousand tokens of a picture.
MEDIUM = 1000
_MESSAGE = 4  # the role, and the marks around a message
_SAMPLE = 100_000  # characters of texts that are looked at; the rest is taken to be like them

# Chinese, Japanese, Korean, Thai and their neighbours, and pictographs.
_WIDE = r"\u0e00-\u0fff\u1100-\u11ff\u2e80-\ud7ff\uf900-\ufaff\uff00-\uffef\U00010000-\U0010ffff"
_PIECES = re.compile(
    rf"(?P<word>[A-Za-z]+)|(?P<digits>[0-9]+)|(?P<sign>[!-/:-@\[-`{{-~]+)|(?P<space>\s*\n\s*|[ \t]{{2,}})"
    rf"|(?P<wide>[{_WIDE}])|(?P<letters>[^\s!-~{_WIDE}]+)"
)
_PER_TOKEN = {"word": 7, "digits": 3, "sign": 2, "space": 16, "wide": 1, "letters": 3}  # characters


def estimate(text: str) -> int:
    """Return about how many tokens a text is."""
    sample = text[:_SAMPLE]
    tokens = _tokens(sample)
    return tokens * len(text) // len(sample) if len(text) > len(sample) else tokens


def _tokens(text: str) -> int:
    tokens = 0
    for piece in _PIECES.finditer(text):
        tokens += -(-len(piece[0]) // _PER_TOKEN[piece.lastgroup or "word"])
    return tokens


def estimate_json(value: object) -> int:
    """
    Return about how many tokens the texts of a JSON value are; the names of its fields are not counted.

    Data of pictures, sound and files counts as one of them, however long it is. Of many texts the beginning of each is
    looked at, so that a long conversation takes no longer than one text.
    """
    texts: list[str] = []
    others = _collect(value, texts)
    length = sum(map(len, texts))
    if length <= _SAMPLE:
        return others + sum(map(_tokens, texts))
    share = _SAMPLE / length
    sample = [text[: math.ceil(len(text) * share)] for text in texts]
    # A single space between texts counts nothing.
    return others + _tokens(" ".join(sample)) * length // sum(map(len, sample))


def _collect(value: Any, texts: list[str]) -> int:
    """Add the texts of a JSON value to a list, in no order, and return the tokens of all else in it."""
    others = 0
    values = [value]
    while values:
        one = values.pop()
        if isinstance(one, str):
            texts.append(one)
        elif isinstance(one, dict):
            for name, inner in one.items():
                if name in _DATA and inner:
                    others += MEDIUM
                else:
                    values.append(inner)
        elif isinstance(one, Mapping):
            values.append(dict(one))
        elif isinstance(one, Iterable):
            values.extend(one)
        elif one is not None:
            others += 1
    return others


_DATA = frozenset({"data", "file_data", "file_url", "image_url", "input_audio", "video_url"})


def estimate_chat(body: Mapping[str, Any]) -> int:
    """Return about how many tokens the prompt of a Chat Completions request is: its messages and its tools."""
    messages = body.get("messages") or ()
    tokens = (_MESSAGE - 1) * len(messages) + estimate_json(messages)  # the role of each message is a text of one
    if tools := body.get("tools"):
        tokens += estimate(json.dumps(tools, ensure_ascii=False))
    return tokens
