"""The check for parallel calls, with a model that makes two calls at once, unlike the demo."""

from __future__ import annotations

import pytest

from app.main import create_app
from openresponses_verify.runner import chosen_checks, verify_server
from openresponses_verify.server import ServerAccess
from tests.support.build import call, finish
from tests.support.scripted import Scripted
from tests.support.serving import serving, settings
from tests.verify.broken_server import BrokenServer, Fault, Reply, Sent, unchanged


def one_id_for_all_calls(answer: Reply, sent: Sent) -> None:
    document = answer.json
    for item in document["output"]:
        item["call_id"] = "call_1"
    answer.json = document


@pytest.mark.parametrize(
    ("calls", "reply", "verdict", "detail"),
    [
        (2, unchanged, "pass", ""),
        (2, one_id_for_all_calls, "fail", "Two calls have the same call_id."),
        (1, unchanged, "unclear", "The model did not make parallel calls."),
    ],
)
async def test_parallel_calls_are_judged_by_their_ids_if_there_are_two(
    calls: int, reply: object, verdict: str, detail: str
) -> None:
    made = [call(id=f"call_{n}", index=n, name="get_weather", arguments="{}") for n in range(calls)]
    app = create_app(settings(), backend=Scripted([*made, finish("tool_calls")]))
    fault = Fault("", "", reply=reply)  # type: ignore[arg-type]
    async with serving(BrokenServer(app, fault)) as url:  # type: ignore[arg-type]
        report = await verify_server(ServerAccess(f"{url}/v1", "m"), chosen_checks(["tools.parallel"]))
    (result,) = report.results
    assert (result.verdict, result.detail.partition("\n")[0]) == (verdict, detail)
