"""
Law: every request field is sent to the backend, handled by this server, or named in a warning.

The fields come from the installed `openai` package, so that a newer package reveals unhandled fields.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args, get_origin

import pytest
import typing_extensions
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming

from app.core.history.context import UNCHANGED, rewrite_items
from app.core.profile import Profile
from app.core.request import to_chat
from app.core.request.model_request import ModelRequest
from app.core.types.hosted import HOSTED_TABLES
from app.core.types.request import CreateResponse
from app.errors import InvalidRequest, Warnings
from tests.support.api_names import element, is_object, variants

Wrap = Callable[[Any], dict[str, Any]]


def within(path: str, *names: str) -> list[str]:
    """Return the paths of an object's fields."""
    return [f"{path}.{name}" for name in names]


def of_items(name: str, *kinds: str) -> list[str]:
    """Return a field's paths in several item types."""
    return [f"input[{kind}].{name}" for kind in kinds]


_TEXT = "input[message].content[output_text]"
_ANNOTATIONS = {
    "file_citation": ("file_id", "filename", "index"),
    "url_citation": ("end_index", "start_index", "title", "url"),
    "container_file_citation": ("container_id", "end_index", "file_id", "filename", "start_index"),
    "file_path": ("file_id", "index"),
}
_DECLARED = (
    "tools[function]",
    "tools[custom]",
    "tools[namespace].tools[function]",
    "tools[namespace].tools[custom]",
)

