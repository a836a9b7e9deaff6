"""The benchmark detects wrong answers, and reports its measurements correctly."""

from __future__ import annotations

import json
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.bench import check, instructions, plot, report
from tests.bench.answers import answer
from tests.bench.bench import Bench, WrongAnswer
from tests.bench.load import ask, turns_of, volley
from tests.bench.results import Measurement, Results
from tests.bench.scenarios import SCENARIOS, Scenario, shortened
from tests.bench.servers import SERVERS, UPSTREAM, Server, Target, running

BY_NAME = {scenario.name: shortened(scenario) for scenario in SCENARIOS}
ANTIPHON, *_, PEER = SERVERS
STREAM = BY_NAME["S2"]
TEXT = answer(STREAM.model).text


@pytest.fixture(scope="module")
def upstream() -> Iterator[Target]:
    with running(UPSTREAM, subprocess.DEVNULL) as target:
        yield target


@pytest.mark.parametrize("scenario", BY_NAME.values(), ids=list(BY_NAME))
async def test_upstream_answers_every_scenario_rightly(upstream: Target, scenario: Scenario) -> None:
    replies = await volley(upstream, scenario, 2)
    turns = turns_of(upstream.server, scenario)
    assert [reply.wrong(upstream.server, scenario) for reply in replies] == [""] * 2 * len(turns)
    assert all(reply.started < reply.first <= reply.ended for reply in replies)


async def test_upstream_gets_a_conversation_whole(upstream: Target) -> None:
    first, *_, last = await volley(upstream, BY_NAME["S4"], 1)
    assert (first.messages, last.messages) == (1, 11)
    last.messages = 10
    assert last.wrong(upstream.server, BY_NAME["S4"]) == "the upstream received 11 messages, not 10"


async def test_upstream_answers_requests_for_responses_as_json(upstream: Target) -> None:
    by_responses = Target(replace(upstream.server, api="responses", path="/v1/responses"), upstream.port, upstream.pid)
    for name in ("S1", "S5"):
        replies = await volley(by_responses, BY_NAME[name], 2)
        assert [reply.wrong(by_responses.server, BY_NAME[name]) for reply in replies] == ["", ""]


async def test_wrong_answer_ends_the_run(upstream: Target) -> None:
    antiphon = Target(replace(ANTIPHON, path="/v1/unknown"), upstream.port, upstream.pid)
    with pytest.raises(WrongAnswer, match=r"antiphon, S1: HTTP/1\.1 404 Not Found"):
        await Bench([BY_NAME["S1"]], upstream, [antiphon]).warm_up()


async def test_wrong_answer_of_a_peer_leaves_it_out_of_its_scenario(upstream: Target) -> None:
    bench = Bench([BY_NAME["S1"]], upstream, [Target(replace(PEER, path="/v1/unknown"), upstream.port, upstream.pid)])
    await bench.warm_up()
    await bench.round(0)
    assert bench.results.left_out["S1", PEER.name].startswith("HTTP/1.1 404 Not Found")
    assert not bench.results.measurements


def streamed(server: Server, *events: dict[str, Any], text: str = TEXT) -> str:
    """Return the error in a stream with these events and their usual ending."""
    item = {"type": "message", "id": "msg_1", "content": [{"type": "output_text", "text": text}]}
    usage = {"input_tokens": 1}
    final = {"status": "completed", "output": [item], "usage": usage}
    all_events = [*events, {"type": "response.completed", "response": final}]
    lines = [f"data: {json.dumps(event | {'sequence_number': at})}\n\n" for at, event in enumerate(all_events)]
    return check.wrong(server, STREAM, "".join([*lines, "data: [DONE]\n\n"]).encode(), 1)


BEGINNING = ({"type": "response.created"}, {"type": "response.in_progress"})
ADDED = {"type": "response.output_item.added", "item": {"id": "msg_1"}}
DONE = {"type": "response.output_item.done", "item": {"id": "msg_1"}}
DELTA = {"type": "response.output_text.delta", "delta": TEXT}


