"""Correct servers, and servers with another check's fault: no other check may fail them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.backends.demo import DemoBackend
from app.main import create_app
from openresponses_verify.runner import VerifyReport, chosen_checks, verify_server
from openresponses_verify.server import ServerAccess
from tests.support.serving import serving, settings
from tests.verify.broken_server import BrokenServer, Fault, Json, Reply, Sent

KEYS = ("sk-one", "sk-two")


@contextlib.asynccontextmanager
async def served(fault: Fault) -> AsyncIterator[ServerAccess]:
    app = create_app(settings(api_keys=list(KEYS)), backend=DemoBackend())
    async with serving(BrokenServer(app, fault)) as url:  # type: ignore[arg-type]
        yield ServerAccess(f"{url}/v1", "demo", *KEYS)


async def verified(fault: Fault, *only: str) -> VerifyReport:
    async with served(fault) as access:
        return await verify_server(access, chosen_checks(only))


def verdicts(report: VerifyReport) -> dict[str, str]:
    return {result.check.id: result.verdict for result in report.results}


def details(report: VerifyReport) -> str:
    return "\n".join(result.detail for result in report.results)


def document_of(reply: Reply) -> Json:
    """Return the JSON object of an answer, {} if there is none."""
    document = reply.json if reply.headers.get("content-type") == "application/json" else None
    return document if isinstance(document, dict) else {}


def cancel_is_not_implemented(reply: Reply, sent: Sent) -> None:
    if sent.path.endswith("/cancel"):
        reply.status, reply.json = 501, {"error": {"message": "Not implemented.", "type": "server_error"}}


async def test_cancel_that_answers_501_is_unsupported_for_other_users() -> None:
    report = await verified(Fault("", "", reply=cancel_is_not_implemented), "isolation.*")
    assert verdicts(report).pop("isolation.cancel") == "unsupported"
    assert report.summary["fail"] == 0


def without_status(reply: Reply, sent: Sent) -> None:
    document = document_of(reply)
    if document.get("object") == "response" and document.pop("status", None):
        reply.json = document


async def test_response_without_status_leaves_the_background_checks_unclear() -> None:
    report = await verified(Fault("", "", reply=without_status), "background.*", "schema.required")
    found = verdicts(report)
    assert found.pop("schema.required") == "fail"
    assert found["background.create"] == found["background.cancel"] == "unclear"
    assert "fail" not in found.values(), details(report)


def without_ids(reply: Reply, sent: Sent) -> None:
    document = document_of(reply)
    for one in (document, *(document.get("data") or [])):
        if isinstance(one, dict) and "models" not in sent.path:
            one.pop("id", None)
    if document:
        reply.json = document


async def test_missing_ids_are_never_put_into_a_path() -> None:
    paths: list[str] = []

    def note_path(reply: Reply, sent: Sent) -> None:
        paths.append(sent.path)
        without_ids(reply, sent)

    report = await verified(Fault("", "", reply=note_path), "conversations.*", "state.*", "isolation.*", "background.*")
    assert len(paths) > 10
    assert [path for path in paths if "None" in path] == []
    found = verdicts(report)
    assert found["conversations.create"] == "fail" and found["conversations.item"] == "unclear"


def items_without_ids(reply: Reply, sent: Sent) -> None:
    if sent.path.endswith("/items") and sent.method == "GET":
        without_ids(reply, sent)


async def test_items_without_ids_are_not_retrieved_by_the_name_none() -> None:
    report = await verified(Fault("", "", reply=items_without_ids), "conversations.item", "conversations.items-order")
    assert set(verdicts(report).values()) == {"unclear"}


@pytest.mark.parametrize("check", ["state.input-items-order", "conversations.items-order"])
async def test_ignored_order_is_reported_as_ignored(check: str) -> None:
    def drop_query(scope: Any) -> None:
        scope["query_string"] = b""

    app = create_app(settings(api_keys=list(KEYS)), backend=DemoBackend())

    async def without_query(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            drop_query(scope)
        await app(scope, receive, send)

    async with serving(without_query) as url:  # type: ignore[arg-type]
        report = await verify_server(ServerAccess(f"{url}/v1", "demo", *KEYS), chosen_checks([check]))
    (result,) = report.results
    assert result.verdict == "fail"
    assert result.detail.partition("\n")[0] == "The query `order=asc` is ignored: the list is the same without it."


def ends_after_nine_tokens(reply: Reply, sent: Sent) -> None:
    """Answer a request with a limit of 16 tokens like a model that ends after 9."""
    if not sent.asks(max_output_tokens=16, input="Count from 1 to 200, separated by commas."):
        return

    def end(response: Json) -> None:
        response.update(status="completed", incomplete_details=None)
        response["usage"].update(output_tokens=9, total_tokens=response["usage"]["input_tokens"] + 9)
        for item in response["output"]:
            item["status"] = "completed"

    if reply.streams:
        events = reply.events
        for event in events:
            if event["type"] == "response.incomplete":
                event["type"] = "response.completed"
                end(event["response"])
            elif event["type"] == "response.output_item.done":
                event["item"]["status"] = "completed"
        reply.events = events
    else:
        document = reply.json
        end(document)
        reply.json = document


async def test_answer_that_ends_before_the_limit_is_not_called_cut() -> None:
    report = await verified(Fault("", "", reply=ends_after_nine_tokens), "limits.*")
    assert report.summary["fail"] == 0, details(report)
    assert verdicts(report)["limits.incomplete"] == verdicts(report)["limits.incomplete-event"] == "unclear"


def input_of_any_type(reply: Reply, sent: Sent) -> None:
    if sent.creates and sent.body.get("input") == 7:
        reply.status = 200


async def test_accepted_input_type_is_not_reported_for_the_stream_as_well() -> None:
    report = await verified(Fault("", "", reply=input_of_any_type), "errors.input-type", "errors.stream-status")
    assert verdicts(report) == {"errors.input-type": "fail", "errors.stream-status": "pass"}


def null_phase(reply: Reply, sent: Sent) -> None:
    if sent.creates and document_of(reply):
        document = reply.json
        for item in document.get("output") or []:
            item["phase"] = None
        reply.json = document


async def test_null_phase_is_judged_by_the_schema_everywhere() -> None:
    checks = ("schema.items", "suite.response-output-phase-schema", "suite.basic-response")
    report = await verified(Fault("", "", reply=null_phase), *checks)
    assert set(verdicts(report).values()) == {"fail"}