# Unsent fields by reason: this server handles them, or they mean nothing to a model.
KEPT: dict[str, list[str]] = {
    "how a response is made, delivered and stored": [
        *("background", "include", "max_tool_calls", "metadata", "store", "stream", "truncation"),
        "background_options.completion_window",
        "context_management[].compact_threshold",
        "prompt_cache_options.prewarm",
    ],
    "what a response continues or begins with, which is resolved before": [
        *("conversation", "conversation.id", "previous_response_id"),
        *within("prompt", "id", "variables", "version"),
    ],
    "who asks, which a profile may forward": ["safety_identifier", "user"],
    "by which conversations stay with one replica": ["prompt_cache_key"],
    "where reasoning is shown": within("reasoning", "generate_summary", "summary"),
    "what this server offers, and when": [
        f"{tool}.{name}" for tool in _DECLARED for name in ("async", "defer_loading")
    ],
    "ids, which are this API's": [
        *of_items("id", "message", "reasoning", "compaction", "configuration_update", "additional_tools"),
        *of_items("id", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"),
        *of_items("id", "computer_call", "computer_call_output", "local_shell_call", "shell_call", "shell_call_output"),
        *of_items("id", "apply_patch_call", "apply_patch_call_output", "program", "program_output"),
        *of_items("id", "mcp_list_tools", "mcp_approval_response"),
    ],
    "the call or the output tells": [
        *of_items("status", "message", "reasoning", "function_call", "function_call_output", "program_output"),
        *of_items("status", "computer_call", "computer_call_output", "local_shell_call", "local_shell_call_output"),
        *of_items("status", "shell_call", "shell_call_output", "apply_patch_call", "code_interpreter_call"),
    ],
    "a call has it, and the output has the id of that": within("input[function_call_output]", "name", "namespace"),
    "a message tells": [
        *within("input[image_generation_call].error", "code", "param"),
        *within("input[image_generation_call].error.moderation_details", "categories", "moderation_stage"),
        *("input[mcp_call].error[mcp_protocol_error].code", "input[mcp_call].error[http_error].code"),
    ],
    "about the text of an earlier answer": [
        *(f"{_TEXT}.annotations[{kind}].{name}" for kind, names in _ANNOTATIONS.items() for name in names),
        *within(f"{_TEXT}.logprobs[]", "token", "bytes", "logprob"),
        *within(f"{_TEXT}.logprobs[].top_logprobs[]", "token", "bytes", "logprob"),
        "input[web_search_call].action[search].sources[url].url",
    ],
    "of reasoning and compactions, whose replay has its own tests": [
        "input[reasoning].summary[summary_text].text",
        "input[reasoning].content[reasoning_text].text",
        *of_items("encrypted_content", "reasoning", "compaction"),
    ],
    "between the client and its user": [
        *within("input[computer_call].pending_safety_checks[]", "id", "code", "message"),
        *within("input[computer_call_output].acknowledged_safety_checks[]", "id", "code"),
    ],
    "of images, which the tool reads itself": [
        *within("input[image_generation_call]", "result", "action", "background", "output_format", "quality", "size"),
        *within(
            "input[image_generation_call].svg_usage",
            *("input_tokens", "model", "output_tokens", "reasoning_tokens", "total_tokens"),
        ),
    ],
    "where a call was run": [
        "input[code_interpreter_call].container_id",
        "input[shell_call].environment[container_reference].container_id",
        *within("input[shell_call].environment[local].skills[]", "description", "name", "path"),
        "input[shell_call_output].max_output_length",
        "input[program].fingerprint",
    ],
    "approvals and lists of tools, which become calls of their own": [
        *within("input[mcp_approval_response]", "approval_request_id", "approve", "reason"),
        "input[mcp_call].approval_request_id",
        *within("input[mcp_list_tools]", "server_label", "error"),
    ],
}
KEPT_PATHS = [path for paths in KEPT.values() for path in paths]

SAMPLES: dict[str, list[Any]] = {
    "arguments": ['{"a": 1}', '{"a": 2}'],
    "file_data": ["data:text/plain;base64,SGk=", "data:text/plain;base64,SG8="],
    "image_url": ["data:image/png;base64,AA==", "data:image/png;base64,AAA="],
    "schema": [{"type": "object"}, {"type": "object", "title": "Other"}],
    "parameters": [{"type": "object", "properties": {name: {}}, "required": [name]} for name in ("a", "b")],
    "syntax": ["lark", "regex"],
    "max_output_tokens": [17, 18],
    "tools": [[{"type": "function", "name": name}] for name in ("one", "two")],
    "error[mcp_tool_execution_error].content": [[{"type": "text", "text": text}] for text in ("one", "two")],
}
# Such a part's or item's required fields.
BESIDE: dict[str, dict[str, Any]] = {
    "input_image": {"image_url": SAMPLES["image_url"][0]},
    "input_file": {"file_data": SAMPLES["file_data"][0]},
    "computer_screenshot": {"image_url": SAMPLES["image_url"][0]},
    "function_call_output": {"call_id": "one"},
}
SEARCHES = {"tool_search_call", "tool_search_output"}  # pairs with their own tests
TOOLS = [{"type": "function", "name": name} for name in ("one", "two")]
SKIPPED = {*HOSTED_TABLES} - {"shell", "tool_search"}  # their tools read their declarations themselves


def samples(name: str, annotation: Any) -> list[Any]:
    """Return values of a type, each with a possible effect on the request."""
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
    """Return the required fields; `__required_keys__` is wrong for string annotations."""
    hints = typing_extensions.get_type_hints(annotation, include_extras=True)
    return [name for name, hint in hints.items() if get_origin(hint) in (typing.Required, typing_extensions.Required)]


def minimal(annotation: Any) -> list[dict[str, Any]]:
    hints = typing_extensions.get_type_hints(annotation, include_extras=True)
    base = {name: samples(name, hints[name])[0] for name in required(annotation)}
    return [{**BESIDE.get(str(base.get("type")), {}), **base}]


def fields(annotation: Any, path: str, wrap: Wrap, seen: frozenset[Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield each field of a type with requests that differ only in this field; the first omits it, if optional."""
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
            key = next((key for key in SAMPLES if where.endswith(f".{key}")), name)
            leaves = [value for value in samples(key, hint) if not isinstance(value, dict) or not objects]
            yield where, [*without, *(wrap({**rest, name: value}) for value in leaves)]
        for one in objects:
            inner = element(one)
            for member in [one] if inner is None else filter(is_object, variants(inner)):
                [sample] = minimal(member)
                if path == "" and name == "tools" and sample.get("type") in SKIPPED:
                    continue
                if path == "" and name == "input" and sample.get("type") in SEARCHES:
                    continue
                if path.startswith("input[") and name == "tools":
                    continue  # like the request's own fields
                listed = inner is not None

                def within(value: Any, name: str = name, listed: bool = listed, rest: Any = rest) -> dict[str, Any]:
                    return wrap({**rest, name: [value] if listed else value})

                yield from fields(member, f"{where}{kind_of(member, listed)}", within, seen | {annotation})


def kind_of(annotation: Any, listed: bool) -> str:
    """Return the type of an object in brackets, as it stands in a path."""
    hint = typing_extensions.get_type_hints(annotation, include_extras=True).get("type")
    kinds = [value for one in variants(hint) for value in get_args(one)] if hint is not None else []
    return f"[{kinds[0]}]" if kinds else "[]" * listed


def is_object_list(annotation: Any) -> bool:
    inner = element(annotation)
    return inner is not None and any(map(is_object, variants(inner)))


def request_of(body: dict[str, Any]) -> dict[str, Any]:
    """Complete a request for a model."""
    items = body.get("input")
    if "tools" not in body:
        body = {**body, "tools": TOOLS}
    if isinstance(items, list):
        return {"model": "m", **body, "input": [*items, {"type": "message", "role": "user", "content": "Go on."}]}
    return {"model": "m", "input": "Hi.", **body}


def outcome(body: dict[str, Any]) -> tuple[Any, tuple[str, ...]]:
    """Return the backend request, and the caller's warnings."""
    request = CreateResponse.model_validate(body)
    warnings = Warnings()
    items = rewrite_items(request.items(), warnings)
    try:
        chat = to_chat(ModelRequest(UNCHANGED.updated(items).applied(request), items, str(request.model)), Profile())
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
    if len(bodies) == 1:  # a single value makes no difference
        return True
    steps = re.sub(r"\[.*?\]", "", path).split(".")
    names = {steps[0] if len(steps) == 1 else "", *steps[1:]} - {"", "content", "output", "action", "tools"}
    sent, messages = set(), set()
    for body in bodies:
        try:
            chat, warnings = outcome(body)
        except ValueError as error:  # pydantic refuses it by its name
            messages.add(str(error))
            continue
        sent.add(repr(chat))
        messages |= {*warnings}
    return len(sent) > 1 or any(is_named(names, steps[0], text) for text in messages)


def is_named(names: set[str], head: str, text: str) -> bool:
    """Return whether a text names a field, its parameter, or a whole tool or item."""
    whole = ("are not supported", "unknown type", "require a table", f"The parameter '{head}'")
    return text.startswith(f"{head} ") or any(name in text for name in (*names, *whole))


@pytest.mark.parametrize("path", CASES)
def test_field_of_a_request_is_sent_kept_or_named(path: str) -> None:
    handled = all(is_handled(path, bodies) for bodies in CASES[path])
    if path in KEPT_PATHS:
        assert not handled, "it is sent or named: take it from the fields that are kept"
    else:
        assert handled, "send it, name it in a warning, or list it as kept"


def test_fields_that_are_kept_are_fields_and_each_has_one_reason() -> None:
    assert sorted(KEPT_PATHS) == sorted({*KEPT_PATHS} & CASES.keys())


def test_law_sees_a_field_that_goes_missing() -> None:
    body = {"model": "m", "input": "Hi."}
    assert not is_handled("client_metadata", [body, {**body, "client_metadata": {"a": "one"}}])
