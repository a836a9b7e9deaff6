"""
Remember request fields that a server rejects, and omit them.

    adapted = FieldAdaptation(profile.request, CALLER_FIELDS).adapt(body)
    adapted.body                 # without fields that this server rejected before
    adapted.drop_fields(error)   # True if `body` changed and can be sent again
    adapted.accepted()           # remembers the dropped fields

Only fields that do not affect the answer, or were not set by the caller, are dropped. A misread error is harmless:
nothing is remembered until the server accepts the request.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Callable, Collection, Mapping

from app.backends.server.errors.unsupported_fields import (
    REASONING_OFF,
    STRICT,
    UNREADABLE,
    declared_functions,
    has_field,
    unknown_fields,
    without,
)
from app.backends.server.refused_content import (
    IMAGE_WARNING,
    PARAMETERS,
    REFUSED_IMAGE,
    SYSTEM_FIRST,
    SYSTEM_WARNING,
    enforced_keyword,
    has_later_system,
    holds_images,
    refused_keywords,
    refuses_images,
    refuses_later_system,
    replace_images,
    undescribed_urls,
    with_system_first,
    without_keywords,
)
from app.core.profile import ContentOptions, RequestOptions
from app.core.request.tool_types import REJECTED_KEYWORD
from app.core.types import JSONMapping, JSONObject
from app.core.types.request import CreateResponse
from app.errors import BackendError, ImagesUndescribed, quote

logger = logging.getLogger(__name__)

REMEMBERED = 3600.0  # seconds; the server may be upgraded meanwhile
_MODELS, _FIELDS = 1000, 50  # remembered models, and fields per model
_ROUNDS = 6  # errors per request, for servers that report one field at a time

# Optional: this server estimates missing usage, stores responses and applies stop sequences.
_SERVER_SET_FIELDS = frozenset({"stream_options", "store", "include", "stop", "stop_sequences"})

# No effect on the answer; this server also prevents parallel calls.
_HARMLESS = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "safety_identifier",
        "service_tier",
        "user",
        "verbosity",
    }
)

# Harmless with this default value.
_NEUTRAL = {"frequency_penalty": 0, "presence_penalty": 0, "tool_choice": "auto"}

_OTHER_NAME = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}


class FieldAdaptation:
    """A server's rejected fields, by model; `caller_fields` maps its fields to the caller's."""

    def __init__(
        self,
        options: RequestOptions,
        caller_fields: Mapping[str, str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._caller_fields = caller_fields
        self.content = options.content
        self.active = options.content.images != "pass"  # whether any request needs `adapt`
        self._adapts = options.adapt
        # Fields set by the operator are never removed.
        self._fixed = {*options.extra_body, *([STRICT] if options.strict == "force" else [])}
        self._clock = clock
        self._models: dict[str, dict[str, float]] = {}  # by model: each omitted field with its expiry time

    def caller_field(self, field: str) -> str:
        names = self._caller_fields
        return names.get(field) or names.get(re.split(r"[.\[]", field, maxsplit=1)[0], field)

    def adapt(
        self,
        body: JSONObject,
        descriptions: Mapping[str, str] | None = None,
        request: CreateResponse | None = None,
    ) -> AdaptedRequest:
        """Omit fields known to be rejected; raises `ImagesUndescribed` if a description is missing."""
        return AdaptedRequest(self, body, self._rejected(str(body.get("model"))), descriptions, request)

    def undescribed_images(self, body: JSONMapping, descriptions: Mapping[str, str]) -> list[str]:
        return undescribed_urls(body, descriptions) if self.refuses_images(str(body.get("model"))) else []

    def refuses_images(self, model: str) -> bool:
        return REFUSED_IMAGE in self._rejected(model)

    def _rejected(self, model: str) -> dict[str, float]:
        rejected = self._models.get(model, {})
        if rejected:
            now = self._clock()
            rejected = {field: until for field, until in rejected.items() if now < until}
        return rejected if self.content.images == "pass" else {**rejected, REFUSED_IMAGE: math.inf}

    def may_omit(self, body: JSONMapping, field: str, preferences: frozenset[str] = frozenset()) -> bool:
        """Whether the request keeps its meaning if a field is omitted or renamed."""
        if field == REFUSED_IMAGE and self.content.images != "pass":
            return True
        if not self._adapts or field in self._fixed:
            return False
        if field == REASONING_OFF:
            return "reasoning_effort" not in self._fixed
        if self.caller_field(field) in preferences:
            return True
        if field in _NEUTRAL:
            return bool(body.get(field) == _NEUTRAL[field])
        return field in _SERVER_SET_FIELDS or field in _HARMLESS or field in _OTHER_NAME or "[]" in field

    def learn(self, model: str, fields: list[str]) -> None:
        self.active = True
        old = self._models.pop(model, {})
        # Only the last rejected name of a limit counts.
        others = {field: until for field, until in old.items() if _OTHER_NAME.get(field) not in fields}
        new = dict.fromkeys(fields, self._clock() + REMEMBERED)
        self._models[model] = dict([*(others | new).items()][-_FIELDS:])
        if len(self._models) > _MODELS:
            del self._models[next(iter(self._models))]
        extra = {"model": model, "fields": ", ".join(fields), "minutes": round(REMEMBERED / 60)}
        logger.info("fields rejected by the backend are omitted", extra=extra)


class AdaptedRequest:
    """`body` is sent; `warnings` has a sentence for each dropped field that the caller set."""

    def __init__(
        self,
        adaptation: FieldAdaptation,
        body: JSONObject,
        rejected: Collection[str] = (),
        descriptions: Mapping[str, str] | None = None,
        request: CreateResponse | None = None,
    ) -> None:
        """`rejected`: fields to omit from `body` from the start."""
        self._adaptation = adaptation
        self._request = request
        self._original = body
        self._rejected = rejected
        self._descriptions = descriptions
        self._named: list[str] = []
        self._rounds = 0
        self.body, self.warnings = self._reduced() if rejected else (body, [])

    def drop_fields(self, error: BackendError) -> bool:
        """
        Drop the fields named in an error; return False if it names none, or one that must stay.

        Raises `ImagesUndescribed`.
        """
        fields = _refused(error, self.body)
        if not fields or self._rounds == _ROUNDS or not all(map(self._may_drop, fields)):
            return False
        self._rounds += 1
        self._named += fields
        self.body, self.warnings = self._reduced()
        return True

    def explain(self, error: BackendError) -> BackendError:
        """Set `param` to the caller's field."""
        if kept := enforced_keyword(error, self.body):
            error.param, sentence = kept
            error.message = f"{error.message} {sentence}"
            error.args = (error.message,)
            return error
        fields = _refused(error, self.body)
        field = next((field for field in fields if not self._may_drop(field)), next(iter(fields), error.param))
        error.param = field and self._adaptation.caller_field(field.partition(" ")[0])
        return error

    def accepted(self) -> None:
        if learned := [field for field in self._named if field != UNREADABLE]:  # which concerns only these items
            self._adaptation.learn(str(self._original.get("model")), learned)

    def _may_drop(self, field: str) -> bool:
        may_omit = self._adaptation.may_omit(self.body, field, self._preferences)
        return may_omit and _OTHER_NAME.get(field) not in self._named

    @property
    def _preferences(self) -> frozenset[str]:
        return self._request.preferences if self._request else frozenset()

    def _reduced(self) -> tuple[JSONObject, list[str]]:
        body, warnings, adaptation = self._original, [], self._adaptation
        fields = dict.fromkeys([*self._rejected, *self._named])
        for field in fields:
            if not (_is_present(body, field) and adaptation.may_omit(body, field, self._preferences)):
                continue
            if field == REFUSED_IMAGE and self._descriptions is not None:
                if missing := undescribed_urls(body, self._descriptions):
                    raise ImagesUndescribed(missing)
                body = replace_images(body, adaptation.content, self._descriptions)
            else:
                warnings += self._warnings(body, field)
                body = _reduce(body, field, adaptation.content)
        keywords = [each.removeprefix(PARAMETERS) for each in fields if each.startswith(PARAMETERS)]
        body, removed = without_keywords(body, keywords)
        return body, warnings + [REJECTED_KEYWORD.format(keyword) for keyword in removed]

    def _warnings(self, body: JSONMapping, field: str) -> list[str]:
        if field == "parallel_tool_calls" and not body[field]:
            return ["This backend does not support `parallel_tool_calls: false`."]
        if field in _CHANGED:
            return [_CHANGED[field]]
        if field == STRICT and any(function.get("strict") for function in declared_functions(body)):
            return ["This backend does not support 'strict' in tools; it was ignored."]
        name = self._adaptation.caller_field(field)
        set_by_caller = field in _HARMLESS or field in _NEUTRAL or name in self._preferences
        return [f"This backend does not support {quote(name)}; it was ignored."] if set_by_caller else []


