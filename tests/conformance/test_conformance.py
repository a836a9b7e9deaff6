"""The conformance page and table, without other servers."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from openresponses_verify.checks import ALL_CHECKS
from tests.conformance.comparison import comparison
from tests.conformance.page import page
from tests.conformance.run import BEGIN, END, PAGE, README, RESULTS, of_readme
from tests.conformance.servers import SUBJECTS
from tests.conformance.upstream import app

HELLO = {"model": "demo", "messages": [{"role": "user", "content": "Say hello."}]}


async def ask(**fields: Any) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://upstream") as http:
        return await http.post("/v1/chat/completions", json={**HELLO, **fields})


async def test_scripted_server_answers_in_json_and_streamed() -> None:
    whole = (await ask()).json()
    assert whole["choices"][0]["message"]["content"] == "Hello there, friend!"
    assert whole["usage"]["total_tokens"] == whole["usage"]["prompt_tokens"] + whole["usage"]["completion_tokens"]
    lines = [line for line in (await ask(stream=True)).text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    assert text == "Hello there, friend!"


async def test_scripted_server_joins_a_call() -> None:
    function = {"name": "get_weather", "parameters": {"type": "object", "properties": {"location": {"type": "string"}}}}
    whole = (await ask(tools=[{"type": "function", "function": function}], tool_choice="required")).json()
    (call,) = whole["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert "location" in json.loads(call["function"]["arguments"])
    assert whole["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 17),
        ("top_p", "high"),
        ("max_tokens", 0),
        ("messages", [{"role": "nobody", "content": "Hi."}]),
        ("tools", [{"type": "function", "function": {}}]),
        ("tool_choice", "sometimes"),
        ("response_format", {"type": "xml"}),
        ("reasoning_effort", "endless"),
        ("stream", "maybe"),
    ],
)
async def test_scripted_server_refuses_what_others_refuse(field: str, value: object) -> None:
    answer = await ask(**{field: value})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


def test_page_and_the_table_of_readme_are_those_of_the_results() -> None:
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert f"{BEGIN}{of_readme(results)}{END}" in README.read_text(encoding="utf-8")
    assert set(results) <= {subject.name for subject in SUBJECTS}
    text, made = PAGE.read_text(encoding="utf-8"), page(results)
    for name, result in results.items():
        assert f"| {name} | {result['version']} | {result['date']} |" in text
        section = made.partition(f"\n### {name} {result['version']}\n")[2].partition("\n### ")[0]
        assert all(f"`{id}`" in section for id in result["details"])
        assert set(result["details"]) == {id for id, status in result["statuses"].items() if status == "fail"}
    assert [line for line in made.splitlines() if line.startswith("- ")] == [
        line for line in text.splitlines() if line.startswith("- ")
    ]


def test_page_merges_equal_stores_and_omits_checks_passed_by_all() -> None:
    statuses = {check.id: "pass" for check in ALL_CHECKS}
    result = {"version": "1", "date": "2026-01-01", "settings": "", "details": {}}
    made = page(
        {
            "Antiphon, memory": {**result, "statuses": statuses},
            "Antiphon, redis": {**result, "statuses": statuses},
            "LiteLLM": {**result, "statuses": {**statuses, "state.fork": "unsupported"}},
        }
    )
    assert "| check | Antiphon | LiteLLM |" in made
    assert [line for line in made.splitlines() if line.startswith("| `")] == [
        "| `state.fork` Forks are independent | \u2713 | - |"
    ]


def test_cell_of_the_table_says_how_much_of_a_group_passes() -> None:
    statuses = {check.id: "pass" for check in ALL_CHECKS}
    mixed = {**statuses, "state.fork": "fail", "state.chain": "unclear", "websocket.turn": "unclear"}
    mixed |= {id: "unsupported" for id in statuses if id.startswith("conversations.")}
    mixed |= {
        id: "fail" if id == "compaction.create" else "unsupported" for id in statuses if id.startswith("compaction.")
    }
    table = comparison({"Antiphon, postgresql": {"statuses": statuses}, "LiteLLM": {"statuses": mixed}})
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    cells = {row[-1]: row[1:4] for row in rows}
    state = sum(id.startswith("state.") for id in statuses)
    assert cells["checks `state`"] == ["yes", f"{state - 2} of {state} (1 failed)", "not run"]
    assert cells["checks `websocket`"][::2] == ["yes", "not run"]
    assert cells["checks `conversations`"] == ["yes", "no", "not run"]
    assert cells["checks `compaction`"] == ["yes", "no (1 failed)", "not run"]
    assert {len(row) for row in rows} == {8}