def test_stream_that_is_right_is_accepted() -> None:
    assert streamed(ANTIPHON, *BEGINNING, ADDED, DELTA, DONE) == ""


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ((*BEGINNING, ADDED, DONE), "the deltas are ''"),
        ((*BEGINNING, DELTA, DONE), "items added [], and done ['msg_1']"),
        ((ADDED, DELTA, DONE), "the stream begins with ['response.output_item.added'"),
    ],
)
def test_stream_that_is_wrong_is_detected(events: tuple[dict[str, Any], ...], problem: str) -> None:
    assert streamed(ANTIPHON, *events).startswith(problem)


def test_stream_of_a_peer_is_checked_for_its_text_and_not_its_order() -> None:
    assert streamed(PEER, DELTA) == ""
    assert streamed(PEER, {**DELTA, "delta": "no"}, text="no") == "wrong text: 'no'"


def test_upstream_gets_the_requests_of_the_scenario() -> None:
    head, _, body = ask(ANTIPHON, BY_NAME["S4+"], 5, "resp_5")[0].partition(b"\r\n\r\n")
    sent = json.loads(body)
    assert head.startswith(b"POST /v1/responses HTTP/1.1\r\n")
    assert (sent["previous_response_id"], sent["store"], len(sent["input"])) == ("resp_5", True, 1)


def test_ratios_are_taken_within_a_round() -> None:
    results = Results()
    for server, used in (("antiphon", (4.0, 30.0, 9.0)), ("byte proxy", (1.0, 10.0, 3.0))):
        results.measurements["S2", server] = [Measurement(cpu * 1e-6, 0.0, 0.0) for cpu in used]
    chosen = [server for server in SERVERS if server.name in {"antiphon", "byte proxy"}]
    assert (
        report.cpu_table(results, [STREAM], chosen).splitlines()[-1].endswith("| µs / delta |     9.00 |       3.00 |")
    )
    assert report.ratio_table(results, [STREAM], chosen).splitlines()[-1].endswith("|                  3.00 |")
    marks = ElementTree.fromstring(plot.drawn(results, [STREAM], chosen)).iter("{http://www.w3.org/2000/svg}circle")
    assert len(list(marks)) == 2  # in the legend and in the row


def test_sentence_of_the_readme_has_the_least_and_the_most_of_a_peer() -> None:
    results = Results()
    for scenario, used in (("S1", 20.0), ("S2", 90.0)):
        results.measurements[scenario, "antiphon"] = [Measurement(10e-6, 0.0, 0.0)]
        results.measurements[scenario, "litellm"] = [Measurement(used * 1e-6, 0.0, 0.0)]
    sentence = report.sentence(results, [BY_NAME["S1"], BY_NAME["S2"]], SERVERS)
    assert "litellm 2.00 to 9.00" in sentence
    assert "open-responses-server" not in sentence  # it was not measured


def test_instructions_are_read_from_callgrinds_output() -> None:
    assert instructions.total("version: 1\nevents: Ir\nfn=(1) main\n0 17\n\ntotals: 1234567\n") == 1234567
    with pytest.raises(ValueError, match="totals"):
        instructions.total("events: Ir\n")


def test_table_of_instructions_has_the_counted_servers_only() -> None:
    results = Results(instructions={("S1", "antiphon"): 1_996_400.0, ("S1", "translator"): 160_000.0})
    head, _, row = report.instruction_table(results, list(BY_NAME.values()), SERVERS).splitlines()[2:]
    assert [cell.strip() for cell in head.split("|")[3:-1]] == ["per", "antiphon", "translator"]
    assert [cell.strip() for cell in row.split("|")[3:-1]] == ["request", "1,996", "160"]
    assert report.instruction_table(Results(), list(BY_NAME.values()), SERVERS) == ""
