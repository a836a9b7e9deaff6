"""
Filters that apply a profile's options to the chunks of an answer.

A filter maps a list of chunks to another, and may have state. It returns unchanged chunks as they are, and never
modifies one. The default profile needs no filters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import is_
from typing import Any, TypeAlias

from app.backends.apis.chat.filters.text_tool_calls import (
    Piece,
    Schema,
    TextReasoning,
    TextToolCall,
    TextToolCallParser,
)
from app.backends.apis.chat.filters.think_tags import Splitter
from app.backends.apis.chat.normalize import FINISH, REASONING_FIELDS
from app.core.json_values import json_list, json_objects, json_text
from app.core.profile import Profile, ResponseOptions, ThinkTagOptions
from app.core.stream.reasoning_fragments import ReasoningDetails
from app.core.types import JSONMapping, JSONObject
from app.core.types.chunk import RawChunk

Delta: TypeAlias = JSONObject
Tools: TypeAlias = Sequence[JSONMapping]  # of the request


class Filter:
    """Filters the chunks of one answer, list by list."""

    def feed(self, chunks: list[RawChunk]) -> list[RawChunk]:
        """Return the filtered chunks."""
        return [_changed(chunk, self._change) for chunk in chunks]

    def end(self) -> list[RawChunk]:
        """Return the chunks that were held back, at the end of the answer."""
        return []

    def _change(self, delta: Delta, index: int) -> Delta:
        """Return a delta of the choice with this index, changed, or the same object."""
        return delta


def filters(profile: Profile, tools: Tools = ()) -> list[Filter]:
    """Return the filters for one answer, in the order of use; `tools` are those of the request."""
    options = profile.response
    return [build(options, tools) for needed, build in _FILTERS if needed(options)]


class ChoiceFilter(Filter):
    """`choice_index`: merges choices: TGI counts tokens in their index, and Copilot splits one answer over two."""

    def __init__(self, merge: bool) -> None:
        self._limit = None if merge else 1

    def feed(self, chunks: list[RawChunk]) -> list[RawChunk]:
        return [part for chunk in chunks for part in self._split(chunk)]

    def _split(self, chunk: RawChunk) -> list[RawChunk]:
        choices = json_objects(chunk.get("choices"))
        if not choices or (len(choices) == 1 and choices[0].get("index") in (0, None)):
            return [chunk]
        return [{**chunk, "choices": [{**choice, "index": 0}]} for choice in choices[: self._limit]]


class ReasoningFieldFilter(Filter):
    """`reasoning_fields`: renames the fields that hold reasoning to a standard one, and drops all others."""

    def __init__(self, names: list[str]) -> None:
        self._names = names

    def _change(self, delta: Delta, index: int) -> Delta:
        field = next((name for name in self._names if delta.get(name)), None)
        unwanted = [name for name in (*REASONING_FIELDS, *self._names) if name in delta and name != field]
        if not unwanted and (field is None or field in REASONING_FIELDS):
            return delta
        renamed = {name: value for name, value in delta.items() if name not in unwanted and name != field}
        if field:
            renamed[field if field in REASONING_FIELDS else REASONING_FIELDS[0]] = delta[field]
        return renamed


class CumulativeDeltaFilter(Filter):
    """`cumulative`: for fields that repeat all earlier text in every chunk, passes on only the new text."""

    def __init__(self, fields: list[str]) -> None:
        self._fields = set(fields)
        self._seen: dict[object, str] = {}
        self._calls: dict[object, str] = {}  # the id of the call at each position

    def _change(self, delta: Delta, index: int) -> Delta:
        changes: Delta = {}
        if "content" in self._fields and isinstance(delta.get("content"), str):
            changes["content"] = self._new((index, "content"), delta["content"])
        if "reasoning" in self._fields:
            for name in REASONING_FIELDS:
                if isinstance(delta.get(name), str):
                    changes[name] = self._new((index, name), delta[name])
            if isinstance(details := delta.get("reasoning_details"), list):
                changes["reasoning_details"] = [self._detail(index, n, detail) for n, detail in enumerate(details)]
        if "tool_arguments" in self._fields and isinstance(calls := delta.get("tool_calls"), list):
            changes["tool_calls"] = [self._call(index, n, call) for n, call in enumerate(calls)]
        return {**delta, **changes} if changes else delta

    def _detail(self, index: int, position: int, detail: object) -> object:
        if not isinstance(detail, dict) or not isinstance(detail.get("text"), str):
            return detail
        position_key = (index, "detail", _index(detail.get("index"), position))
        return {**detail, "text": self._new(position_key, detail["text"])}

    def _call(self, index: int, position: int, call: Any) -> object:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
            return call
        position_key = (index, "call", _index(call.get("index"), position))
        if (call_id := call.get("id")) and call_id != self._calls.setdefault(position_key, call_id):
            self._calls[position_key] = call_id
            self._seen.pop(position_key, None)  # another call at the same position
        return {**call, "function": {**function, "arguments": self._new(position_key, function["arguments"])}}

    def _new(self, key: object, text: str) -> str:
        seen = self._seen.get(key, "")
        if text.startswith(seen):
            self._seen[key] = text
            return text[len(seen) :]
        if seen.startswith(text):
            return ""  # the last chunk may lack trailing white space
        self._seen[key] = seen + text
        return text


class ThinkTagFilter(Filter):
    """`think_tags`: text between tags becomes reasoning."""

    def __init__(self, tags: ThinkTagOptions) -> None:
        self._tags = tags
        self._splitters: dict[int, Splitter] = {}

    def end(self) -> list[RawChunk]:
        ends = {index: splitter.flush() for index, splitter in self._splitters.items()}
        return [
            {"choices": [{"index": index, "delta": _with({}, thought, text)}]}
            for index, (thought, text) in ends.items()
            if thought or text
        ]

    def _change(self, delta: Delta, index: int) -> Delta:
        splitter = self._splitters.get(index)
        if splitter is None:
            tags = self._tags
            splitter = self._splitters[index] = Splitter(tags.open, tags.close, tags.mode == "implicit_open")
        for thought in _thoughts(delta):
            splitter.structured(thought)
        content = delta.get("content")
        content = json_text(content)
        thought, text = splitter.feed(content)
        if _calls(delta):
            held = splitter.flush()
            thought, text = thought + held[0], text + held[1]
        if (thought, text) == ("", content):
            return delta
        return _with({name: value for name, value in delta.items() if name != "content"}, thought, text)


class TextToolCallFilter(Filter):
    """`call_marks`: tool calls in the text become calls, each in a chunk of its own."""

    def __init__(self, tools: Tools) -> None:
        self._parser = TextToolCallParser(dict(_declared(tools)))

    def feed(self, chunks: list[RawChunk]) -> list[RawChunk]:
        return [part for chunk in chunks for part in self._split(chunk)]

    def end(self) -> list[RawChunk]:
        return [*map(_chunk, self._parser.end())]

    def _split(self, chunk: RawChunk) -> Iterator[RawChunk]:
        first = next((choice for choice in json_objects(chunk.get("choices")) if not choice.get("index")), {})
        delta = first.get("delta")
        content = delta.get("content") if isinstance(delta, dict) else None
        if isinstance(delta, dict) and _calls(delta):  # the server has a parser for calls
            yield from self.end()
        if not content or not isinstance(content, str) or (pieces := self._parser.feed(content)) == [content]:
            yield chunk
            return
        yield _changed(chunk, lambda delta, index: {**delta, "content": ""} if delta is first["delta"] else delta)
        yield from map(_chunk, pieces)


def _declared(tools: Tools) -> Iterator[tuple[str, Schema]]:
    """Yield the name and the parameters of each function among the tools; an operator may add tools of any form."""
    for tool in tools:
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if isinstance(function, Mapping) and isinstance(name := function.get("name"), str):
            parameters = function.get("parameters")
            yield name, parameters if isinstance(parameters, Mapping) else {}


def _chunk(piece: Piece) -> RawChunk:
    """Return the chunk of a piece."""
    delta: Delta = {"content": piece}
    if isinstance(piece, TextReasoning):
        delta = {REASONING_FIELDS[0]: piece.text}
    elif isinstance(piece, TextToolCall):
        call = {"type": "function", "function": {"name": piece.name, "arguments": piece.arguments}}
        delta = {"tool_calls": [{**call, "id": piece.id} if piece.id else call]}
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


class BlankTextFilter(Filter):
    """`whitespace_only_content: drop`: drops white space between reasoning and calls, which would become a message."""

    def __init__(self) -> None:
        self._open: set[int] = set()  # choices in which a message with text is open
        self._held: dict[int, str] = {}  # in other choices, white space that text may follow

    def _change(self, delta: Delta, index: int) -> Delta:
        result = delta
        if _thoughts(delta):
            self._close(index)
        if (content := delta.get("content")) and index not in self._open:
            text = self._held.pop(index, "") + content if isinstance(content, str) else ""
            if text.isspace():
                self._held[index] = text
                result = {name: value for name, value in delta.items() if name != "content"}
            else:
                self._open.add(index)
                result = delta if text in ("", content) else {**delta, "content": text}
        if _calls(delta):
            self._close(index)
        return result

    def _close(self, index: int) -> None:
        self._open.discard(index)
        self._held.pop(index, None)


class FinishReasonFilter(Filter):
    """`finish_map`: replaces this server's finish reasons."""

    def __init__(self, reasons: dict[str, str]) -> None:
        self._reasons = reasons

    def feed(self, chunks: list[RawChunk]) -> list[RawChunk]:
        return [self._translate(chunk) if _finish_reasons(chunk) & self._reasons.keys() else chunk for chunk in chunks]

    def _translate(self, chunk: RawChunk) -> RawChunk:
        choices = [
            {**choice, "finish_reason": self._reasons.get(choice["finish_reason"], choice["finish_reason"])}
            if isinstance(choice, dict) and choice.get("finish_reason")
            else choice
            for choice in chunk["choices"]
        ]
        return {**chunk, "choices": choices}


