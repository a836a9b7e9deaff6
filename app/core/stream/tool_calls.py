"""
Assemble the tool calls of a Chat Completions stream.

Nothing identifies a tool call reliably: `index` may be missing, constant, or shifted; `id` may be missing, late, empty,
repeated, or new on every fragment; names come late or in pieces; arguments come whole, cut, or twice. The rules here
survive every server seen so far.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.core.stream.event_builder import EventBuilder, OpenCall
from app.core.stream.event_types import ToolBinding
from app.core.types.arguments import ArgumentsReader, ObjectReader
from app.core.types.chunk import CallFragment
from app.core.types.items import FUNCTION_CALL

MAX_CALL_ID = 64  # characters, by the spec
ORIGINAL_ID = "said_id"  # where an id that is longer is kept, of what the backend said


@dataclass(slots=True)
class _Assembly:
    """One call, from its first fragment on."""

    id: str | None = None
    name: str = ""
    extra: dict[str, Any] = field(default_factory=dict)
    pieces: list[str] = field(default_factory=list)  # of the arguments, as the backend writes them
    reader: ArgumentsReader = field(default_factory=ObjectReader)
    empty: bool = False  # so far there is an empty object, which is not told yet
    open: OpenCall | None = None
    ended: bool = False  # announced, and done
    suppressed: bool = False  # may not be made: nothing of it is shown

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)

    @property
    def closed(self) -> bool:
        return self.empty or self.reader.closed


class ToolCalls:
    """
    Feed it the `tool_calls` of each delta; the builder gets the calls.

    `callees` says what each function is to the client. `allowed` are the names that the model may call, None for any;
    a call of another, a second call where `parallel` is False, and a call of a hosted tool beyond the `hosted_left`
    ones (None: any number) is suppressed, and so are calls of `forbidden` functions: the constraint is hard, whatever
    the backend does. `call_ids` are those of this response so far, which no other call may have. `name_noise` is what
    may stand around the names of calls.
    """

    def __init__(
        self,
        builder: EventBuilder,
        callees: Mapping[str, ToolBinding],
        allowed: frozenset[str] | None = None,
        parallel: bool = True,
        hosted_left: int | None = None,
        forbidden: Collection[str] = frozenset(),
        call_ids: set[str] | None = None,
        name_noise: Sequence[re.Pattern[str]] = (),
    ) -> None:
        self._name_noise = name_noise
        self._builder = builder
        self._callees = callees
        self._allowed = allowed
        self._parallel = parallel
        self._calls: list[_Assembly] = []
        self._by_index: dict[int, _Assembly] = {}
        self._ids: set[str] = set() if call_ids is None else call_ids
        self._hosted_left = hosted_left
        self._not_allowed = forbidden
        self.waits = False  # is there an empty object that may not be meant?

    def __bool__(self) -> bool:
        return bool(self._calls)

    @property
    def bindings(self) -> Mapping[str, ToolBinding]:
        """What each function is to the client, by the backend's name for it."""
        return self._callees

    @property
    def cut(self) -> bool:
        """Whether a call is open whose arguments stop in the middle."""
        return any(
            call.open and not call.ended and call.reader.cut(call.arguments, broken=False) for call in self._calls
        )

    def feed(self, fragments: Iterable[CallFragment]) -> None:
        """Take the `tool_calls` of one delta."""
        for fragment in fragments:
            function = fragment["function"]
            name, id = function.get("name") or None, fragment.get("id") or None
            arguments = function.get("arguments") or ""
            call = self._find(fragment.get("index"), id, name, arguments)
            if upstream := fragment.get("upstream"):
                call.extra |= upstream
            self._identify(call, id, name)
            self._extend(call, arguments)

    def feed_arguments(self, fragment: CallFragment, pieces: Iterable[str]) -> None:
        """Take pieces of arguments, of deltas that are like the fragment in all else."""
        for piece in pieces:
            self.feed(({**fragment, "function": {"arguments": piece}},))

    def end(self, *, cut: bool = False) -> None:
        """
        Announce and close what there is.

        `cut`: the answer was cut short, so a call whose arguments have not closed is left open, for the builder to
        end as incomplete. An answer that ended well completes the rest.
        """
        for call in self._calls:
            if not call.ended:
                self._announce(call)
            self.settle()
            if call.open is None or call.ended:
                continue
            last = call.open.index in (None, len(self._builder.response["output"]) - 1)
            if call.reader.cut(call.arguments, broken=cut and last):
                self._tell(call, call.reader.held())
            else:
                self._finish(call)

    def settle(self) -> None:
        """Nothing has followed the empty objects that are there, so they were meant."""
        self.waits = False
        for call in self._calls:
            if call.empty and call.open:
                call.empty = False
                self._tell(call, call.reader.feed("{}"))
                self._finish(call)

    def _find(self, index: int | None, id: str | None, name: str | None, arguments: str) -> _Assembly:
        """Find the call that a fragment belongs to, or begin a new one."""
        if index is not None and (call := self._by_index.get(index)):
            return self._begin(index) if _another(call, id, name, arguments) else call
        last = self._calls[-1] if self._calls else None
        if id and (call := self._known(id)):
            if index is None:
                again = not name or not call.closed or arguments in ("", call.arguments)
            else:  # some tell a call under one index, and its arguments, or all of it again, under another
                again = not name or (name == call.name and bool(arguments) and call.arguments in ("", arguments))
            if index is not None and again:
                self._by_index[index] = call
            return call if again else self._begin(index)
        if last and name == last.name and not id and index is None and last.pieces and not last.closed:
            return last  # the name is repeated with each piece
        if last and not name and (not id or (index is None and last.id is None)):
            if index is not None:
                self._by_index[index] = last  # the index has shifted between name and arguments
            return last
        return self._begin(index)

    def _known(self, id: str) -> _Assembly | None:
        return next((call for call in reversed(self._calls) if call.id == id), None)

    def _begin(self, index: int | None) -> _Assembly:
        if self._calls:
            self._announce(self._calls[-1])
            self.settle()
        call = _Assembly()
        self._calls.append(call)
        if index is not None:
            self._by_index[index] = call
        return call

    def _identify(self, call: _Assembly, id: str | None, name: str | None) -> None:
        if call.open is None and name and name != call.name and not (call.name and call.pieces):
            grown = name.startswith(call.name) and name in self._callees  # some servers repeat what there was of it
            call.name = name if grown else call.name + name
        if call.id is None and id:
            call.id = id

    def _extend(self, call: _Assembly, arguments: str) -> None:
        if call.empty and arguments.lstrip()[:1] == "{":
            call.empty = False  # bridges begin with an empty object, and then send the real one
            call.pieces.clear()
        if arguments and not (call.empty or call.reader.closed):
            if not call.pieces and len(arguments) < _SHORT and arguments.strip() in _EMPTY:
                call.empty = self.waits = True
            else:
                self._tell(call, call.reader.feed(arguments))
            call.pieces.append(arguments)
        if call.name and call.open is None and (call.pieces or (call.id and self._is_whole(call.name))):
            self._announce(call)
        if call.open and call.reader.closed and not call.ended:
            self._finish(call)

    def _is_whole(self, name: str) -> bool:
        """Whether a name can be announced before its arguments begin: it is known, and not the start of another."""
        return name in self._callees and not any(other != name and other.startswith(name) for other in self._callees)

    def _announce(self, call: _Assembly) -> None:
        if call.open or call.suppressed or not call.name:
            return
        name = self._offered(call.name)
        others = any(other is not call and (other.open or other.ended) for other in self._calls)
        callee = self._callees.get(name) or ToolBinding(FUNCTION_CALL, {"name": name})
        forbidden = name in self._not_allowed or (self._allowed is not None and name not in self._allowed)
        if forbidden or (others and not self._parallel) or (callee.hosted and not self._take_hosted()):
            call.suppressed = True
            return
        said = {ORIGINAL_ID: call.id} if call.id and len(call.id) > MAX_CALL_ID else {}
        call.open = self._builder.call(self._call_id(call.id), callee, **call.extra, **said)
        call.reader = callee.kind.reader()
        for piece in () if call.empty else call.pieces:  # those that came before it could be announced
            self._tell(call, call.reader.feed(piece))

    def _take_hosted(self) -> bool:
        """Count a call that the server is to run; tell whether it may be made."""
        if self._hosted_left is None:
            return True
        self._hosted_left -= 1
        return self._hosted_left >= 0

    def _tell(self, call: _Assembly, text: str) -> None:
        if call.open and text:
            self._builder.arguments(call.open, text)

    def _finish(self, call: _Assembly) -> None:
        assert call.open
        self._tell(call, call.reader.end())
        self._builder.close_call(call.open)
        call.ended = True

    def _offered(self, name: str) -> str:
        """Return the name of a function on offer that is left when the noise around it is cut off, or the name."""
        bare = name
        for noise in self._name_noise:
            if bare in self._callees:
                break
            bare = noise.sub("", bare).strip()
        return bare if bare in self._callees else name

    def _call_id(self, id: str | None) -> str:
        """Return an id that is there, unique in this response, and not too long."""
        if id and len(id) > MAX_CALL_ID:
            id = f"call_{hashlib.sha256(id.encode()).hexdigest()[:40]}"
        if not id or id in self._ids:
            id = self._builder.new_id("call")
        self._ids.add(id)
        return id


def _another(call: _Assembly, id: str | None, name: str | None, arguments: str) -> bool:
    """Whether a fragment under a known index begins another call: gateways give every call the index 0."""
    if not (name and call.name):
        return False
    if id and call.id and id != call.id:
        return True
    if not call.closed:
        return False
    # Without ids, other arguments tell of another call of the same name; the same ones are only sent again.
    return name != call.name or (not (id and call.id) and arguments.lstrip()[:1] == "{" and arguments != call.arguments)


# What stands for no arguments: an encoder of Go writes `null` for them, one of PHP a list.
_EMPTY = frozenset({"{}", "null", "[]"})
_SHORT = 16  # characters; whatever is longer has more than blanks around these
