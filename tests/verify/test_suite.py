"""The official suite's scenarios: each detects a server that ignores its request."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from app.backends.demo import DemoBackend
from app.main import create_app
from openresponses_verify.checks import ALL_CHECKS
from openresponses_verify.runner import chosen_checks, verify_server
from openresponses_verify.server import ServerAccess
from tests.support.serving import serving, settings
from tests.verify.broken_server import BrokenServer, Fault, Json, Reply, Sent, of_type

SCENARIOS = {check.id.removeprefix("suite.") for check in ALL_CHECKS if check.group == "suite"}
WHOLE = {"basic-response", "assistant-phase", "system-prompt", "image-input", "multi-turn"}
TURNS = {name for name in SCENARIOS if name.startswith("websocket-")}
NOT_FOUND = {
    "websocket-previous-response-not-found",
    "websocket-reconnect-store-false-recovery",
    "websocket-failed-continuation-evicts-cache",
}


def no_output(answer: Reply, sent: Sent) -> None:
    if sent.creates and answer.status == 200 and not answer.streams and not sent.body.get("tools"):
        answer.json = {**answer.json, "output": []}


def no_such_phase(answer: Reply, sent: Sent) -> None:
    if sent.asks(store=False) and not answer.streams:
        output = [{**item, "phase": "thinking"} for item in answer.json["output"]]
        answer.json = {**answer.json, "output": output}


def no_end(answer: Reply, sent: Sent) -> None:
    if answer.streams:
        events = answer.events
        for event in of_type(events, "response.completed"):
            event["response"]["status"] = "in_progress"
        answer.events = events


def a_call_has_no_call_id(answer: Reply, sent: Sent) -> None:
    if sent.creates and not answer.streams and "call_id" in (answer.json.get("output") or [{}])[0]:
        output = [{name: value for name, value in item.items() if name != "call_id"} for item in answer.json["output"]]
        answer.json = {**answer.json, "output": output}


def a_compaction_has_messages_only(answer: Reply, sent: Sent) -> None:
    if sent.path == "/responses/compact" and answer.status == 200:
        output = [item for item in answer.json["output"] if item["type"] == "message"]
        answer.json = {**answer.json, "output": output}


def a_model_is_not_required(answer: Reply, sent: Sent) -> None:
    if sent.path == "/responses/compact" and answer.status == 400:
        answer.status = 200


def another_code(frame: Json, memory: Json) -> Iterable[Json] | None:
    return [{**frame, "error": {**frame["error"], "code": "not_found"}}] if "status" in frame else None


def a_turn_without_status(frame: Json, memory: Json) -> Iterable[Json] | None:
    return [{**frame, "response": {**frame["response"], "status": None}}] if "response" in frame else None


def the_second_turn_fails(frame: Json, memory: Json) -> Iterable[Json] | None:
    if frame["type"] == "response.completed":
        memory["ended"] = memory.get("ended", 0) + 1
        if memory["ended"] == 2:
            return [{**frame, "type": "response.failed", "response": {**frame["response"], "status": "failed"}}]
    return None


FAULTS = [
    (Fault("no output", "", reply=no_output), WHOLE),
    (Fault("no such phase", "", reply=no_such_phase), {"response-output-phase-schema"}),
    (Fault("no end", "", reply=no_end), {"streaming-response"}),
    (Fault("a call has no call_id", "", reply=a_call_has_no_call_id), {"tool-calling"}),
    (Fault("a compaction has messages only", "", reply=a_compaction_has_messages_only), {"compact-response"}),
    (Fault("a model is not required", "", reply=a_model_is_not_required), {"compact-missing-model"}),
    (Fault("another code", "", frames=another_code), NOT_FOUND),
    (
        Fault("a turn without status", "", frames=a_turn_without_status),
        TURNS - {"websocket-previous-response-not-found"},
    ),
    (
        Fault("the second turn fails", "", frames=the_second_turn_fails),
        {"websocket-sequential-responses", "websocket-continuation"},
    ),
]


@pytest.mark.parametrize(("fault", "finds"), FAULTS, ids=[fault.name for fault, _ in FAULTS])
async def test_fault_is_found_by_the_scenarios_that_meet_it(fault: Fault, finds: set[str]) -> None:
    server = BrokenServer(create_app(settings(), backend=DemoBackend()), fault)
    options = {"ws": "app.api.uvicorn.websocket:WebSocketProtocol", "ws_per_message_deflate": False}
    async with serving(server, **options) as url:  # type: ignore[arg-type]
        report = await verify_server(ServerAccess(f"{url}/v1", "demo"), chosen_checks(["suite.*"]))
    failed = {row.check.id.removeprefix("suite."): row.detail for row in report.results if row.verdict == "fail"}
    assert set(failed) == finds, failed


def test_every_scenario_finds_a_fault() -> None:
    assert set.union(*(finds for _, finds in FAULTS)) == SCENARIOS
