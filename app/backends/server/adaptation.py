"""
Adapts requests to servers that reject unknown fields: a field that a refusal names is removed, and this is remembered.

    adapted = FieldAdaptation(profile.request, CALLER_FIELDS).adapt(body)
    adapted.body                 # the request to send, without fields that this server is known to reject
    adapted.drop_fields(error)   # after a refusal: True if `body` has changed and can be sent again
    adapted.accepted()           # after success: `adapt` omits the same fields from now on, for a while

Only fields that do not affect the answer, or that the caller did not set, are removed; for others the caller gets the
refusal. Keywords of schemas (`schema_keywords`), images (`image_parts`) and later system messages (`system_messages`)
are adapted to in the same way, under names of fields. A refusal that is misread does no harm, since nothing is
remembered until the server accepts the request.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Callable, Mapping

from app.backends.server.errors.unsupported_fields import (
    CALL,
    ITEM,
    MESSAGE,
    READABLE,
    REASONING_OFF,
    STRICT,
    functions,
    holds,
    unknown_fields,
)
from app.backends.server.image_parts import (
    IMAGE_WARNING,
    REFUSED_IMAGE,
    holds_images,
    refuses_images,
    undescribed,
    with_notes,
)
from app.backends.server.schema_keywords import PARAMETERS, kept_keyword, refused_keywords, without_keywords
from app.backends.server.system_messages import (
    SYSTEM_FIRST,
    SYSTEM_WARNING,
    has_later_system,
    refuses_later_system,
    with_system_first,
)
from app.core.profile import ContentOptions, RequestOptions
from app.core.request.tool_types import REJECTED_KEYWORD
from app.core.types import JSONMapping, JSONObject
from app.errors import BackendError, ImagesUndescribed, label

logger = logging.getLogger(__name__)

REMEMBERED = 3600.0  # seconds; after that the server may have been upgraded
_MODELS, _FIELDS = 1000, 50  # models that are remembered, and fields of each
_ROUNDS = 6  # refusals of one request, for servers that name one field at a time

# The server need not know them: usage is estimated if it is missing, responses are stored here, and stop sequences are
# applied to the answer here.
_OURS = frozenset({"stream_options", "store", "include", "stop", "stop_sequences"})

# Set by callers, but the answer does not depend on them. (Parallel calls are prevented here anyway.)
_HARMLESS = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "safety_identifier",
        "service_tier",
        "user",
        "verbosity",  # a preference, which most profiles do not send at all
    }
)

# Harmless with this value, which is the default.
_NEUTRAL = {"frequency_penalty": 0, "presence_penalty": 0, "tool_choice": "auto"}

# Two names of one limit.
_OTHER_NAME = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}


class FieldAdaptation:
    """
    The fields that one server rejects, by model.

    `options` are those of its profile. `caller_fields` has the names of fields in the caller's request. `clock`
    returns seconds.
    """

    def __init__(
        self,
        options: RequestOptions,
        caller_fields: Mapping[str, str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._caller_fields = caller_fields
        self.content = options.content
        self._adapts = options.adapt
        # Fields that the operator set are never removed.
        self._fixed = {*options.extra_body, *([STRICT] if options.strict == "force" else [])}
        self._clock = clock
        self._models: dict[str, dict[str, float]] = {}  # by model: the fields, and the time until which each is omitted

    def caller_field(self, field: str) -> str:
        """Return the name in the caller's request for a field of this server's, or the closest one."""
        names = self._caller_fields
        return names.get(field) or names.get(re.split(r"[.\[]", field, maxsplit=1)[0], field)

    def adapt(
        self,
        body: JSONObject,
        descriptions: Mapping[str, str] | None = None,
        preferences: frozenset[str] = frozenset(),
    ) -> AdaptedRequest:
        """
        Return the request without the fields that this server is known to reject.

        `descriptions` come from `Question`, `preferences` from `CreateResponse`; raises `ImagesUndescribed`
        if a description is missing.
        """
        return AdaptedRequest(self, body, self._rejected(str(body.get("model"))), descriptions, preferences)

    def undescribed_images(self, body: JSONMapping, descriptions: Mapping[str, str]) -> list[str]:
        """Return the URLs of a request's images that lack a description, if the model accepts no images."""
        return undescribed(body, descriptions) if self.refuses_images(str(body.get("model"))) else []

    def refuses_images(self, model: str) -> bool:
        """Return whether a model is known to accept no images, by the profile or by a refusal."""
        return REFUSED_IMAGE in self._rejected(model)

    def _rejected(self, model: str) -> dict[str, float]:
        rejected = self._models.get(model, {}) if self._models else {}
        if rejected:
            now = self._clock()
            rejected = {field: until for field, until in rejected.items() if now < until}
        return rejected if self.content.images == "pass" else {**rejected, REFUSED_IMAGE: math.inf}

    def may_lack(self, body: JSONMapping, field: str, preferences: frozenset[str] = frozenset()) -> bool:
        """Return whether a field can be omitted or renamed without changing the request, or is only a preference."""
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
        return field in _OURS or field in _HARMLESS or field in _OTHER_NAME or "[]" in field

    def learn(self, model: str, fields: list[str]) -> None:
        """Omit fields from a model's requests from now on."""
        old = self._models.pop(model, {})
        # Of the two names of a limit, the one that was rejected last counts.
        others = {field: until for field, until in old.items() if _OTHER_NAME.get(field) not in fields}
        new = dict.fromkeys(fields, self._clock() + REMEMBERED)
        self._models[model] = dict([*(others | new).items()][-_FIELDS:])
        if len(self._models) > _MODELS:
            del self._models[next(iter(self._models))]
        message = "backend: the model %s does not know %s: left out for the next %d minutes"
        logger.info(message, label(model), ", ".join(fields), REMEMBERED / 60)


