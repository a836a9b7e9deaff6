"""
Assemble tool calls from deltas.

Nothing identifies a tool call reliably: `index` can be missing, constant, or shifted; `id` can be missing, late, empty,
repeated, or new on every fragment; names arrive late or in pieces; arguments arrive whole, in pieces, or twice.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from app.core.items import FUNCTION_CALL
from app.core.items.arguments import ArgumentsReader, ObjectReader
from app.core.stream.event_builder import EventBuilder
from app.core.stream.event_types import OpenCall, ToolBinding
from app.core.types import JSONObject, frozen
from app.core.types.deltas import ToolCallDelta

MAX_CALL_ID = 64  # characters, by the spec
ORIGINAL_ID = "original_id"  # the upstream field for a longer id
ORIGINAL_ID_V1 = "said_id"  # its name in turns from earlier versions


@dataclass(slots=True)
class _Assembly:
    id: str | None = None
    name: str = ""
    extra: JSONObject = field(default_factory=dict)
    begun: bool = False
    pieces: list[str] = field(default_factory=list)  # argument pieces, until the call is opened
    reader: ArgumentsReader = field(default_factory=ObjectReader)
    empty: bool = False  # the arguments are an unemitted empty object
    open: OpenCall | None = None
    ended: bool = False
    suppressed: bool = False  # not permitted

    @property
    def closed(self) -> bool:
        return self.empty or self.reader.closed

    def equals(self, arguments: str) -> bool:
        if self.open is None:
            return arguments == "".join(self.pieces)
        if _is_empty(arguments):
            arguments = "{}"
        if self.empty:
            return arguments == "{}"
        reader = self.open.kind.reader()
        return reader.feed(arguments) + reader.end() == self.open.written


@frozen
class CallRules:
    """Rules for an answer's calls, enforced regardless of the backend."""

    bindings: Mapping[str, ToolBinding] = field(default_factory=dict)  # by the backend's function names
    allowed: frozenset[str] | None = None  # function names; None: any
    parallel: bool = True
    name_noise: Sequence[re.Pattern[str]] = ()  # characters that models add around names
    forbidden: Collection[str] = frozenset()  # function names, even if allowed
    max_hosted: float = math.inf  # hosted calls, after earlier ones in the response
    ids: set[str] = field(default_factory=set)  # all call ids in the response, updated with this answer's


