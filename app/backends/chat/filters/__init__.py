"""
What a profile says of a server's answers, done to its chunks: pure functions of a list of chunks, with some memory.

A filter returns the chunks that it does not change as they are, and never writes into one. The default profile needs
none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import is_
from typing import Any, Protocol, TypeAlias

from app.backends.chat.filters.text_tool_calls import Piece, Schema, TextReasoning, TextToolCall, TextToolCallParser
from app.backends.chat.filters.think_tags import Splitter
from app.backends.chat.normalize import FINISH, REASONING_FIELDS
from app.core.profile import Profile, ResponseOptions, ThinkTagOptions
from app.core.stream.reasoning_fragments import ReasoningDetails
from app.core.types.chunk import RawChunk

Delta: TypeAlias = dict[str, Any]
Tools: TypeAlias = Sequence[Mapping[str, Any]]  # of the request


class Filter(Protocol):
    """Turns the chunks of one answer, list by list, into better ones."""

    def feed(self, chunks: list[RawChunk]) -> list[RawChunk]:
        """Return what the next chunks amount to."""
        ...

    def end(self) -> list[RawChunk]:
        """Return what was held back, once the answer is over."""
        ...


def filters(profile: Profile, tools: Tools = ()) -> list[Filter]:
    """Return the filters for one answer, in the order in which they are to be fed; `tools` are those of the request."""
    options = profile.response
    return [build(options, tools) for needed, build in _FILTERS if needed(options)]


class ChoiceFilter:
    """`choice_index`: TGI counts tokens there, Copilot splits one answer over two choices. It is all one choice."""

    def __init__(self, all_of_them: bool) -> None:
        self._limit = None if all_of_them else 1

    def feed(self, chunks: list[RawChunk]) -> list[RawChunk]:
        return [one for chunk in chunks for one in self._split(chunk)]

    def end(self) -> list[RawChunk]:
        return []

    def _split(self, chunk: RawChunk) -> list[RawChunk]:
        choices = _choices(chunk)
        if not choices or (len(choices) == 1 and choices[0].get("index") in (0, None)):
            return [chunk]
        return [{**chunk, "choices": [{**choice, "index": 0}]} for choice in choices[: self._limit]]


class ReasoningFieldFilter:
    """`reasoning_fields`: the fields that hold reasoning, and no others, under a name that every reader knows."""

    def __init__(self, names: list[str]) -> None:
        self._names = names

    def feed(self, chunks: list[RawChunk]) -> list[RawChunk]:
        return [_changed(chunk, self._rename) for chunk in chunks]

    def end(self) -> list[RawChunk]:
        return []

    def _rename(self, delta: Delta, index: int) -> Delta:
        found = next((name for name in self._names if delta.get(name)), None)
        strange = [name for name in (*REASONING_FIELDS, *self._names) if name in delta and name != found]
        if not strange and (found is None or found in REASONING_FIELDS):
            return delta
        renamed = {name: value for name, value in delta.items() if name not in strange and name != found}
        if found:
            renamed[found if found in REASONING_FIELDS else REASONING_FIELDS[0]] = delta[found]
        return renamed


class CumulativeDeltaFilter:
    """`cumulative`: fields that repeat in every chunk what was there before; only what is new of them goes on."""

    def __init__(self, fields: list[str]) -> None:
        self._fields = set(fields)
        self._seen: dict[Any, str] = {}
        self._calls: dict[Any, str] = {}  # the id of the call that has a place

    def feed(self, chunks: list[RawChunk]) -> list[RawChunk]:
        return [_changed(chunk, self._shorten) for chunk in chunks]

    def end(self) -> list[RawChunk]:
        return []

    def _shorten(self, delta: Delta, index: int) -> Delta:
        changes: Delta = {}
        if "content" in self._fields and isinstance(delta.get("content"), str):
            changes["content"] = self._new((index, "content"), delta["content"])
        if "reasoning" in self._fields:
            for name in REASONING_FIELDS:
                if isinstance(delta.get(name), str):
                    changes[name] = self._new((index, name), delta[name])
            if isinstance(details := delta.get("reasoning_details"), list):
                changes["reasoning_details"] = [self._detail(index, n, one) for n, one in enumerate(details)]
        if "tool_arguments" in self._fields and isinstance(calls := delta.get("tool_calls"), list):
            changes["tool_calls"] = [self._call(index, n, call) for n, call in enumerate(calls)]
        return {**delta, **changes} if changes else delta

    def _detail(self, index: int, position: int, detail: Any) -> Any:
        if not isinstance(detail, dict) or not isinstance(detail.get("text"), str):
            return detail
        place = (index, "detail", _place(detail.get("index"), position))
        return {**detail, "text": self._new(place, detail["text"])}

    def _call(self, index: int, position: int, call: Any) -> Any:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
            return call
        place = (index, "call", _place(call.get("index"), position))
        if (id := call.get("id")) and id != self._calls.setdefault(place, id):
            self._calls[place] = id
            self._seen.pop(place, None)  # another call in the same place
        return {**call, "function": {**function, "arguments": self._new(place, function["arguments"])}}

    def _new(self, place: Any, text: str) -> str:
        seen = self._seen.get(place, "")
        if text.startswith(seen):
            self._seen[place] = text
            return text[len(seen) :]
        if seen.startswith(text):
            return ""  # the last chunk may leave out the white space at the end
        self._seen[place] = seen + text
        return text


class ThinkTagFilter:
    """`think_tags`: thoughts that stand in the text between tags become reasoning."""

    def __init__(self, tags: ThinkTagOptions) -> None:
        self._tags = tags
        self._splitters: dict[int, Splitter] = {}

    def feed(self, chunks: list[RawChunk]) -> list[RawChunk]:
        return [_changed(chunk, self._split) for chunk in chunks]

    def end(self) -> list[RawChunk]:
        ends = {index: splitter.end() for index, splitter in self._splitters.items()}
        return [
            {"choices": [{"index": index, "delta": _with({}, thought, text)}]}
            for index, (thought, text) in ends.items()
            if thought or text
        ]

    def _split(self, delta: Delta, index: int) -> Delta:
        splitter = self._splitters.get(index)
        if splitter is None:
            tags = self._tags
            splitter = self._splitters[index] = Splitter(tags.open, tags.close, tags.mode == "implicit_open")
        for said in _thoughts(delta):
            splitter.structured(said)
        content = delta.get("content")
        content = content if isinstance(content, str) else ""
        thought, text = splitter.feed(content)
        if _calls(delta):
            held = splitter.flush()
            thought, text = thought + held[0], text + held[1]
        if (thought, text) == ("", content):
            return delta
        return _with({name: value for name, value in delta.items() if name != "content"}, thought, text)


class TextToolCallFilter:
    """`call_marks`: calls that stand in the text become calls, each in a chunk of its own."""

    def __init__(self, tools: Tools) -> None:
        self._finder = TextToolCallParser(dict(_declared(tools)))

    def feed(self, chunks: list[RawChunk]) -> list[RawChunk]:
        return [one for chunk in chunks for one in self._split(chunk)]

    def end(self) -> list[RawChunk]:
        return [*map(_told, self._finder.end())]

    def _split(self, chunk: RawChunk) -> Iterator[RawChunk]:
        first = next((choice for choice in _choices(chunk) if not choice.get("index")), {})
        delta = first.get("delta")
        content = delta.get("content") if isinstance(delta, dict) else None
        if isinstance(delta, dict) and _calls(delta):  # the server does read calls
            yield from self.end()
        if not content or not isinstance(content, str) or (pieces := self._finder.feed(content)) == [content]:
            yield chunk
            return
        yield _changed(chunk, lambda delta, index: {**delta, "content": ""} if delta is first["delta"] else delta)
        yield from map(_told, pieces)


def _declared(tools: Tools) -> Iterator[tuple[str, Schema]]:
    """Yield the name and the parameters of each function among the tools; an operator may add tools of any form."""
    for tool in tools:
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if isinstance(function, Mapping) and isinstance(name := function.get("name"), str):
            parameters = function.get("parameters")
            yield name, parameters if isinstance(parameters, Mapping) else {}


def _told(piece: Piece) -> RawChunk:
    """Return the chunk that says this."""
    delta: Delta = {"content": piece}
    if isinstance(piece, TextReasoning):
        delta = {REASONING_FIELDS[0]: piece.text}
    elif isinstance(piece, TextToolCall):
        called = {"type": "function", "function": {"name": piece.name, "arguments": piece.arguments}}
        delta = {"tool_calls": [{**called, "id": piece.id} if piece.id else called]}
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


class BlankTextFilter:
    """`whitespace_only_content: drop`: blanks between thoughts and calls, of which no message should be made."""

    def __init__(self) -> None:
        self._open: set[int] = set()  # choices in which a message with text is open
        self._held: dict[int, str] = {}  # blanks that text may follow, in others

    def feed(self, chunks: list[RawChunk]) -> list[RawChunk]:
        return [_changed(chunk, self._drop) for chunk in chunks]

    def end(self) -> list[RawChunk]:
        return []

    def _drop(self, delta: Delta, index: int) -> Delta:
        kept = delta
        if _thoughts(delta):
            self._close(index)
        if (content := delta.get("content")) and index not in self._open:
            text = self._held.pop(index, "") + content if isinstance(content, str) else ""
            if text.isspace():
                self._held[index] = text
                kept = {name: value for name, value in delta.items() if name != "content"}
            else:
                self._open.add(index)
                kept = delta if text in ("", content) else {**delta, "content": text}
        if _calls(delta):
            self._close(index)
        return kept

    def _close(self, index: int) -> None:
        self._open.discard(index)
        self._held.pop(index, None)


class FinishReasonFilter:
    """`finish_map`: words of this server, in place of those that every reader knows."""

    def __init__(self, words: dict[str, str]) -> None:
        self._words = words

    def feed(self, chunks: list[RawChunk]) -> list[RawChunk]:
        return [self._translate(chunk) if _words_in(chunk) & self._words.keys() else chunk for chunk in chunks]

    def end(self) -> list[RawChunk]:
        return []

    def _translate(self, chunk: RawChunk) -> RawChunk:
        choices = [
            {**choice, "finish_reason": self._words.get(choice["finish_reason"], choice["finish_reason"])}
            if isinstance(choice, dict) and choice.get("finish_reason")
            else choice
            for choice in chunk["choices"]
        ]
        return {**chunk, "choices": choices}


class ReasoningAsMessageFilter:
    """`reasoning_only_as_message`: an answer of thoughts alone has the answer in them, so it is said once more."""

    def __init__(self) -> None:
        self._said: list[str] | None = []  # None: there is an answer
        self._reason: str | None = None

    def feed(self, chunks: list[RawChunk]) -> list[RawChunk]:
        for chunk in chunks:
            _changed(chunk, self._note)
            for word in _words_in(chunk):
                self._reason = word
        return chunks

    def end(self) -> list[RawChunk]:
        # What was cut off in the middle of a thought is no answer.
        if not self._said or self._reason is None or self._reason.lower() in FINISH:
            return []
        return [{"choices": [{"index": 0, "delta": {"content": "".join(self._said)}}]}]

    def _note(self, delta: Delta, index: int) -> Delta:
        content = delta.get("content")
        if _calls(delta) or delta.get("refusal") or (content.strip() if isinstance(content, str) else content):
            self._said = None
        if self._said is not None:
            self._said += _thoughts(delta)
        return delta


def _choices(chunk: RawChunk) -> list[dict[str, Any]]:
    choices = chunk.get("choices")
    return [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []


def _place(index: Any, otherwise: int) -> Any:
    """Return an index, as it is written, if it is one."""
    return index if isinstance(index, int | str) else otherwise


def _changed(chunk: RawChunk, change: Callable[[Delta, int], Delta]) -> RawChunk:
    """Return the chunk with its deltas changed, and the chunk itself where none is."""
    choices = chunk.get("choices")
    if not isinstance(choices, list):
        return chunk
    changed = [_changed_choice(choice, change) for choice in choices]
    return chunk if all(map(is_, changed, choices)) else {**chunk, "choices": changed}


def _changed_choice(choice: Any, change: Callable[[Delta, int], Delta]) -> Any:
    delta = choice.get("delta") if isinstance(choice, dict) else None
    if not isinstance(delta, dict):
        return choice
    changed = change(delta, _place(choice.get("index"), 0))
    return choice if changed is delta else {**choice, "delta": changed}


def _with(delta: Delta, thought: str, text: str) -> Delta:
    if thought:
        name = next((name for name in REASONING_FIELDS if delta.get(name)), REASONING_FIELDS[0])
        delta = {**delta, name: (delta.get(name) or "") + thought}
    return {**delta, "content": text} if text else delta


def _thoughts(delta: Delta) -> list[str]:
    """Return what a delta says under any of the names of reasoning, once."""
    for name in REASONING_FIELDS:
        if (said := delta.get(name)) and isinstance(said, str):
            return [said]
    details = delta.get("reasoning_details")
    return list(ReasoningDetails.texts(details)) if isinstance(details, list) else []


def _calls(delta: Delta) -> bool:
    return bool(delta.get("tool_calls") or delta.get("function_call"))


def _words_in(chunk: RawChunk) -> set[str]:
    reasons = (choice.get("finish_reason") for choice in _choices(chunk))
    return {reason for reason in reasons if reason and isinstance(reason, str)}


def _tags(options: ResponseOptions) -> ThinkTagOptions:
    tags = options.think_tags
    return (
        tags
        if isinstance(tags, ThinkTagOptions)
        else ThinkTagOptions(mode="implicit_open" if tags == "implicit_open" else "auto")
    )


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