class AdaptedRequest:
    """
    A request as it is sent: `body`, without the fields that the server rejects, and `warnings`, a sentence for each
    field that the caller had set.
    """

    def __init__(
        self,
        adaptation: FieldAdaptation,
        body: JSONObject,
        rejected: dict[str, float],
        descriptions: Mapping[str, str] | None = None,
        preferences: frozenset[str] = frozenset(),
    ) -> None:
        self._adaptation = adaptation
        self._preferences = preferences
        self._original = body
        self._rejected = rejected
        self._descriptions = descriptions
        self._named: list[str] = []  # fields that refusals of this request named
        self._rounds = 0
        self.body, self.warnings = self._reduced() if rejected else (body, [])

    def drop_fields(self, error: BackendError) -> bool:
        """
        Remove the fields that a refusal names; return False if it names none, or one that must not be removed.

        Raises `ImagesUndescribed` for a refusal of images that are to be described.
        """
        fields = _refused(error, self.body)
        if not fields or self._rounds == _ROUNDS or not all(map(self._may_drop, fields)):
            return False
        self._rounds += 1
        self._named += fields
        self.body, self.warnings = self._reduced()
        return True

    def explain(self, error: BackendError) -> BackendError:
        """Return a refusal with the field that it names, if any, in `param`, by its name in the caller's request."""
        if kept := kept_keyword(error, self.body):
            error.param, sentence = kept
            error.message = f"{error.message} {sentence}"
            error.args = (error.message,)
            return error
        fields = _refused(error, self.body)
        field = next((field for field in fields if not self._may_drop(field)), next(iter(fields), error.param))
        error.param = field and self._adaptation.caller_field(field.partition(" ")[0])
        return error

    def accepted(self) -> None:
        """Remember the removed fields, now that the server has accepted the request."""
        if learned := [field for field in self._named if field != READABLE]:  # which is about these items alone
            self._adaptation.learn(str(self._original.get("model")), learned)

    def _may_drop(self, field: str) -> bool:
        return self._may_lack(self.body, field) and _OTHER_NAME.get(field) not in self._named

    def _may_lack(self, body: JSONMapping, field: str) -> bool:
        return self._adaptation.may_lack(body, field, self._preferences)

    def _reduced(self) -> tuple[JSONObject, list[str]]:
        body, warnings = self._original, []
        fields = dict.fromkeys([*self._rejected, *self._named])
        for field in fields:
            if not (_holds(body, field) and self._may_lack(body, field)):
                continue
            if field == REFUSED_IMAGE and self._descriptions is not None:
                body = self._described(body, self._descriptions)
            else:
                warnings += self._warnings(body, field)
                body = _without(body, field, self._adaptation.content)
        keywords = [each.removeprefix(PARAMETERS) for each in fields if each.startswith(PARAMETERS)]
        body, removed = without_keywords(body, keywords)
        return body, warnings + [REJECTED_KEYWORD.format(keyword) for keyword in removed]

    def _described(self, body: JSONObject, descriptions: Mapping[str, str]) -> JSONObject:
        if missing := undescribed(body, descriptions):
            raise ImagesUndescribed(missing)
        return with_notes(body, self._adaptation.content, descriptions)

    def _warnings(self, body: JSONMapping, field: str) -> list[str]:
        """Return the warnings for the caller when a field is removed."""
        if field == "parallel_tool_calls" and not body[field]:
            return ["This backend does not support `parallel_tool_calls: false`."]
        if field in _CHANGED:
            return [_CHANGED[field]]
        if field == STRICT and any(function.get("strict") for function in functions(body)):
            return ["This backend does not support 'strict' in tools; it was ignored."]
        name = self._adaptation.caller_field(field)
        set_by_caller = field in _HARMLESS or field in _NEUTRAL or name in self._preferences
        return [f"This backend does not support {label(name)}; it was ignored."] if set_by_caller else []