_CHANGED = {
    REASONING_OFF: "Reasoning was disabled: this backend does not support it together with function tools.",
    UNREADABLE: "The backend could not read the reasoning of earlier responses; it was dropped.",
    REFUSED_IMAGE: IMAGE_WARNING,
    SYSTEM_FIRST: SYSTEM_WARNING,
}


def _refused(error: BackendError, body: JSONMapping) -> list[str]:
    if refuses_images(error, body):
        return [REFUSED_IMAGE]
    if refuses_later_system(error, body):
        return [SYSTEM_FIRST]
    return refused_keywords(error, body) or unknown_fields(error, body)


def _is_present(body: JSONMapping, field: str) -> bool:
    if field == SYSTEM_FIRST:
        return has_later_system(body)
    return holds_images(body) if field == REFUSED_IMAGE else has_field(body, field)


def _reduce(body: JSONObject, field: str, content: ContentOptions) -> JSONObject:
    if field == REFUSED_IMAGE:
        return replace_images(body, content)
    if field == SYSTEM_FIRST:
        return with_system_first(body)
    if field == REASONING_OFF:
        return {**body, "reasoning_effort": "none"}
    if field == UNREADABLE:
        return {**body, "input": [item for item in body["input"] if not item.get("encrypted_content")]}
    if field == STRICT:  # chat nests functions
        tools = [
            {**tool, "function": without(tool["function"], "strict")} if "function" in tool else without(tool, "strict")
            for tool in body["tools"]
        ]
        return {**body, "tools": tools}
    other = {_OTHER_NAME[field]: body[field]} if field in _OTHER_NAME else {}
    return other | without(body, field)
