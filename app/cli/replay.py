"""`antiphon replay ID... --model M`: repeats stored responses, optionally with another model, and compares."""

from __future__ import annotations

import difflib
import json
import time
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from app.cli.client import ServerClient
from app.cli.options import CommandError, safe
from app.core.history.resource import declared_tool
from app.core.types import JSONObject

# The first existing field contains a call's input.
_ARGUMENTS = ("arguments", "input", "code", "action", "operation", "queries")
_REPEATABLE = ("completed", "incomplete", "failed")
_COLORS = {"+": "green", "-": "red", "@": "dim"}


class Result(NamedTuple):
    model: str
    status: str
    text: str
    calls: list[tuple[str, str]]  # names and arguments
    usage: JSONObject
    seconds: float | None
    cost: float | None

    @classmethod
    def of(cls, response: JSONObject, seconds: float | None, cost: float | None) -> Result:
        output = response["output"]
        parts = [part for item in output if item["type"] == "message" for part in item["content"]]
        text = "\n".join(part.get("text") or part.get("refusal") or "" for part in parts)
        calls = [_call(item) for item in output if item["type"].endswith("_call")]
        return cls(response["model"], response["status"], text, calls, response.get("usage") or {}, seconds, cost)

    def same_as(self, other: Result) -> bool:
        return (self.status, self.text, self.calls) == (other.status, other.text, other.calls)

    def summary(self) -> JSONObject:
        calls = [{"name": name, "arguments": arguments} for name, arguments in self.calls]
        return {**self._asdict(), "calls": calls}


def replay(client: ServerClient, console: Console, response_id: str, model: str | None, *, as_json: bool) -> bool:
    """
    Repeat a stored response without storing the result; print both and return whether they are equal.

    Raises `CommandError`.
    """
    before, after = _repeated(client, response_id, model)
    same = before.same_as(after)
    if as_json:
        console.print_json(data=_as_json(before, after))
    else:
        _print(console, before, after)
    return same


def replay_all(
    client: ServerClient, console: Console, response_ids: Sequence[str], model: str | None, *, as_json: bool
) -> bool:
    """
    Repeat several responses, and print a row for each; return whether all are equal.

    A response that cannot be repeated is a row with its error, and counts as different.
    """
    found: list[tuple[str, tuple[Result, Result] | str]] = []
    for response_id in response_ids:
        try:
            found.append((response_id, _repeated(client, response_id, model)))
        except CommandError as error:
            found.append((response_id, str(error)))
    if as_json:
        rows = [
            {"id": name, "error": result} if isinstance(result, str) else {"id": name, **_as_json(*result)}
            for name, result in found
        ]
        console.print_json(data=rows)
    else:
        _print_all(console, found)
    return all(not isinstance(result, str) and result[0].same_as(result[1]) for _, result in found)


def newest(client: ServerClient, number: int) -> list[str]:
    """Ids of finished responses; raises `CommandError`."""
    page = client.get(f"antiphon/responses?limit={number}")
    return [entry["id"] for entry in page["data"] if entry["status"] in _REPEATABLE]


def _as_json(before: Result, after: Result) -> JSONObject:
    return {"same": before.same_as(after), "before": before.summary(), "after": after.summary()}


def _repeated(client: ServerClient, response_id: str, model: str | None) -> tuple[Result, Result]:
    """The stored result and the repeated result; raises `CommandError`."""
    chain = client.get(f"antiphon/responses/{quote(response_id, safe='')}/chain")
    turn = chain["data"][-1]
    if turn["response"]["status"] not in _REPEATABLE:
        status = turn["response"]["status"].replace("_", " ")
        raise CommandError(f"The response is {status}: only a finished response can be repeated.")
    measures = turn.get("measures") or {}
    before = Result.of(turn["response"], measures.get("seconds"), measures.get("cost"))
    began = time.perf_counter()
    response, headers = client.send("POST", "responses", replay_request(chain, model))
    cost = headers.get("x-antiphon-cost")
    return before, Result.of(response, round(time.perf_counter() - began, 3), float(cost) if cost else None)


