"""Splits text into overlapping chunks, at sentence and paragraph ends."""

from __future__ import annotations

import re
from collections.abc import Iterator

from app.core.usage.token_estimate import estimate

# A line, or a sentence within a line, with trailing whitespace.
_END = r".!?\u3002\uff01\uff1f"  # sentence ends
_UNITS = re.compile(rf"[^\n{_END}]*(?:[{_END}]+(?=\s|[^\x00-\x7f]|$)\s*|[{_END}]+|\n\s*|$)")
_WORDS = re.compile(r"\S+\s*|\s+")
_MIN_FILL = 0.5  # fraction to fill before a chunk may end at a paragraph


def chunks(text: str, max_tokens: int, overlap: int) -> Iterator[str]:
    """
    Split a text into chunks, each at most `max_tokens` estimated tokens.

    Each chunk starts with about the last `overlap` tokens from the previous chunk.
    """
    units = [unit for match in _UNITS.finditer(text) if match[0] for unit in _fitting(match[0], max_tokens)]
    start, end = 0, 0
    while end < len(units):
        first_new = end
        size = sum(tokens for _, tokens in units[start:end])
        while end < len(units) and (size + units[end][1] <= max_tokens or end == first_new):
            size += units[end][1]
            end += 1
        while size > max_tokens and start < first_new:  # shrink the overlap to fit the new text
            size -= units[start][1]
            start += 1
        if end < len(units):
            end = _paragraph_end(units, start, first_new, end)
        if chunk := "".join(unit for unit, _ in units[start:end]).strip():
            yield chunk
        start = _overlap_start(units, start, end, overlap)


def _paragraph_end(units: list[tuple[str, int]], start: int, first_new: int, end: int) -> int:
    """Return the chunk's last paragraph end if the chunk is full enough there, else `end`."""
    needed = sum(tokens for _, tokens in units[start:end]) * _MIN_FILL
    size = sum(tokens for _, tokens in units[start:first_new])
    last = end
    for index in range(first_new, end):
        unit, tokens = units[index]
        size += tokens
        if size >= needed and unit.count("\n") > 1:
            last = index + 1
    return last


def _overlap_start(units: list[tuple[str, int]], start: int, end: int, overlap: int) -> int:
    """Return the next chunk's start: `overlap` tokens before this chunk's end, but after its start."""
    size, index = 0, end
    while index - 1 > start and size + units[index - 1][1] <= overlap:
        index -= 1
        size += units[index][1]
    return index


def _fitting(unit: str, max_tokens: int) -> Iterator[tuple[str, int]]:
    """Yield a unit with its tokens. A unit above `max_tokens` is split into words, and a word into halves."""
    tokens = estimate(unit)
    if tokens <= max_tokens:
        yield unit, tokens
        return
    words = [match[0] for match in _WORDS.finditer(unit)]
    if len(words) == 1:
        middle = len(unit) // 2
        words = [unit[:middle], unit[middle:]]
    for word in words:
        yield from _fitting(word, max_tokens)
