"""System messages within a conversation become user notes if the chat template refuses them."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from app.backends.server.adaptation import FieldAdaptation
from app.backends.server.refused_content import SYSTEM_WARNING
from app.core.profile import Profile
from app.core.request import CALLER_FIELDS
from app.errors import BackendError
from tests.support.serving import antiphon
from tests.support.upstream import DONE, Upstream, chunk, finish, sse, status

BODY: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi"},
        {"role": "system", "content": "It is May."},
    ],
}
FIRST = [
    {"role": "system", "content": "Be brief.\n\nBe kind."},
    {"role": "user", "content": "Hi"},
    {"role": "user", "content": "<system-reminder>\nIt is May.\n</system-reminder>"},
]
QWEN = "System message must be at the beginning."


def adaptation(**options: Any) -> FieldAdaptation:
    profile = Profile().override({f"request.{name}": value for name, value in options.items()})
    return FieldAdaptation(profile.request, CALLER_FIELDS)


def refusal(message: str, code: int = 400, answered: int = 0) -> BackendError:
    error = BackendError(message, status=code)
    error.answered = answered
    return error


@pytest.mark.parametrize(
    "error",
    [
        refusal(QWEN),
        refusal(f"Chat template error: {QWEN}"),
        refusal("system message must be at the beginning", 502, answered=500),
        refusal("The system message must be first."),
        refusal("System messages can only be at the start of the conversation", 422),
        refusal("Only one system message is allowed."),
    ],
    ids=str,
)
def test_later_system_messages_become_notes_after_a_refusal(error: BackendError) -> None:
    request = adaptation().adapt(BODY)
    assert request.drop_fields(error)
    assert (request.body["messages"], request.warnings) == (FIRST, [SYSTEM_WARNING])


def test_refusal_of_later_system_messages_is_remembered() -> None:
    remembering = adaptation()
    request = remembering.adapt(BODY)
    request.drop_fields(refusal(QWEN))
    request.accepted()
    assert remembering.adapt(BODY).body["messages"] == FIRST
    plain = {**BODY, "messages": [BODY["messages"][0], BODY["messages"][2]]}
    assert (remembering.adapt(plain).body, remembering.adapt(plain).warnings) == (plain, [])
    assert remembering.adapt({**BODY, "model": "other"}).warnings == []


@pytest.mark.parametrize(
    ("error", "options"),
    [
        (refusal("The system message must be a string."), {}),
        (refusal("The system is at the beginning of its restart.", 503), {}),
        (refusal(QWEN), {"adapt": False}),
    ],
    ids=["another refusal", "a failure", "without adaptation"],
)
def test_system_messages_stay_after_other_errors(error: BackendError, options: Any) -> None:
    assert not adaptation(**options).adapt(BODY).drop_fields(error)


def test_system_messages_that_are_first_stay_after_a_refusal() -> None:
    body = {"model": "m", "messages": [BODY["messages"][0], {"role": "user", "content": "Hi"}]}
    assert not adaptation().adapt(body).drop_fields(refusal(QWEN))


@pytest.mark.parametrize("code", [400, 500])
async def test_agent_with_later_system_messages_reaches_a_strict_template(code: int) -> None:
    async with Upstream() as upstream:
        upstream.say(status(code, {"error": {"message": f"Chat template error: {QWEN}"}}))
        upstream.always(sse(chunk("Hello"), finish(), DONE))
        body = {"model": "m", "max_tokens": 100, "system": "Be brief.", "messages": BODY["messages"][2:]}
        async with antiphon(backend_url=upstream.url) as url, httpx.AsyncClient(base_url=url) as client:
            answers = [await client.post("/v1/messages", json=body) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    sent = [[message["role"] for message in request.json["messages"]] for request in upstream.requests]
    assert sent == [["system", "user", "system"], ["system", "user", "user"], ["system", "user", "user"]]
    assert all(SYSTEM_WARNING in answer.headers["x-antiphon-warning"] for answer in answers)
