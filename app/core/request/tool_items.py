"""
Convert all call and output types to function calls and outputs, and pair them.

All calls from one model answer (a *round*) become one message, followed by all results. Call ids get a form accepted by
the backend.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import string
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from operator import itemgetter

from app.core.items import ITEM_TYPES, MCP_APPROVAL_REQUEST
from app.core.items.readings import NOTES, Names
from app.core.stream.tool_calls import MAX_CALL_ID, ORIGINAL_ID, ORIGINAL_ID_V1
from app.core.types import json_object
from app.core.types.request import Item
from app.errors import InvalidRequest, Warnings, quote

_TYPE = itemgetter("type")
_CONVERTED = frozenset(row.type for row in ITEM_TYPES.values() if row.read)
_NO_NOTES: Mapping[str, object] = {}
_MODEL_ROLES = frozenset({"call", "hosted", "reasoning"})


def tool_items_as_functions(
    items: Sequence[Item],
    names: Names,
    upstream: Mapping[str, Mapping[str, object]],
    is_native: Callable[[Item], bool] = lambda item: False,
) -> tuple[Sequence[Item], Sequence[int]]:
    """
    Converted items, each with its position in `items`.

    `upstream` holds notes by item id. Native items stay unchanged.
    """
    if _CONVERTED.isdisjoint(map(_TYPE, items)):  # most conversations
        return items, range(len(items))
    notes: list[Mapping[str, object]] = [
        json_object(upstream.get(str(item.get("id")), _NO_NOTES).get(NOTES)) for item in items
    ]
    _add_decisions(items, notes)
    rounds = _rounds(items, notes)
    result: list[Item] = []
    positions: list[int] = []
    outputs: list[tuple[Item, int]] = []  # the current round's results, with positions
    for position, item in enumerate(items):
        read = row.read if (row := ITEM_TYPES.get(item["type"])) else None
        converted = read(item, names, notes[position]) if read and not is_native(item) else [item]
        split = len(converted) > 1 and position in rounds
        result += converted[:1] if split else converted
        positions += [position] * (1 if split else len(converted))
        outputs += [(output, position) for output in converted[1:]] if split else ()
        if outputs and rounds.get(position, position) == position:
            result += [output for output, _ in outputs]
            positions += [at for _, at in outputs]
            outputs = []
    return result, positions


def _add_decisions(items: Sequence[Item], notes: list[Mapping[str, object]]) -> None:
    """
    Note each approval request's decision, and whether its call was made.

    If the model was queried before the decision, the approval response's notes contain it: earlier turns' prompts must
    not change.
    """
    requests = {item.get("id"): at for at, item in enumerate(items) if item["type"] == "mcp_approval_request"}
    if not requests:
        return
    made = {item.get("approval_request_id") for item in items if item["type"] == "mcp_call"}
    responses: dict[object, int] = {}
    for position, item in enumerate(items):
        if item["type"] == "mcp_approval_response":
            responses.setdefault(item.get("approval_request_id"), position)
    by_model = [False, *map(_is_by_model, items)]
    starts = (now and not before for before, now in itertools.pairwise(by_model))
    answer_of = [*itertools.accumulate(starts)]  # the number of the model's answer, by position
    for item_id, position in requests.items():
        response = responses.get(item_id, position)
        late = answer_of[response] > answer_of[position]
        decided = None if response == position or late else items[response]
        notes[position] = {**notes[position], "made": item_id in made and not late, "decided": decided}
        if late and item_id not in made:
            notes[response] = {**notes[response], "request": items[position]}


def _rounds(items: Sequence[Item], notes: Sequence[Mapping[str, object]]) -> dict[int, int]:
    """Positions in a round, mapped to the position of its last call."""
    last: dict[int, int] = {}
    if not any(notes):
        return last
    current: tuple[int, object] | None = None  # position and number
    for position, item in enumerate(items):
        round_number = notes[position].get("round")
        if round_number is not None and current and current[1] == round_number:
            last.update(dict.fromkeys(range(current[0], position + 1), position))
        elif round_number is not None:
            current = (position, round_number)
            last[position] = position
        elif not _is_by_model(item):
            current = None
    return last


def _is_by_model(item: Item) -> bool:
    if item["type"] == "message":
        return bool(item.get("role") == "assistant")
    row = ITEM_TYPES.get(item["type"])
    return row is not None and (row.role in _MODEL_ROLES or row is MCP_APPROVAL_REQUEST)


_CALLS = frozenset({"function_call", "custom_tool_call"})  # custom calls only if the server supports them
_CALLS_AND_OUTPUTS = _CALLS | {"function_call_output"}


class PairedCalls:
    """
    A conversation's pairs of calls and outputs, by position.

    An output answers the last unanswered call with its id before it, otherwise the first after it: some clients send
    results first.
    """

    def __init__(self, items: Sequence[Item]) -> None:
        self._items = items
        self.outputs: dict[int, int] = {}  # by call position
        self.callers: dict[int, int] = {}  # by output position
        self.late: set[int] = set()  # asynchronous calls with an output after further messages
        if _CALLS_AND_OUTPUTS.isdisjoint(map(_TYPE, items)):
            return
        unanswered: dict[str, int] = {}
        early: dict[str, deque[int]] = {}
        answered: set[str] = set()
        for position, item in enumerate(items):
            if (type_ := item["type"]) in _CALLS:
                call_id = item["call_id"]
                if early and (earlier := early.get(call_id)):
                    self.outputs[position] = output = earlier.popleft()
                    self.callers[output] = position
                else:
                    unanswered[call_id] = position
            elif type_ == "function_call_output":
                call_id = item["call_id"]
                if (call := unanswered.pop(call_id, None)) is not None:
                    self.outputs[call] = position
                    self.callers[position] = call
                    answered.add(call_id)
                elif call_id not in answered:
                    early.setdefault(call_id, deque()).append(position)
        if pending := [call for call in self.outputs if items[call].get("async") is True]:
            messages = [*itertools.accumulate(item["type"] == "message" for item in items)]
            self.late = {call for call in pending if messages[self.outputs[call]] > messages[call]}

    @cached_property
    def _answers(self) -> dict[str, list[int]]:
        answers: dict[str, list[int]] = {}
        for call, item in enumerate(self._items):
            if item["type"] in _CALLS:
                of_call = answers.setdefault(item["call_id"], [])
                if (output := self.outputs.get(call)) is not None:
                    of_call.append(output)
        return answers

    def introduction(self, position: int, warnings: Warnings) -> str:
        """
        The first sentence of a user message with a late or unpaired output; "" if unnecessary.

        A call's second, different output can be a correction, so both are sent.
        """
        output = self._items[position]
        if position in self.callers:
            return f"Result of the tool call {quote(output['call_id'])}:"
        answers = self._answers.get(output["call_id"])
        if any(self._items[answer].get("output") == output.get("output") for answer in answers or ()):
            return ""
        name = quote(output["call_id"])
        if answers is not None:
            warnings.add(f"The call {name} has more than one output; later outputs were sent as messages.")
            return f"Another result of the tool call {name}:"
        warnings.add(f"The output of {name} matches no call in this conversation; it was sent as a message.")
        return f"Result of the tool call {name}, which is not in this conversation:"


_NO_OUTPUT = "(no output)"
_OUTPUT_LATER = "(Still running. The result follows later.)"


def missing_output(call: Item, warnings: Warnings, *, strict: bool) -> str:
    """Text for a missing output; raises `InvalidRequest` if `strict`, as OpenAI does."""
    if call.get("async") is True:
        return _OUTPUT_LATER
    name = quote(call["call_id"])
    if strict:
        raise InvalidRequest(f"No tool output found for function call {name}.", param="input", code="invalid_value")
    warnings.add(f"The call {name} has no output; '{_NO_OUTPUT}' was sent instead.")
    return _NO_OUTPUT


VERBATIM = "verbatim"

_ALPHABETS = (
    string.digits + string.ascii_letters,
    string.digits + string.ascii_lowercase,
    string.digits,
    string.ascii_lowercase,
    string.ascii_uppercase,
)
_LENGTHS = (*range(32, 0, -1), *range(33, MAX_CALL_ID + 1))
_ATTEMPTS = 1000


def _hashed(prefix: str, alphabet: str, length: int, seed: str) -> str:
    number = int.from_bytes(hashlib.shake_256(seed.encode(errors="replace")).digest(64))
    digits = []
    for _ in range(length):
        number, digit = divmod(number, len(alphabet))
        digits.append(alphabet[digit])
    return prefix + "".join(digits)


_default_id = partial(_hashed, "call_", _ALPHABETS[0], 32)


class CallIds:
    """
    Unique ids for a request's calls: unchanged, as some models require, if they match the profile's pattern.

    Ids above 64 characters are replaced, except for their own server, because gateways hide signatures in ids. A
    replacement is a hash, for a stable prompt prefix. `pattern` is `verbatim` or a regular expression for whole ids.
    """

    def __init__(self, pattern: str = VERBATIM) -> None:
        self._pattern = None if pattern == VERBATIM else re.compile(pattern)
        self._new_id = _default_id if pattern == VERBATIM else _id_for(pattern)
        self._used: set[str] = set()
        self._tried: dict[str, int] = {}  # replacements so far, by original id

    def next_id(self, call_id: str, source: Mapping[str, object] | None = None) -> str:
        """`source` contains the backend's own id if that was too long for the client."""
        fits = len(call_id) <= MAX_CALL_ID and self._is_free(call_id)
        result = call_id if fits else self._replacement(call_id)
        original = (source.get(ORIGINAL_ID) or source.get(ORIGINAL_ID_V1)) if source else None
        if isinstance(original, str) and self._is_free(original):
            result = original
        self._used.add(result)
        return result

    def _is_free(self, call_id: str) -> bool:
        return call_id not in self._used and (self._pattern is None or self._pattern.fullmatch(call_id) is not None)

    def _replacement(self, call_id: str) -> str:
        for attempt in range(self._tried.get(call_id, 0), self._tried.get(call_id, 0) + _ATTEMPTS):
            self._tried[call_id] = attempt + 1
            candidate = self._new_id(f"{call_id}\n{attempt}")
            if len(candidate) <= MAX_CALL_ID and self._is_free(candidate):
                return candidate
        return _default_id(f"{call_id}\n{self._tried[call_id]}")  # uniqueness matters more than an exhausted pattern


@lru_cache(maxsize=64)
def _id_for(pattern: str) -> Callable[[str], str]:
    """Turns a seed into an id that matches the pattern, preferably a long id, for fewer collisions."""
    fits = re.compile(pattern).fullmatch
    for length, prefix, alphabet in itertools.product(_LENGTHS, ("call_", ""), _ALPHABETS):
        new_id = partial(_hashed, prefix, alphabet, length)
        if len(prefix) + length <= MAX_CALL_ID and all(fits(new_id(seed)) for seed in "abcd"):
            return new_id
    return _default_id
