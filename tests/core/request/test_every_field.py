"""
A law: every field of a request is sent to the backend, kept by this server, or named in a warning.

The fields are those of the types of the installed `openai` package, so that a newer one shows what is not handled yet.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args, get_origin

import pytest
import typing_extensions
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming

from app.core.history.rewrites import UNCHANGED, rewrite_items
from app.core.profile import Profile
from app.core.request import to_chat
from app.core.request.question import Question
from app.core.types.hosted import HOSTED_TABLES
from app.core.types.request import CreateResponse
from app.errors import InvalidRequest, Warnings
from tests.support.api_names import element, is_object, variants

Wrap = Callable[[Any], dict[str, Any]]

# What this server does itself, or what has no meaning to a model.
KEPT = [
    *("background", "context_management*", "conversation*", "metadata", "previous_response_id", "prompt.*", "stream"),
    *("max_tool_calls", "safety_identifier", "store", "truncation", "user", "include"),
    "input[].fingerprint",  # of a program
    "prompt_cache_key",  # by which conversations stay with one replica
    "prompt_cache_options.prewarm",
    "reasoning.summary",  # where reasoning is shown
    "reasoning.generate_summary",
    "stream_options.include_obfuscation",  # named if it is true
    "text.format.strict",
    *("*.id", "*.status"),  # of items
    *("*.annotations*", "*.logprobs*"),  # of earlier answers: they are about their text
    *("*.pending_safety_checks*", "*.acknowledged_safety_checks*"),  # between the client and its user
    *("*.execution", "*.defer_loading", "*.async"),  # by them this server decides what is offered, and when
    *("input[[]].role", "input[[]].server_label", "input[[]].approval_request_id", "input[[]].approve"),
    *("input[[]].action", "input[[]].background", "input[[]].quality", "input[[]].size", "input[[]].output_format"),
    *("input[[]].result", "input[[]].svg_usage*", "input[[]].error*"),  # of images, which the tool reads itself
    *("input[[]].container_id", "input[[]].environment*", "input[[]].max_output_length"),
    *("input[[]].action.sources*", "input[[]].reason"),
    *("input[[]].name", "input[[]].namespace"),  # of outputs that have the id of their call
    *("input[[]].encrypted_content", "input[[]].summary*", "input[[]].content[[]].text"),  # of reasoning: see its tests
    *("*.skills[[]].*",),  # of an environment that is not the client's
    "tools[[]].allowed_callers*",  # named unless it is `direct`
]

SAMPLES: dict[str, list[Any]] = {
    "arguments": ['{"a": 1}', '{"a": 2}'],
    "file_data": ["data:text/plain;base64,SGk=", "data:text/plain;base64,SG8="],
    "image_url": ["data:image/png;base64,AA==", "data:image/png;base64,AAA="],
    "schema": [{"type": "object"}, {"type": "object", "title": "Other"}],
    "parameters": [{"type": "object", "properties": {"a": {}}}, {"type": "object", "properties": {"b": {}}}],
    "syntax": ["lark", "regex"],
    "max_output_tokens": [17, 18],
    "tools": [[{"type": "function", "name": name}] for name in ("one", "two")],
}
# What such a part or item cannot do without.
BESIDE: dict[str, dict[str, Any]] = {
    "input_image": {"image_url": SAMPLES["image_url"][0]},
    "input_file": {"file_data": SAMPLES["file_data"][0]},
    "computer_screenshot": {"image_url": SAMPLES["image_url"][0]},
    "function_call_output": {"call_id": "one"},
}
SEARCHES = {"tool_search_call", "tool_search_output"}  # pairs, which have tests of their own
TOOLS = [{"type": "function", "name": name} for name in ("one", "two")]
SKIPPED = {*HOSTED_TABLES} - {"shell", "tool_search"}  # their tools read their declarations themselves


def samples(name: str, annotation: Any) -> list[Any]:
    """Return some values of a type, each of which may make a difference."""
    if name in SAMPLES:
        return SAMPLES[name]
    values: list[Any] = []
    for one in variants(annotation):
        if get_origin(one) is Literal:
            values += get_args(one)
        elif (inner := element(one)) is not None:
            values += [[value] for value in samples(name, inner)[:2]]
        elif is_object(one):
            values += minimal(one)[:1]
        elif one in (str, int, float, bool):
            values += {str: ["one", "two"], int: [7, 8], float: [0.25, 0.5], bool: [True, False]}[one]
        elif one is not types.NoneType:
            values += [{"a": "one"}, {"a": "two"}]
    return values


def required(annotation: Any) -> list[str]:
    """Return the required fields; `__required_keys__` is wrong for annotations that are strings."""
    hints = typing_extensions.get_type_hints(annotation, include_extras=True)
    return [name for name, hint in hints.items() if get_origin(hint) in (typing.Required, typing_extensions.Required)]


def minimal(annotation: Any) -> list[dict[str, Any]]:
    hints = typing_extensions.get_type_hints(annotation, include_extras=True)
    base = {name: samples(name, hints[name])[0] for name in required(annotation)}
    return [{**BESIDE.get(str(base.get("type")), {}), **base}]


def fields(annotation: Any, path: str, wrap: Wrap, seen: frozenset[Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield each field of a type with requests that differ in it alone; the first is without it, if it may be."""
    if annotation in seen:
        return
    hints = typing_extensions.get_type_hints(annotation, include_extras=True)
    [base] = minimal(annotation)
    for name, hint in hints.items():
        if name == "type":
            continue
        where = f"{path}.{name}".lstrip(".")
        instead = BESIDE.get(str(base.get("type")), {}) if name in ("file_id", "file_url") else {}
        rest = {other: value for other, value in base.items() if other != name and other not in instead}
        without = [] if name in required(annotation) else [wrap(rest)]
        objects = [one for one in variants(hint) if is_object(one) or is_object_list(one)]
        if not objects or len(objects) < len([one for one in variants(hint) if one is not types.NoneType]):
            leaves = [value for value in samples(name, hint) if not isinstance(value, dict) or not objects]
            yield where, [*without, *(wrap({**rest, name: value}) for value in leaves)]
        for one in objects:
            inner = element(one)
            for member in [one] if inner is None else filter(is_object, variants(inner)):
                [sample] = minimal(member)
                if path == "" and name == "tools" and sample.get("type") in SKIPPED:
                    continue
                if path == "" and name == "input" and sample.get("type") in SEARCHES:
                    continue
                if path.startswith("input[]") and name == "tools":
                    continue  # as those of the request itself
                listed = inner is not None

                def within(value: Any, name: str = name, listed: bool = listed, rest: Any = rest) -> dict[str, Any]:
                    return wrap({**rest, name: [value] if listed else value})

                yield from fields(member, f"{where}{'[]' * listed}", within, seen | {annotation})