def replay_request(chain: JSONObject, model: str | None) -> JSONObject:
    """A chain's last request, without storage."""
    turn, past = chain["data"][-1], chain["earlier"]  # a conversation's earlier turns, which must not be extended
    response = turn["response"]
    tools = [declared_tool(tool) for tool in response["tools"]]
    fields = {
        "model": model or response["model"],
        "instructions": response.get("instructions"),
        "tools": tools or None,
        "previous_response_id": response.get("previous_response_id"),
        **(turn.get("request") or {}),
    }
    body = {name: value for name, value in fields.items() if value is not None}
    return {**body, "input": [*past, *turn["input"]], "store": False}


def _call(item: JSONObject) -> tuple[str, str]:
    name = str(item.get("name") or item["type"].removesuffix("_call"))
    label = item.get("server_label") or item.get("namespace")
    written: Any = next((item[field] for field in _ARGUMENTS if item.get(field) is not None), "")
    if isinstance(written, str):
        try:
            written = json.loads(written)
        except ValueError:
            return f"{label}.{name}" if label else name, written
    return f"{label}.{name}" if label else name, json.dumps(written, sort_keys=True, ensure_ascii=False)


def _print(console: Console, before: Result, after: Result) -> None:
    table = Table(show_header=True, box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("", "before", "now"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for name, values in _rows(before, after).items():
        table.add_row(name, *map(safe, values))
    console.print(table)
    for name, was, is_now in (
        ("Calls", _lines(before.calls), _lines(after.calls)),
        ("Text", before.text.splitlines(), after.text.splitlines()),
    ):
        if was == is_now:
            console.print(f"{name}: the same", style="bold", highlight=False)
            continue
        console.print(f"{name}: different", style="bold", highlight=False)
        for line in [*difflib.unified_diff(was, is_now, "before", "now", lineterm="", n=1)][2:]:
            console.print(safe(line), style=_COLORS.get(line[0]), markup=False, highlight=False, soft_wrap=True)


def _print_all(console: Console, found: Sequence[tuple[str, tuple[Result, Result] | str]]) -> None:
    table = Table(show_header=True, box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("response", "result", "seconds", "now", "output tokens", "now", "cost", "now"):
        table.add_column(heading, justify="left" if heading in ("response", "result") else "right", no_wrap=True)
    pairs = [result for _, result in found if not isinstance(result, str)]
    for name, result in found:
        if isinstance(result, str):
            table.add_row(safe(name), safe(result))
        else:
            before, after = result
            if before.status != after.status:
                difference = f"status: {safe(after.status)}"
            elif before.calls != after.calls:
                difference = "other calls"
            else:
                difference = "same" if before.text == after.text else "other text"
            rows = _rows(before, after)
            numbers = [safe(value) for row in ("seconds", "output tokens", "cost") for value in rows[row]]
            table.add_row(safe(name), difference, *numbers)
    console.print(table)
    same = sum(before.same_as(after) for before, after in pairs)
    times = [sum(result.seconds or 0 for result in side) for side in zip(*pairs, strict=True)]
    costs = [sum(result.cost or 0 for result in side) for side in zip(*pairs, strict=True)]
    if pairs:
        total = f"{times[0]:.2f} s before, {times[1]:.2f} s now; cost {costs[0]:.6f} before, {costs[1]:.6f} now"
        console.print(f"{same} of {len(found)} the same; {total}", highlight=False)


def _rows(before: Result, after: Result) -> dict[str, tuple[object, object]]:
    def both(show: Any) -> tuple[object, object]:
        return show(before), show(after)

    return {
        "model": both(lambda result: result.model),
        "status": both(lambda result: result.status),
        "input tokens": both(lambda result: result.usage.get("input_tokens", "")),
        "output tokens": both(lambda result: result.usage.get("output_tokens", "")),
        "calls": both(lambda result: len(result.calls)),
        "seconds": both(lambda result: "" if result.seconds is None else f"{result.seconds:.2f}"),
        "cost": both(lambda result: "" if result.cost is None else f"{result.cost:.6f}"),
    }


def _lines(calls: list[tuple[str, str]]) -> list[str]:
    return [f"{name} {arguments}" for name, arguments in calls]
