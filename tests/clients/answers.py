"""Scripted upstream answers for stories shared by several clients."""

from __future__ import annotations

import json
from typing import Any

from tests.support.upstream import DONE, call, chunk, finish, sse, usage

PLACES = ("Paris", "Oslo")


def saying(*pieces: str, tokens: int = 5) -> list[Any]:
    """An answer in words, in pieces, after a prompt of so many tokens."""
    return sse(*map(chunk, pieces), finish(), usage(tokens, len(pieces)), DONE)


def thinking(thought: str, *pieces: str) -> list[Any]:
    """An answer with reasoning and text."""
    thoughts = (chunk(reasoning_content=word) for word in thought.partition(" "))
    return sse(*thoughts, *map(chunk, pieces), finish(), usage(), DONE)


def calling(name: str, *pieces: str, id: str = "call_1", tokens: int = 5) -> list[Any]:
    """An answer with one function call, arguments in pieces, and this number of prompt tokens."""
    arguments = (call(arguments=piece) for piece in pieces)
    return sse(call(id=id, name=name), *arguments, finish("tool_calls"), usage(tokens), DONE)


def asking_for_the_weather(*, thought: str = "", name: str = "weather") -> list[Any]:
    """An answer that calls a function for two places, with arguments in pieces."""
    chunks = [chunk(reasoning_content=thought)] if thought else []
    for index, place in enumerate(PLACES):
        start, middle, end = json.dumps({"place": place}).partition(": ")
        chunks += [call(index, id=f"call_{place}", name=name), call(index, arguments=start)]
        chunks += [call(index, arguments=middle), call(index, arguments=end)]
    return sse(*chunks, finish("tool_calls"), usage(), DONE)