class ReasoningAsMessageFilter(Filter):
    """`reasoning_only_as_message`: an answer of reasoning only is repeated as text."""

    def __init__(self) -> None:
        self._reasoning: list[str] | None = []  # None if there is another output
        self._reason: str | None = None

    def feed(self, chunks: list[RawChunk]) -> list[RawChunk]:
        for chunk in chunks:
            for reason in _finish_reasons(chunk):
                self._reason = reason
        return super().feed(chunks)

    def end(self) -> list[RawChunk]:
        # Reasoning that was cut off is no answer.
        if not self._reasoning or self._reason is None or self._reason.lower() in FINISH:
            return []
        return [{"choices": [{"index": 0, "delta": {"content": "".join(self._reasoning)}}]}]

    def _change(self, delta: Delta, index: int) -> Delta:
        content = delta.get("content")
        if _calls(delta) or delta.get("refusal") or (content.strip() if isinstance(content, str) else content):
            self._reasoning = None
        if self._reasoning is not None:
            self._reasoning += _thoughts(delta)
        return delta


def _index(index: object, otherwise: int) -> Any:
    """Return an index as it is written, or `otherwise` if it is invalid."""
    return index if isinstance(index, int | str) else otherwise


def _changed(chunk: RawChunk, change: Callable[[Delta, int], Delta]) -> RawChunk:
    """Return the chunk with its deltas changed; the same chunk if none is."""
    choices = chunk.get("choices")
    if not isinstance(choices, list):
        return chunk
    changed = [_changed_choice(choice, change) for choice in choices]
    return chunk if all(map(is_, changed, choices)) else {**chunk, "choices": changed}


