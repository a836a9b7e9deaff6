"""While a large request is made ready, others are answered."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import httpx
import pytest

from app.core.bounded_json import LARGE, MANY
from app.core.profile import Profile
from app.core.request.model_request import ModelRequest
from app.errors import BackendError
from app.runtime.threads import LARGE_REQUEST, read_records, run_in_thread_if_large
from tests.responses.test_tool_loop import LAB, TABLES, hello, made
from tests.support.build import delta, finish
from tests.support.hosted_lab import ScriptedTool
from tests.support.scripted import Scripted
from tests.support.serving import antiphon


class Noting(Scripted):
    """A backend that records the threads calling it."""

    def __init__(self, *answers: list[Any]) -> None:
        super().__init__(*(answers or [[delta(content="Hello")]]))
        self.threads: set[int] = set()
        self.by_round: list[set[int]] = []

    def profile(self, model: str) -> Profile:
        self.threads.add(threading.get_ident())
        return super().profile(model)

    def open(self, model_request: ModelRequest) -> Any:
        self.by_round.append(self.threads)
        self.threads = set()
        return super().open(model_request)


async def test_event_loop_goes_on_while_a_large_request_is_worked_on() -> None:
    LARGE_REQUEST.set(True)
    gone_on = threading.Event()
    asyncio.get_running_loop().call_soon(gone_on.set)
    assert await run_in_thread_if_large(gone_on.wait, 60)


@pytest.mark.parametrize("large", [False, True])
async def test_exception_of_a_request_is_raised(large: bool) -> None:
    LARGE_REQUEST.set(large)
    with pytest.raises(ValueError, match="invalid literal"):
        await run_in_thread_if_large(int, "x")


async def test_large_records_make_a_request_large() -> None:
    assert await read_records([b"a" * LARGE], threading.get_ident) == threading.get_ident()
    assert await read_records([b"a" * (LARGE + 1)], threading.get_ident) != threading.get_ident()
    assert await run_in_thread_if_large(threading.get_ident) != threading.get_ident()


@pytest.mark.parametrize(
    "fields",
    [
        {"input": [{"role": "user", "content": f"{n}"} for n in range(MANY + 1)]},
        {"input": "a", "tools": [{"type": "function", "name": f"f{n}"} for n in range(MANY + 1)]},
        {"input": "a", **{f"unknown_{n}": n for n in range(MANY + 1)}},
    ],
)
async def test_large_request_is_translated_in_a_thread(fields: dict[str, Any]) -> None:
    backend = Noting()
    async with antiphon(backend) as url, httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
        small = await http.post("/v1/responses", json={"model": "m", "input": "a"})
        assert backend.by_round[0] == {threading.get_ident()}
        large = await http.post("/v1/responses", json={"model": "m", **fields})
        assert len(backend.by_round[1]) == 2
    assert (small.status_code, large.status_code) == (200, 200)
    if isinstance(fields["input"], list):
        assert [message["content"] for message in backend.received[-1]["messages"]] == [f"{n}" for n in range(MANY + 1)]


@pytest.mark.parametrize("continues", [True, False])
async def test_request_that_names_a_large_stored_item_is_translated_in_a_thread(continues: bool) -> None:
    backend = Noting()
    async with antiphon(backend) as url, httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
        large = [{"role": "user", "content": "a" * (LARGE + 1)}]
        stored = (await http.post("/v1/responses", json={"model": "m", "input": large})).json()["id"]
        item = (await http.get(f"/v1/responses/{stored}/input_items")).json()["data"][0]
        continued = {"input": [{"role": "user", "content": "b"}], "previous_response_id": stored}
        referring = {"input": [{"type": "item_reference", "id": item["id"]}]}
        answer = await http.post("/v1/responses", json={"model": "m", **(continued if continues else referring)})
    assert answer.status_code == 200
    assert backend.received[-1]["messages"][0]["content"] == large[0]["content"]
    assert len(backend.by_round[1]) == 2


async def test_large_request_is_translated_in_a_thread_in_each_round() -> None:
    ScriptedTool.reset()
    backend = Noting(made(("lab__echo", {"text": "a"})), hello())
    input = [{"role": "user", "content": f"{n}"} for n in range(MANY + 1)]
    async with antiphon(backend, tools=TABLES) as url:
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
            answer = await http.post("/v1/responses", json={"model": "m", "input": input, "tools": [LAB]})
    assert [item["type"] for item in answer.json()["output"]] == ["mcp_call", "message"]
    assert len(backend.by_round) == 2
    assert all(threads - {threading.get_ident()} for threads in backend.by_round)


async def test_large_response_is_the_same_in_each_encoding() -> None:
    text = 'a "large" text\n' * (LARGE // 10)
    backend = Noting([delta(content=text), finish("stop")])
    async with antiphon(backend) as url, httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
        created = (await http.post("/v1/responses", json={"model": "m", "input": "a"})).json()
        assert created["output"][0]["content"][0]["text"] == text
        assert (await http.get(f"/v1/responses/{created['id']}")).json() == created


async def test_prompt_that_is_too_long_is_shortened_in_a_thread() -> None:
    too_long = BackendError("Too long.", status=400, code="context_length_exceeded")
    backend = Noting([too_long], hello())
    input = [{"role": "user", "content": f"{n}"} for n in range(100)]
    async with antiphon(backend) as url, httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
        answer = await http.post("/v1/responses", json={"model": "m", "input": input, "truncation": "auto"})
    assert answer.status_code == 200
    assert len(backend.received[1]["messages"]) < len(backend.received[0]["messages"])
    assert backend.by_round[1] - {threading.get_ident()}
