"""Stream checks: the answers they examine, and their reports."""

from __future__ import annotations

import pytest

from app.backends.demo import DemoBackend
from app.main import create_app
from openresponses_verify.runner import VerifyReport, chosen_checks, verify_server
from openresponses_verify.server import ServerAccess
from tests.support.serving import serving, settings
from tests.verify.broken_server import BrokenServer, Fault, Reply, Sent

# Checks on all sampled streams.
LOOKING_AT_ALL = ("stream.event-name", "stream.data", "stream.done", "stream.framing")


def cuts_off(answer: Reply, sent: Sent) -> bool:
    """Return whether an answer is the truncated stream among the samples."""
    return answer.streams and sent.asks(max_output_tokens=16)


def a_document(answer: Reply, sent: Sent) -> None:
    if cuts_off(answer, sent):
        answer.json = answer.events[-1]["response"]
        answer.headers["content-type"] = "application/json"


def a_refusal(answer: Reply, sent: Sent) -> None:
    if cuts_off(answer, sent):
        answer.status, answer.content = 500, b"data: broken\n\n"


def events_without_names(answer: Reply, sent: Sent) -> None:
    if answer.streams:
        answer.content = answer.content.replace(b"event: response.", b"id: ")


def events_of_other_names(answer: Reply, sent: Sent) -> None:
    if answer.streams:
        answer.content = answer.content.replace(b"event: response.", b"event: message.")


def no_stream(answer: Reply, sent: Sent) -> None:
    if answer.streams:
        answer.status, answer.content = 500, b"data: broken\n\n"


async def verified(fault: Fault, *checks: str) -> VerifyReport:
    app = create_app(settings(), backend=DemoBackend())
    async with serving(BrokenServer(app, fault)) as url:  # type: ignore[arg-type]
        return await verify_server(ServerAccess(f"{url}/v1", "demo"), chosen_checks(checks))


@pytest.mark.parametrize("reply", [a_document, a_refusal])
async def test_sample_that_is_not_streamed_is_left_out_of_the_checks_of_streams(reply: object) -> None:
    report = await verified(Fault("", "", reply=reply), "stream.*")  # type: ignore[arg-type]
    assert {result.check.id: result.detail for result in report.results if result.verdict != "pass"} == {}


async def test_checks_of_streams_without_any_stream_are_unclear() -> None:
    report = await verified(Fault("", "", reply=no_stream), *LOOKING_AT_ALL)
    assert {result.check.id: result.verdict for result in report.results} == dict.fromkeys(LOOKING_AT_ALL, "unclear")


@pytest.mark.parametrize(
    ("reply", "detail"),
    [
        (events_without_names, "The event field is missing; the type is 'response.created'."),
        (events_of_other_names, "The event field is 'message.created'; the type is 'response.created'."),
    ],
)
async def test_event_with_mismatched_name_is_reported_with_both(reply: object, detail: str) -> None:
    report = await verified(Fault("", "", reply=reply), "stream.event-name")  # type: ignore[arg-type]
    (result,) = report.results
    assert result.verdict == "fail"
    assert result.detail.partition("\n")[0] == detail