class ToolCalls:
    """Assembles calls, and writes permitted calls to the builder."""

    def __init__(self, builder: EventBuilder, rules: CallRules) -> None:
        self.bindings = rules.bindings
        self._rules = rules
        self._builder = builder
        self._calls: list[_Assembly] = []
        self._by_index: dict[int, _Assembly] = {}
        self._hosted_left = rules.max_hosted
        self.has_pending_empty = False  # real arguments can still replace a call's empty object

    @property
    def cut(self) -> bool:
        begun = (call for call in self._calls if not call.ended)
        return any(call.reader.cut(call.open.pieces, broken=False) for call in begun if call.open)

    def feed(self, delta: ToolCallDelta) -> None:
        pieces = iter(delta.arguments or ("",))
        call = self._find(delta.index, delta.id, delta.name, delta.arguments[0] if delta.arguments else "")
        if delta.provider_fields:
            call.extra |= delta.provider_fields
        if (name := delta.name) and call.open is None and name != call.name and not (call.name and call.begun):
            grown = name.startswith(call.name) and name in self.bindings  # some servers repeat the name so far
            call.name = name if grown else call.name + name
        if call.id is None and delta.id:
            call.id = delta.id
        while call.open is None or call.empty or not call.begun:
            if (piece := next(pieces, None)) is None:
                return
            self._extend(call, piece)
        self._continue(call, call.open, pieces)

    def end(self, *, cut: bool = False) -> None:
        """`cut`: the answer was truncated, so calls with incomplete arguments stay open, for the builder to end."""
        for call in self._calls:
            if not call.ended:
                self._announce(call)
            self.settle()
            if call.open is None or call.ended:
                continue
            last = call.open.index in (None, len(self._builder.response["output"]) - 1)
            if call.reader.cut(call.open.pieces, broken=cut and last):
                self._write_arguments(call, call.reader.held())
            else:
                self._finish(call)

    def settle(self) -> None:
        """Accept empty objects as arguments, because no real arguments followed."""
        self.has_pending_empty = False
        for call in self._calls:
            if call.empty and call.open:
                call.empty = False
                self._write_arguments(call, call.reader.feed("{}"))
                self._finish(call)

    def _find(self, index: int | None, call_id: str | None, name: str | None, arguments: str) -> _Assembly:
        if index is not None and (call := self._by_index.get(index)):
            return self._new_call(index) if _starts_another(call, call_id, name, arguments) else call
        last = self._calls[-1] if self._calls else None
        if call_id and (call := next((call for call in reversed(self._calls) if call.id == call_id), None)):
            if index is None:
                again = not name or not call.closed or not arguments or call.equals(arguments)
            else:  # some servers repeat a call, or send its arguments, under another index
                again = not name or (
                    name == call.name and bool(arguments) and (not call.begun or call.equals(arguments))
                )
            if index is not None and again:
                self._by_index[index] = call
            return call if again else self._new_call(index)
        if last and name == last.name and not call_id and index is None and last.begun and not last.closed:
            return last  # this server repeats the name with each piece
        if last and not name and (not call_id or (index is None and last.id is None)):
            if index is not None:
                self._by_index[index] = last  # the index changed between name and arguments
            return last
        return self._new_call(index)

    def _new_call(self, index: int | None) -> _Assembly:
        if self._calls:
            self._announce(self._calls[-1])
            self.settle()
        call = _Assembly()
        self._calls.append(call)
        if index is not None:
            self._by_index[index] = call
        return call

    def _extend(self, call: _Assembly, arguments: str) -> None:
        if call.empty and arguments.lstrip()[:1] == "{":
            call.empty = call.begun = False  # some bridges send an empty object before the real arguments
            call.pieces.clear()
        if arguments and not (call.empty or call.reader.closed):
            if call.name and call.open is None:
                self._announce(call)  # first, so that only the function's reader parses the arguments
            if not call.begun and _is_empty(arguments):
                call.empty = self.has_pending_empty = True
            else:
                self._write_arguments(call, call.reader.feed(arguments))
            call.begun = True
            if call.open is None:
                call.pieces.append(arguments)
        if call.name and call.open is None and (call.begun or (call.id and self._is_complete(call.name))):
            self._announce(call)
        if call.open and call.reader.closed and not call.ended:
            self._finish(call)

    def _continue(self, call: _Assembly, open_: OpenCall, pieces: Iterable[str]) -> None:
        reader, texts = call.reader, []
        for piece in pieces:
            if reader.closed:
                break
            if text := reader.feed(piece):
                texts.append(text)
        if texts:
            self._builder.arguments(open_, *texts)
        if reader.closed and not call.ended:
            self._finish(call)

    def _is_complete(self, name: str) -> bool:
        return name in self.bindings and not any(other != name and other.startswith(name) for other in self.bindings)

    def _announce(self, call: _Assembly) -> None:
        if call.open or call.suppressed or not call.name:
            return
        name = self._without_noise(call.name)
        others = any(other is not call and (other.open or other.ended) for other in self._calls)
        binding = self.bindings.get(name) or ToolBinding(FUNCTION_CALL, {"name": name})
        allowed = self._rules.allowed
        forbidden = name in self._rules.forbidden or (allowed is not None and name not in allowed)
        call.suppressed = forbidden or (others and not self._rules.parallel)
        if binding.hosted and not call.suppressed:
            self._hosted_left -= 1
            call.suppressed = self._hosted_left < 0
        if call.suppressed:
            return
        original = {ORIGINAL_ID: call.id} if call.id and len(call.id) > MAX_CALL_ID else {}
        call.open = self._builder.call(self._call_id(call.id), binding, **call.extra, **original)
        call.reader = binding.kind.reader()
        for piece in () if call.empty else call.pieces:
            self._write_arguments(call, call.reader.feed(piece))
        call.pieces.clear()

    def _write_arguments(self, call: _Assembly, text: str) -> None:
        if call.open and text:
            self._builder.arguments(call.open, text)

    def _finish(self, call: _Assembly) -> None:
        assert call.open
        self._write_arguments(call, call.reader.end())
        self._builder.close_call(call.open)
        call.ended = True

    def _without_noise(self, name: str) -> str:
        bare = name
        for noise in self._rules.name_noise:
            if bare in self.bindings:
                break
            bare = noise.sub("", bare).strip()
        return bare if bare in self.bindings else name

    def _call_id(self, call_id: str | None) -> str:
        """The backend's id if nonempty, unique and within the limit, otherwise another."""
        if call_id and len(call_id) > MAX_CALL_ID:
            call_id = f"call_{hashlib.sha256(call_id.encode()).hexdigest()[:40]}"
        if not call_id or call_id in self._rules.ids:
            call_id = self._builder.new_id("call")
        self._rules.ids.add(call_id)
        return call_id


def _starts_another(call: _Assembly, call_id: str | None, name: str | None, arguments: str) -> bool:
    """Some gateways send index 0 for every call."""
    if not (name and call.name):
        return False
    if call_id and call.id and call_id != call.id:
        return True
    if not call.closed:
        return False
    # Without ids, equal arguments are a repetition.
    return name != call.name or (
        not (call_id and call.id) and arguments.lstrip()[:1] == "{" and not call.equals(arguments)
    )


# Encodings of empty arguments: Go writes `null`, PHP a list.
_EMPTY = frozenset({"{}", "null", "[]"})
_SHORT = 16  # characters


def _is_empty(arguments: str) -> bool:
    return len(arguments) < _SHORT and arguments.strip() in _EMPTY
