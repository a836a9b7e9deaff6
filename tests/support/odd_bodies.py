"""Invalid request bodies."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
from hypothesis import strategies as st

from app.api.client_apis import ClientRequest
from app.api.client_apis.translation import create_request
from app.errors import InvalidRequest
from app.main import create_app
from tests.support.build import delta, finish
from tests.support.scripted import Scripted
from tests.support.serving import settings

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.sampled_from(
        ["", "x", "\0", "\ud800", "type", "antiphon1.", "antiphon1.AAAA", "custom", "text", "tool", "x" * 200]
    ),
    st.sampled_from([[], {}, [None], [[]], {"type": None}, {"type": 7}, {"type": "text"}, {"type": "\0"}, {"": ""}]),
)

REMOVED: Any = ...
OTHERS: tuple[Any, ...] = (REMOVED, None, "x", "\0", 7, -1.5, True, [], {}, [{}], {"type": "text"})


def pointers(value: Any, pointer: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield pointers to all values in JSON."""
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield (*pointer, key)
        yield from pointers(value[key], (*pointer, key))


def changed(body: Any, pointer: tuple[Any, ...], other: Any) -> Any:
    """Return a body with a replaced value, or without it for `REMOVED`."""
    body = copy.deepcopy(body)
    *path, last = pointer
    value = body
    for key in path:
        value = value[key]
    if other is REMOVED:
        del value[last]
    else:
        value[last] = other
    return body


@st.composite
def odd_bodies(draw: st.DrawFn, body: Any) -> Any:
    """Draw a body of which some values are removed, or replaced by others."""
    for pointer in draw(st.lists(st.sampled_from([*pointers(body)]), max_size=4, unique=True)):
        other = draw(st.one_of(st.just(REMOVED), ODD))
        try:
            body = changed(body, pointer, copy.deepcopy(other))
        except (KeyError, IndexError, TypeError):
            continue  # removed by another change
    return body


async def answers_to_odd_bodies(path: str, body: Any, step: int) -> AsyncIterator[tuple[object, httpx.Response]]:
    """
    Yield each modification of a body, and its answer: each value in turn is removed or replaced.

    Only every `step`th value is changed.
    """
    app = create_app(settings(), backend=Scripted([delta(content="Hi"), finish("stop")]))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for pointer in [*pointers(body)][::step]:
            for other in OTHERS:
                yield (pointer, other), await client.post(path, content=json.dumps(changed(body, pointer, other)))


def refused_or_read(read: Callable[[Any, dict[str, str]], ClientRequest], body: Any) -> None:
    """Check that a client API accepts or refuses a body, without changing it."""
    before = copy.deepcopy(body)
    try:
        create_request(read(body, {}))
    except InvalidRequest as error:
        assert error.status == 400 and error.message
    assert body == before


async def refused_or_answered(path: str, body: Any, *, stream: bool, refusal: str) -> None:
    """Check that no modified body causes an internal error; `refusal` is the expected error type."""
    statuses = set()
    async for change, answer in answers_to_odd_bodies(path, {**body, "stream": stream}, 2 if stream else 4):
        assert answer.status_code < 500, (change, answer.text)
        statuses.add(answer.status_code)
        if answer.status_code != 200:
            assert answer.json()["error"]["type"] == refusal
    assert statuses == {200, 400}
