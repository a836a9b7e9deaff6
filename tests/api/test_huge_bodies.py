"""No body, frame or backend answer costs much more than ordinary text with the same size."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import BaseModel, field_validator
from starlette.requests import Request

from app.api.request_body import BodyLimits, read_body
from app.core.bounded_json import LARGE, MANY, JSONTooLarge, check_values
from app.errors import InvalidRequest
from tests.api.huge_bodies import POSTGRES, REDIS, ROWS, SMALL
from tests.support.postgres_server import PostgresServer
from tests.support.redis_server import RedisServer

TIMES = 4  # CPU per byte
MEMORY = 6  # times the body (or a backend's answer), also where it is accepted: parsed, translated, sent on and stored
HELD, HELD_BY_SMALL = 0.25, 0.05  # seconds that others may wait: at 64 MiB, or at 4 MiB with few values
VALUE = 640  # additional bytes of memory: an item with three JSON values in 40 bytes is a dict in four forms


@pytest.fixture(scope="module")
def stores(postgres_server: PostgresServer) -> Iterator[dict[str, str]]:
    """URLs by variable."""
    with RedisServer() as redis:
        yield {POSTGRES: postgres_server.patient_url, REDIS: redis.patient_url}


def measured(stores: dict[str, str], *rows: str) -> dict[str, dict[str, float]]:
    """Return the costs of rows, by default all. `times` is CPU per byte relative to the ordinary row."""
    root = Path(__file__).parent.parent.parent
    command = [sys.executable, "-m", "tests.api.huge_bodies", *rows]
    environment = {**os.environ, **stores}
    costs: dict[str, dict[str, float]] = json.loads(
        subprocess.run(command, cwd=root, env=environment, check=True, stdout=subprocess.PIPE).stdout
    )
    for name, cost in costs.items():
        if ordinary := costs.get(ROWS[name].ordinary):
            cost["times"] = cost["cpu"] / ordinary["cpu"] / max(1, cost["size"] / ordinary["size"])
    return costs


@pytest.fixture(scope="module")
def costs(stores: dict[str, str]) -> dict[str, dict[str, float]]:
    if sys.platform != "linux":
        pytest.skip("looks into /proc")
    return measured(stores)


@pytest.mark.parametrize("name", ROWS)
def test_huge_body_costs_little_more_than_a_text_of_its_size(
    name: str, costs: dict[str, dict[str, float]], stores: dict[str, str]
) -> None:
    row, cost = ROWS[name], costs[name]
    assert cost["status"] == row.status
    most = MEMORY * cost["size"] + VALUE * row.values
    held = HELD_BY_SMALL if cost["size"] <= SMALL + 1000 and not row.values else HELD

    def takes_much() -> bool:
        return cost["held"] > held or cost["times"] > TIMES or cost["memory"] > most

    # Other processes can make a measurement larger, never smaller: so the least of six counts. Both rows are measured
    # again, since the machine is not always as fast.
    for _ in range(5):
        if takes_much():
            again = measured(stores, row.ordinary, name)[name]
            cost.update({measure: min(cost[measure], again[measure]) for measure in ("held", "times", "memory")})
    assert not takes_much(), cost


@pytest.mark.parametrize(
    ("value", "elsewhere"),
    [("x" * (LARGE - 100), False), ("x" * (LARGE + 1), True), ([0] * MANY, False), ([0] * (MANY + 2), True)],
)
async def test_huge_body_is_parsed_in_a_thread(value: Any, elsewhere: bool) -> None:
    class Threaded(BaseModel):
        thread: Any

        @field_validator("thread")
        @classmethod
        def _here(cls, value: Any) -> int:
            return threading.get_ident()

    async def receive() -> Any:
        return {"type": "http.request", "body": orjson.dumps({"thread": value})}

    body = await read_body(Request({"type": "http", "headers": []}, receive), Threaded, BodyLimits(10 * LARGE))
    assert (body.thread != threading.get_ident()) is elsewhere


@pytest.mark.parametrize(
    "value",
    [
        [[]] * 45,
        [1] * 99,
        [{"a": "b, [c], {d}"}] * 49,
        {"a": 'say "hi", \\', "b": ["\\", '\\",[[[[', "\\\\"] * 20},
        ["," * 1000],
    ],
)
def test_values_within_the_limit_are_accepted(value: Any) -> None:
    check_values(orjson.dumps(value), limit=100)
    check_values(orjson.dumps(value).decode(), limit=100)


@pytest.mark.parametrize(
    "document",
    [
        orjson.dumps([1] * 101),
        orjson.dumps([{}] * 101),
        orjson.dumps({str(n): None for n in range(101)}),
        orjson.dumps(["\\"] * 101),
        b"[" * 101,
        b"[" + b"[]," * 101 + b'"',
    ],
)
def test_values_beyond_the_limit_are_refused(document: bytes) -> None:
    with pytest.raises(JSONTooLarge):
        check_values(document, limit=100)
    with pytest.raises(JSONTooLarge):
        check_values(document.decode(), limit=100)


def test_values_of_all_documents_are_counted_together() -> None:
    half = orjson.dumps([1] * 60)
    check_values(half, limit=100)
    with pytest.raises(JSONTooLarge):
        check_values(half, half, limit=100)


async def test_limit_of_json_values_is_a_setting() -> None:
    async def receive() -> Any:
        return {"type": "http.request", "body": orjson.dumps({"a": [1] * 20})}

    class Any_(BaseModel):
        a: Any

    request = Request({"type": "http", "headers": []}, receive)
    with pytest.raises(InvalidRequest, match="more than 20 JSON values") as refusal:
        await read_body(request, Any_, BodyLimits(1000, values=20))
    assert (refusal.value.status, refusal.value.code) == (413, "request_too_large")