_CHANGED = {
    REASONING_OFF: "Reasoning was disabled: this backend does not support it together with function tools.",
    READABLE: "The backend could not read the reasoning of earlier responses; it was dropped.",
    REFUSED_IMAGE: IMAGE_WARNING,
    SYSTEM_FIRST: SYSTEM_WARNING,
}


def _refused(error: BackendError, body: JSONMapping) -> list[str]:
    """Return the names of the fields, schema keywords, images or system messages that a refusal reports."""
    if refuses_images(error, body):
        return [REFUSED_IMAGE]
    if refuses_later_system(error, body):
        return [SYSTEM_FIRST]
    return refused_keywords(error, body) or unknown_fields(error, body)


def _holds(body: JSONMapping, field: str) -> bool:
    if field == SYSTEM_FIRST:
        return has_later_system(body)
    return holds_images(body) if field == REFUSED_IMAGE else holds(body, field)


def _without(body: JSONObject, field: str, content: ContentOptions) -> JSONObject:
    if field == REFUSED_IMAGE:
        return with_notes(body, content)
    if field == SYSTEM_FIRST:
        return with_system_first(body)
    if field == REASONING_OFF:
        return {**body, "reasoning_effort": "none"}
    if field == READABLE:
        return {**body, "input": [item for item in body["input"] if not item.get("encrypted_content")]}
    if field.startswith(CALL):
        return {
            **body,
            "messages": [_without_in_calls(message, field.removeprefix(CALL)) for message in body["messages"]],
        }
    if field.startswith(MESSAGE):
        return {**body, "messages": [_omit(message, field.removeprefix(MESSAGE)) for message in body["messages"]]}
    if field.startswith(ITEM):
        return {**body, "input": [_omit(item, field.removeprefix(ITEM)) for item in body["input"]]}
    if field == STRICT:
        return {**body, "tools": [_lenient(tool) for tool in body["tools"]]}
    other = {_OTHER_NAME[field]: body[field]} if field in _OTHER_NAME else {}
    return other | _omit(body, field)


def _without_in_calls(message: JSONObject, name: str) -> JSONObject:
    calls = message.get("tool_calls")
    return {**message, "tool_calls": [_omit(call, name) for call in calls]} if calls else message


def _lenient(tool: JSONObject) -> JSONObject:
    return {**tool, "function": _omit(tool["function"], "strict")} if "function" in tool else _omit(tool, "strict")


def _omit(fields: JSONObject, name: str) -> JSONObject:
    return {key: value for key, value in fields.items() if key != name} if name in fields else fields