def _changed_choice(choice: Any, change: Callable[[Delta, int], Delta]) -> object:
    delta = choice.get("delta") if isinstance(choice, dict) else None
    if not isinstance(delta, dict):
        return choice
    changed = change(delta, _index(choice.get("index"), 0))
    return choice if changed is delta else {**choice, "delta": changed}


def _with(delta: Delta, thought: str, text: str) -> Delta:
    if thought:
        name = next((name for name in REASONING_FIELDS if delta.get(name)), REASONING_FIELDS[0])
        delta = {**delta, name: (delta.get(name) or "") + thought}
    return {**delta, "content": text} if text else delta


def _thoughts(delta: Delta) -> list[str]:
    """Return the reasoning of a delta, from the first of the fields that has any."""
    for name in REASONING_FIELDS:
        if (text := delta.get(name)) and isinstance(text, str):
            return [text]
    details = delta.get("reasoning_details")
    return list(ReasoningDetails.texts(json_list(details)))


def _calls(delta: Delta) -> bool:
    return bool(delta.get("tool_calls") or delta.get("function_call"))


def _finish_reasons(chunk: RawChunk) -> set[str]:
    reasons = (choice.get("finish_reason") for choice in json_objects(chunk.get("choices")))
    return {reason for reason in reasons if reason and isinstance(reason, str)}


def _tags(options: ResponseOptions) -> ThinkTagOptions:
    tags = options.think_tags
    if isinstance(tags, ThinkTagOptions):
        return tags
    return ThinkTagOptions(mode="implicit_open" if tags == "implicit_open" else "auto")


_FILTERS: tuple[tuple[Callable[[ResponseOptions], object], Callable[[ResponseOptions, Tools], Filter]], ...] = (
    (
        lambda options: options.choice_index != "strict",
        lambda options, _: ChoiceFilter(options.choice_index == "merge"),
    ),
    (
        lambda options: options.reasoning_fields != [*REASONING_FIELDS],
        lambda options, _: ReasoningFieldFilter(options.reasoning_fields),
    ),
    (lambda options: options.cumulative, lambda options, _: CumulativeDeltaFilter([*options.cumulative])),
    (lambda options: options.think_tags != "off", lambda options, _: ThinkTagFilter(_tags(options))),
    (lambda options: options.whitespace_only_content == "drop", lambda *_: BlankTextFilter()),
    (lambda options: options.finish_map, lambda options, _: FinishReasonFilter(options.finish_map)),
    (lambda options: options.reasoning_only_as_message, lambda *_: ReasoningAsMessageFilter()),
    (lambda options: options.call_marks == "auto", lambda _, tools: TextToolCallFilter(tools)),
)
