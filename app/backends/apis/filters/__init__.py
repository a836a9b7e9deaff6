"""Delta filters, enabled by profile options; they may hold text back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from app.backends.apis.filters.text_tool_calls import (
    DELIMITERS,
    DROPPED,
    FIRST_CHARACTERS,
    LONGEST_OPENING,
    OPENINGS,
)
from app.core.profile import Profile, ThinkTagOptions
from app.core.stream.reasoning_fields import ReasoningDetails
from app.core.types import JSONMapping, json_list
from app.core.types.deltas import (
    Delta,
    Finished,
    FinishReason,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCallDelta,
)

_TRUNCATED = (FinishReason.LENGTH, FinishReason.CONTENT_FILTER, FinishReason.ERROR)


class Filter:
    def feed(self, deltas: list[Delta]) -> list[Delta]:
        return [changed for delta in deltas for changed in self._change(delta)]

    def end(self) -> list[Delta]:
        return []

    def _change(self, delta: Delta) -> list[Delta]:
        return [delta]


def filters(profile: Profile, request: JSONMapping) -> list[Filter]:
    options = profile.response
    found: list[Filter] = []
    if options.cumulative:
        found.append(CumulativeDeltaFilter([*options.cumulative]))
    if (tags := options.think_tags) != "off":
        found.append(ThinkTagFilter(tags if isinstance(tags, ThinkTagOptions) else ThinkTagOptions(mode=tags)))
    if options.whitespace_only_content == "drop":
        found.append(BlankTextFilter())
    if options.reasoning_only_as_message:
        found.append(ReasoningAsMessageFilter())
    if options.call_marks == "auto":
        found.append(TextToolCallFilter(request))
    return found


class CumulativeDeltaFilter(Filter):
    """`cumulative`: fields repeat earlier text in every delta."""

    def __init__(self, fields: list[str]) -> None:
        self._fields = set(fields)
        self._seen: dict[object, str] = {}
        self._calls: dict[object, str] = {}  # call id by index

    def _change(self, delta: Delta) -> list[Delta]:
        if isinstance(delta, TextDelta) and "content" in self._fields:
            texts = self._new_texts("content", delta.texts)
            return [TextDelta(texts, delta.logprobs)] if texts else []
        if isinstance(delta, ReasoningDelta) and "reasoning" in self._fields:
            return self._reasoning(delta)
        if isinstance(delta, ToolCallDelta) and "tool_arguments" in self._fields:
            key = ("call", delta.index)
            if delta.id and delta.id != self._calls.setdefault(key, delta.id):
                self._calls[key] = delta.id
                self._seen.pop(key, None)  # another call at the same index
            arguments = self._new_texts(key, delta.arguments)
            return [ToolCallDelta(delta.index, delta.id, delta.name, arguments, delta.provider_fields)]
        return [delta]

    def _reasoning(self, delta: ReasoningDelta) -> list[Delta]:
        if delta.fragments is None:
            texts = self._new_texts(delta.field, delta.texts)
            return [ReasoningDelta(texts, delta.field)] if texts else []
        fragments = [self._fragment(position, each) for position, each in enumerate(delta.fragments)]
        texts = [*ReasoningDetails.texts(fragments)] if delta.texts else []
        return [ReasoningDelta(texts, delta.field, fragments, delta.joiner)]

    def _fragment(self, position: int, fragment: object) -> object:
        if not isinstance(fragment, dict) or not isinstance(fragment.get("text"), str):
            return fragment
        index = fragment.get("index")
        key = ("fragment", index if isinstance(index, int | str) else position)
        return {**fragment, "text": self._new(key, fragment["text"])}

    def _new_texts(self, key: object, texts: list[str]) -> list[str]:
        return [new for text in texts if (new := self._new(key, text))]

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
    """
    `think_tags`: text between tags, for example `<think>`, at the start of the answer becomes reasoning.

    With `implicit_open`, the opening tag is in the prompt. If the server also sends reasoning in a separate field, tags
    stay in the text unless they only repeat this field.
    """

    def __init__(self, tags: ThinkTagOptions) -> None:
        self._open, self._close, self._implicit = tags.open, tags.close, tags.mode == "implicit_open"
        self._held = ""  # possibly the start of a tag
        self._structured: list[str] = []  # reasoning in a separate field
        # undecided: only white space or the start of a tag so far; outside: after a closing tag, or without tags;
        # repeated: after reasoning in a separate field, which the text may repeat.
        self._state: Literal["undecided", "inside", "outside", "repeated"] = "undecided"

    def end(self) -> list[Delta]:
        held, self._held = self._held, ""
        inside = self._state == "inside" or (self._implicit and self._state == "undecided")
        self._state = "inside" if inside else "outside"
        return _split(held, "") if inside else _split("", held)

    def _change(self, delta: Delta) -> list[Delta]:
        if isinstance(delta, TextDelta):
            return [part for text in delta.texts for part in _split(*self._parts(text), delta)]
        if isinstance(delta, ReasoningDelta):
            self._structured += delta.texts
            if delta.texts and self._state == "undecided":
                self._state = "repeated"
        elif isinstance(delta, ToolCallDelta):
            return [*self.end(), delta]
        return [delta]

    def _parts(self, text: str) -> tuple[str, str]:
        """Reasoning, and the text after it."""
        text, self._held = self._held + text, ""
        if self._state == "repeated":
            return self._repeated(text)
        if self._state == "undecided":
            bare = text.lstrip()
            if bare.startswith(self._open):
                self._state, text = "inside", bare[len(self._open) :]
            elif self._open.startswith(bare):
                self._held = text
                return "", ""
            else:
                self._state = "inside" if self._implicit else "outside"
        if self._state == "outside":
            return "", text
        thought, tag, rest = text.partition(self._close)
        if tag:
            self._state = "outside"
            return thought, rest
        certain = len(text) - overlap(text, self._close)
        self._held = text[certain:]
        return text[:certain], ""

    def _repeated(self, text: str) -> tuple[str, str]:
        bare = text.lstrip()
        if self._open.startswith(bare):
            self._held = text
            return "", ""
        thought, tag, rest = bare.removeprefix(self._open).partition(self._close)
        if not tag:
            thought = thought[: len(thought) - overlap(thought, self._close)]
        self._structured = ["".join(self._structured)]
        if not bare.startswith(self._open) or not self._structured[0].strip().startswith(thought.strip()):
            self._state = "outside"
            return "", text
        if not tag:
            self._held = text
            return "", ""
        self._state = "outside"
        return "", rest


def _split(thought: str, text: str, delta: TextDelta | None = None) -> list[Delta]:
    deltas: list[Delta] = [ReasoningDelta([thought])] if thought else []
    return [*deltas, TextDelta([text], delta.logprobs if delta else None)] if text else deltas


class TextToolCallFilter(Filter):
    """
    `call_marks`: tool calls in the text become calls, for servers without a parser for their model's chat template.

    Text between delimiters becomes calls only if it can be parsed completely and names a declared function.
    """

    def __init__(self, request: JSONMapping) -> None:
        self._functions = dict(_declared(request.get("tools")))
        self._held = ""  # possibly the start of a delimiter
        self._opening = ""  # the open delimiter, a key in `DELIMITERS`
        self._body: list[str] = []  # text since the open delimiter
        self._blanks = ""  # dropped with the delimiter
        self._after_call = False

    def end(self) -> list[Delta]:
        held, self._held = self._held, ""
        if self._opening:
            return self._close(held, "")  # servers may omit the last delimiter
        return [TextDelta([held])] if held and not (self._after_call and held.isspace()) else []

    def _change(self, delta: Delta) -> list[Delta]:
        if isinstance(delta, ToolCallDelta):  # the server parses calls itself
            return [*self.end(), delta]
        if not isinstance(delta, TextDelta):
            return [delta]
        changed: list[Delta] = []
        for text in delta.texts:
            parsed: list[Delta] = []
            rest, self._held = self._held + text, ""
            while rest:
                rest = self._inside(rest, parsed) if self._opening else self._outside(rest, parsed)
            if delta.logprobs and parsed == [TextDelta([text])]:
                parsed = [TextDelta([text], delta.logprobs)]
            changed += parsed
        return changed

    def _outside(self, text: str, deltas: list[Delta]) -> str:
        match = OPENINGS.search(text)
        if match:
            before = text[: match.start()]
        else:
            end = text[-LONGEST_OPENING:]
            possible = any(character in end for character in FIRST_CHARACTERS)
            held = max(overlap(end, opening) for opening in (*DELIMITERS, *DROPPED)) if possible else 0
            before = text[: len(text) - held].rstrip()
            self._held = text[len(before) :]
        if self._after_call and not before.isspace():
            before = before.lstrip()
        if match:
            before, self._blanks = before.rstrip(), before[len(before.rstrip()) :]
        if before:
            self._after_call = False
            deltas.append(TextDelta([before]))
        if match is None:
            return ""
        self._opening = match[0] if match[0] in DELIMITERS else ""
        return text[match.end() :]

    def _inside(self, text: str, deltas: list[Delta]) -> str:
        closing, _ = DELIMITERS[self._opening]
        before, found, rest = text.partition(closing) if closing else (text, "", "")
        if found:
            deltas += self._close(before, closing)
            return rest
        certain = len(text) - overlap(text, closing)
        self._body.append(text[:certain])
        self._held = text[certain:]
        return ""

    def _close(self, last: str, closing: str) -> list[Delta]:
        opening, body = self._opening, "".join([*self._body, last])
        self._opening, self._body = "", []
        _, read = DELIMITERS[opening]
        try:
            parsed = [*read(body, self._functions)]
        except ValueError:
            parsed = []
        self._after_call = bool(parsed)
        unparsed = TextDelta([self._blanks + opening + body + closing])
        return [delta for delta in parsed or [unparsed] if delta != _NO_TEXT]


_NO_TEXT = TextDelta([""])


def _declared(tools: object) -> Iterator[tuple[str, JSONMapping]]:
    """Parameter schemas by function name. Operators can add tools in any form."""
    for tool in json_list(tools):
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if isinstance(function, Mapping) and isinstance(name := function.get("name"), str):
            parameters = function.get("parameters", function.get("input_schema"))
            yield name, parameters if isinstance(parameters, Mapping) else {}


class BlankTextFilter(Filter):
    """`whitespace_only_content: drop`: drops blank text between reasoning and calls, which would become a message."""

    def __init__(self) -> None:
        self._open = False
        self._held = ""  # white space, if text follows

    def _change(self, delta: Delta) -> list[Delta]:
        if isinstance(delta, ReasoningDelta | ToolCallDelta):
            self._open, self._held = False, ""
        if self._open or not isinstance(delta, TextDelta):
            return [delta]
        text = self._held + "".join(delta.texts)
        if text.isspace():
            self._held = text
            return []
        self._open = True
        if not self._held:
            return [delta]
        first, *rest = delta.texts
        held, self._held = self._held, ""
        return [TextDelta([held + first, *rest], delta.logprobs)]


class ReasoningAsMessageFilter(Filter):
    """`reasoning_only_as_message`: repeats an answer with only reasoning as text."""

    def __init__(self) -> None:
        self._reasoning: list[str] | None = []  # None after other output
        self._reason: FinishReason | None = None

    def end(self) -> list[Delta]:
        # Truncated reasoning is not an answer.
        if not self._reasoning or self._reason is None or self._reason in _TRUNCATED:
            return []
        return [TextDelta(["".join(self._reasoning)])]

    def _change(self, delta: Delta) -> list[Delta]:
        if isinstance(delta, Finished):
            self._reason = delta.reason
        elif isinstance(delta, ReasoningDelta):
            if self._reasoning is not None:
                self._reasoning += delta.texts
        elif isinstance(delta, ToolCallDelta | RefusalDelta) or (
            isinstance(delta, TextDelta) and any(map(str.strip, delta.texts))
        ):
            self._reasoning = None
        return [delta]


def overlap(text: str, tag: str) -> int:
    """Length of a possible start of `tag` at the end of `text`."""
    return next((length for length in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:length])), 0)
