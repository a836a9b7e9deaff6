"""A request's earlier turns, and its warnings."""

from __future__ import annotations

import pytest

from app.core.history.context import NewInput, Past, continue_past
from app.core.history.turns import Turn
from app.core.ids import new_key
from app.core.types.request import CreateResponse


@pytest.mark.parametrize(
    ("earlier", "store", "warned"),
    [
        ([True], True, False),
        ([False], True, True),
        ([False, True], True, True),
        ([False], False, False),
        ([], True, False),
    ],
)
def test_stored_response_that_continues_an_unstored_one_is_warned_of(
    earlier: list[bool], store: bool, warned: bool
) -> None:
    past = Past.of(Turn({"id": f"resp_{n}", "output": [], "store": stored}, [], {}) for n, stored in enumerate(earlier))
    request = CreateResponse(model="m", input="Hi", store=store)
    context = continue_past(past, NewInput(request.items()), request, new_key())
    assert [warning for warning in context.warnings if "only on this connection" in warning] == [
        "This response continues an unstored response, so it can be continued only on this connection."
    ] * warned
