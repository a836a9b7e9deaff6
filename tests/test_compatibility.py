"""
`docs/compatibility.md` has every Responses API name in the installed `openai`, with its handling.

A new name in a later version fails the test, which names it. `tests/clients/test_compatibility.py` covers the Node.js
package.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from openai.types import beta, responses
from openai.types.beta.response_create_params import ResponseCreateParamsNonStreaming as BetaParameters
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming
from openai.types.responses.response_includable import ResponseIncludable

from app.api.routes.websocket import STEER, Create, read_frame, steer_failure, unknown_frame
from app.core.request.tool_types import TOOL_TYPES
from app.core.types import Response
from app.core.types.hosted import HOSTED_TABLES
from tests.core.request.test_every_field import CASES, minimal, outcome, request_of
from tests.core.request.test_every_field import TOOLS as TWO_TOOLS
from tests.support.api_names import PythonTypes, Roots, is_object, names, rows, tag

ROOT = Path(__file__).parent.parent
PYTHON = PythonTypes()

ITEMS = [
    responses.ResponseInputItemParam,
    responses.ResponseItem,
    responses.ResponseOutputItem,
    beta.BetaResponseInputItemParam,
    beta.BetaResponseOutputItem,
]
TOOLS = [responses.ToolParam, beta.BetaToolParam]
EVENTS = [
    responses.ResponseStreamEvent,
    responses.ResponsesServerEvent,
    beta.BetaResponseStreamEvent,
    beta.BetaResponsesServerEvent,
]
FRAMES = [responses.ResponsesClientEvent, beta.BetaResponsesClientEvent]

INCLUDE = [ResponseIncludable, beta.BetaResponseIncludable]
ROOTS = Roots(ITEMS, TOOLS, EVENTS, FRAMES, INCLUDE, [responses.Response, beta.BetaResponse])
ROWS = rows()


def parameters() -> Iterator[str]:
    for path in CASES:
        if not path.startswith(("input[", "tools[")):
            yield path
    yield from ("stream", "tools")
    stable, beta = PYTHON.fields(ResponseCreateParamsNonStreaming), PYTHON.fields(BetaParameters)
    for name in beta.keys() - stable.keys():
        inner = [field for kind in PYTHON.members(beta[name]) for field in PYTHON.fields(kind)]
        yield from (f"{name}.{field}" for field in inner) if inner else [name]


NAMES = names(PYTHON, ROOTS) | {("Parameters", path) for path in parameters()}


@pytest.mark.parametrize("heading", sorted({heading for heading, _ in NAMES}))
def test_every_name_of_the_package_has_a_row(heading: str) -> None:
    missing = sorted(name for section, name in NAMES - ROWS.keys() if section == heading)
    assert missing == [], f"add them to docs/compatibility.md, under {heading}"


def test_walk_finds_what_the_package_has() -> None:
    assert {
        ("Items", "program"),
        ("Items", "multi_agent_call"),
        ("Parts and other objects in items", "content: computer_screenshot"),
        ("Parts and other objects in items", "annotations: file_path"),
        ("Tools", "programmatic_tool_calling"),
        ("Objects in tools", "network_policy: allowlist"),
        ("Objects in tools", "allowed_callers: programmatic"),
        ("Parameters", "background_options.completion_window"),
        ("Parameters", "multi_agent.enabled"),
        ("Values of include", "web_search_call.results"),
        ("Events", "response.steer.pending"),
        ("Frames of a WebSocket", "response.inject"),
        ("Fields of a response", "prompt_cache_diagnostics"),
        ("Fields of a response", "incomplete_details.reason: steered"),
    } <= NAMES


def test_every_row_is_a_name_of_the_package() -> None:
    assert ROWS.keys() - NAMES == set()


# The rows are true.


def warned(**body: Any) -> str:
    """Return a request's warnings or error."""
    return " ".join(outcome(request_of(body))[1])


def sample(roots: list[Any], name: str) -> dict[str, Any]:
    """Return the least object of a type."""
    kinds = [kind for root in roots for kind in PYTHON.members(root) if is_object(kind) and tag(PYTHON, kind) == name]
    return minimal(kinds[0])[0]


def listed(heading: str) -> list[tuple[str, str]]:
    return [(name, status) for (section, name), status in ROWS.items() if section == heading]


