"""
A request without the fields that its server does not know, as it said when it refused one with them.

    asked = Unwanted(profile.request).ask(body)
    asked.body             # what to send: without the fields that this server is known not to know
    asked.without(error)   # it refuses: True if there is something else to send now
    asked.taken()          # it does not: `ask` leaves the same fields out from now on, for a while

Only what changes nothing in the answer is left out, or what nobody asked for; the rest is for the caller to change, who
hears of the refusal. To misread one does no harm, since nothing is learned from it until the request is taken.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from app.backends.chat.errors.unsupported_fields import CALL, MESSAGE, STRICT, functions, holds, unknown_fields
from app.core.profile import RequestOptions
from app.core.request import caller_field
from app.errors import BackendError, label

logger = logging.getLogger(__name__)

REMEMBERED = 3600.0  # seconds; then the server may have become another
_MODELS, _FIELDS = 1000, 50  # how many models something is remembered of, and how much of each
_ROUNDS = 6  # for servers that name one field at a time

# Nobody asked for these: usage is estimated where there is none, and responses are kept here.
_OURS = frozenset({"stream_options", "store"})

# The caller asked for these, but the answer does not depend on them. (One call at a time is seen to here anyway.)
_HARMLESS = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "safety_identifier",
        "service_tier",
        "user",
        "verbosity",  # a wish, which most servers are not even told
    }
)

# Harmless with this value, which says what happens without it.
_NEUTRAL = {"frequency_penalty": 0, "presence_penalty": 0, "tool_choice": "auto"}

# Two names of one limit.
_OTHER_NAME = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}


class FieldAdaptation:
    """
    What one server does not know, by model.

    `options` are those of its profile, and `clock` is in seconds.
    """

    def __init__(self, options: RequestOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._adapts = options.adapt
        # What the operator put in, or wants to be so, is not ours to leave out.
        self._fixed = {*options.extra_body, *([STRICT] if options.strict == "force" else [])}
        self._clock = clock
        self._models: dict[str, dict[str, float]] = {}  # the fields, and until when they are left out

    def ask(self, body: dict[str, Any]) -> AdaptedRequest:
        """Return the request as this server takes it, as far as is known."""
        return AdaptedRequest(self, body, self._known(body))

    def _known(self, body: Mapping[str, Any]) -> dict[str, float]:
        if not self._models or (known := self._models.get(str(body.get("model")))) is None:
            return {}
        now = self._clock()
        return {field: until for field, until in known.items() if now < until}

    def may_lack(self, body: Mapping[str, Any], field: str) -> bool:
        """Tell if a request says the same without a field of it, or with the other name of that field."""
        if not self._adapts or field in self._fixed:
            return False
        if field in _NEUTRAL:
            return bool(body.get(field) == _NEUTRAL[field])
        return field in _OURS or field in _HARMLESS or field in _OTHER_NAME or "[]" in field

    def learn(self, model: str, fields: list[str]) -> None:
        """Remember what is to be left out for a model from now on."""
        old = self._models.pop(model, {})
        # The last name of a limit that was refused is the one that counts.
        kept = {field: until for field, until in old.items() if _OTHER_NAME.get(field) not in fields}
        new = dict.fromkeys(fields, self._clock() + REMEMBERED)
        self._models[model] = dict([*(kept | new).items()][-_FIELDS:])
        if len(self._models) > _MODELS:
            del self._models[next(iter(self._models))]
        said = "backend: the model %s does not know %s: left out for the next %d minutes"
        logger.info(said, label(model), ", ".join(fields), REMEMBERED / 60)


class AdaptedRequest:
    """
    A request as it is asked: `body` lacks what the server does not know, and `warnings` say so, a sentence each, of
    what the caller had asked for.
    """

    def __init__(self, unwanted: FieldAdaptation, body: dict[str, Any], known: dict[str, float]) -> None:
        self._unwanted = unwanted
        self._whole = body
        self._known = known
        self._named: list[str] = []  # by refusals of this request
        self._rounds = 0
        self.body, self.warnings = self._lacking() if known else (body, [])

    def without(self, error: BackendError) -> bool:
        """Leave out what a refusal names; False if that would not be honest, or it names nothing that is there."""
        fields = unknown_fields(error, self.body)
        if not fields or self._rounds == _ROUNDS or not all(map(self._may_go, fields)):
            return False
        self._rounds += 1
        self._named += fields
        self.body, self.warnings = self._lacking()
        return True

    def told(self, error: BackendError) -> BackendError:
        """Return a refusal as the caller is to hear it: with the name of the field that they know, if it names one."""
        fields = unknown_fields(error, self.body)
        field = next((one for one in fields if not self._may_go(one)), next(iter(fields), error.param))
        error.param = field and caller_field(field)
        return error

    def taken(self) -> None:
        """Remember what was left out, now that it has helped."""
        if self._named:
            self._unwanted.learn(str(self._whole.get("model")), self._named)

    def _may_go(self, field: str) -> bool:
        return self._unwanted.may_lack(self.body, field) and _OTHER_NAME.get(field) not in self._named

    def _lacking(self) -> tuple[dict[str, Any], list[str]]:
        body, warnings = self._whole, []
        for field in dict.fromkeys([*self._known, *self._named]):
            if holds(body, field) and self._unwanted.may_lack(body, field):
                warnings += _warnings(body, field)
                body = _without(body, field)
        return body, warnings


def _warnings(body: Mapping[str, Any], field: str) -> list[str]:
    """Return what the caller is told when a field is left out."""
    if field == "parallel_tool_calls" and not body[field]:
        return ["This backend cannot be limited to one call at a time."]
    if field == STRICT and any(function.get("strict") for function in functions(body)):
        return ["This backend does not know 'strict' of tools, so it was left out."]
    asked = field in _HARMLESS or field in _NEUTRAL
    return [f"This backend does not know {label(caller_field(field))}, so it was left out."] if asked else []


def _without(body: dict[str, Any], field: str) -> dict[str, Any]:
    if field.startswith(CALL):
        return {**body, "messages": [_calling_without(one, field.removeprefix(CALL)) for one in body["messages"]]}
    if field.startswith(MESSAGE):
        return {**body, "messages": [_lacks(one, field.removeprefix(MESSAGE)) for one in body["messages"]]}
    if field == STRICT:
        return {**body, "tools": [_lenient(tool) for tool in body["tools"]]}
    other = {_OTHER_NAME[field]: body[field]} if field in _OTHER_NAME else {}
    return other | _lacks(body, field)


def _calling_without(message: dict[str, Any], name: str) -> dict[str, Any]:
    calls = message.get("tool_calls")
    return {**message, "tool_calls": [_lacks(call, name) for call in calls]} if calls else message


def _lenient(tool: dict[str, Any]) -> dict[str, Any]:
    return {**tool, "function": _lacks(tool["function"], "strict")} if "function" in tool else tool


def _lacks(fields: dict[str, Any], name: str) -> dict[str, Any]:
    return {one: value for one, value in fields.items() if one != name} if name in fields else fields