def is_object_list(annotation: Any) -> bool:
    inner = element(annotation)
    return inner is not None and any(map(is_object, variants(inner)))


def request_of(body: dict[str, Any]) -> dict[str, Any]:
    """Complete a request, so that a model can be asked."""
    items = body.get("input")
    if "tools" not in body:
        body = {**body, "tools": TOOLS}
    if isinstance(items, list):
        return {"model": "m", **body, "input": [*items, {"type": "message", "role": "user", "content": "Go on."}]}
    return {"model": "m", "input": "Hi.", **body}


def outcome(body: dict[str, Any]) -> tuple[Any, tuple[str, ...]]:
    """Return the request to the backend, and what the caller is told."""
    request = CreateResponse.model_validate(body)
    warnings = Warnings()
    items = rewrite_items(request.items(), warnings)
    try:
        chat = to_chat(Question(UNCHANGED.updated(items).applied(request), items, str(request.model)), Profile())
    except InvalidRequest as error:
        return None, (f"{error.param} {error.message}",)
    return chat.body, (*warnings, *chat.warnings)


def cases() -> dict[str, list[list[dict[str, Any]]]]:
    found: dict[str, list[list[dict[str, Any]]]] = {}
    for path, bodies in fields(ResponseCreateParamsNonStreaming, "", request_of, frozenset()):
        found.setdefault(path, []).append(bodies)
    return found


CASES = cases()


def is_handled(path: str, bodies: list[dict[str, Any]]) -> bool:
    steps = path.replace("[]", "").split(".")
    names = {steps[0] if len(steps) == 1 else "", *steps[1:]} - {"", "content", "output", "action", "tools"}
    sent, told = set(), set()
    for body in bodies:
        try:
            chat, warnings = outcome(body)
        except ValueError as error:  # pydantic refuses it by its name
            told.add(str(error))
            continue
        sent.add(repr(chat))
        told |= {*warnings}
    return len(sent) > 1 or any(is_named(names, steps[0], text) for text in told)


def is_named(names: set[str], head: str, text: str) -> bool:
    """Return whether a text names one of the fields, the parameter that they are in, or all of a tool or an item."""
    whole = ("are not known", "need a table", f"The parameter '{head}'")
    return text.startswith(f"{head} ") or any(name in text for name in (*names, *whole))


@pytest.mark.parametrize("path", CASES)
def test_field_of_a_request_is_sent_kept_or_named(path: str) -> None:
    if any(fnmatchcase(path, kept) for kept in KEPT):
        return
    assert all(is_handled(path, bodies) for bodies in CASES[path]), "send it, name it in a warning, or list it as kept"


def test_fields_that_are_kept_exist() -> None:
    assert [kept for kept in KEPT if not any(fnmatchcase(path, kept) for path in CASES)] == []


def test_law_sees_a_field_that_goes_missing() -> None:
    body = {"model": "m", "input": "Hi."}
    assert not is_handled("client_metadata", [body, {**body, "client_metadata": {"a": "one"}}])