# They are resolved before a request is translated.
BEFORE = {"item_reference", "compaction", "compaction_trigger", "tool_search_output"}


@pytest.mark.parametrize(("name", "status"), [row for row in listed("Items") if row[0] not in BEFORE])
def test_status_of_an_item_is_true(name: str, status: str) -> None:
    item = sample([responses.ResponseInputItemParam, beta.BetaResponseInputItemParam], name)
    assert (f"'{name}'" in warned(input=[item])) == (status == "named")


@pytest.mark.parametrize(("name", "status"), listed("Tools"))
def test_status_of_a_tool_is_true(name: str, status: str) -> None:
    assert (name in {*TOOL_TYPES, *HOSTED_TABLES, "namespace"}) == (status == "supported")
    if status == "named":
        assert f"'{name}'" in warned(tools=[sample(TOOLS, name)])


PARTS = [row for row in listed("Parts and other objects in items") if row[0].startswith("content: ")]


@pytest.mark.parametrize(("name", "status"), PARTS)
def test_status_of_a_part_of_a_message_is_true(name: str, status: str) -> None:
    type = name.removeprefix("content: ")
    part = {"type": type, "text": "Hi.", "refusal": "No.", "image_url": "data:image/png;base64,AA=="}
    part |= {"file_data": "data:text/plain;base64,SGk=", "encrypted_content": "AA=="}
    message = {"role": "user", "content": [part, {"type": "input_text", "text": "Hi."}]}
    assert (f"'{type}'" in warned(input=[message])) == (status == "named")


# Parameters not covered by `test_every_field`.
BESIDE: dict[str, dict[str, Any]] = {
    "stream": {"stream": True},
    "tools": {"tools": TWO_TOOLS},
    "multi_agent": {"multi_agent": {"enabled": True}},
    "betas": {"betas": ["responses_multi_agent=v1"]},
}


@pytest.mark.parametrize(("name", "status"), listed("Parameters"))
def test_status_of_a_parameter_is_true(name: str, status: str) -> None:
    cases = CASES[name] if name in CASES else [[request_of(BESIDE[name.partition(".")[0]])]]
    warnings = " ".join(text for bodies in cases for body in bodies for text in _warnings_of(body))
    named = any(f"'{path}'" in warnings for path in (name, name.partition(".")[0]))
    assert named == (status == "named"), warnings


def _warnings_of(body: dict[str, Any]) -> tuple[str, ...]:
    try:
        return outcome(body)[1]
    except ValueError:  # a sample is invalid for the field
        return ()


@pytest.mark.parametrize(("name", "status"), listed("Values of include"))
def test_status_of_a_value_of_include_is_true(name: str, status: str) -> None:
    assert ("'include'" in warned(include=[name])) == (status == "named")


@pytest.mark.parametrize(("name", "status"), listed("Events"))
def test_status_of_an_event_is_true(name: str, status: str) -> None:
    assert (name in SENT) == (status == "supported")


def _sent() -> set[str]:
    """Return all event names in the sending code."""
    folders = ("core", "responses", "api")
    code = "".join(path.read_text() for folder in folders for path in sorted((ROOT / "app" / folder).rglob("*.py")))
    ends = {f"response.{status}" for status in ("completed", "failed", "incomplete")}  # `response.{status}`
    return {*re.findall(r'"((?:response\.[a-z_.]+)|error)"', code), *ends}


SENT = _sent()


@pytest.mark.parametrize(("name", "status"), listed("Frames of a WebSocket"))
def test_status_of_a_frame_is_true(name: str, status: str) -> None:
    frame = read_frame(b'{"type": "%b", "input": "Hi."}' % name.encode())
    assert isinstance(frame, Create) == (status == "supported")
    if isinstance(frame, Create):
        return
    assert frame == {"type": name, "input": "Hi."}
    if name == STEER:
        assert steer_failure(frame, 0)["type"] == "response.steer.failed"
    else:
        assert unknown_frame(frame["type"])["frame"] == name


@pytest.mark.parametrize(
    ("name", "status"), [row for row in listed("Fields of a response") if "." not in row[0] and ":" not in row[0]]
)
def test_status_of_a_field_of_a_response_is_true(name: str, status: str) -> None:
    assert (name in get_type_hints(Response)) == (status == "supported")
