"""No field of a chat request is lost: each is sent to the backend, has an effect here, or is named in the warning."""

from __future__ import annotations

from typing import Any

import httpx
from openai.types.chat.completion_create_params import CompletionCreateParamsBase

from tests.support.serving import antiphon
from tests.support.upstream import DONE, Upstream, chunk, finish, sse

SCHEMA = {"type": "object", "properties": {}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}

# SDK field: a value, and the field sent to a chat backend.
SENT: dict[str, tuple[Any, str]] = {
    "messages": ([{"role": "user", "content": "Hi"}], "messages"),
    "model": ("m", "model"),
    "frequency_penalty": (0.5, "frequency_penalty"),
    "presence_penalty": (0.5, "presence_penalty"),
    "logit_bias": ({"5": 1}, "logit_bias"),
    "logprobs": (True, "logprobs"),
    "max_completion_tokens": (20, "max_tokens"),
    "max_tokens": (20, "max_tokens"),
    "reasoning_effort": ("low", "reasoning_effort"),
    "response_format": ({"type": "json_object"}, "response_format"),
    "seed": (7, "seed"),
    "stop": ("END", "stop"),
    "temperature": (0.5, "temperature"),
    "tools": ([TOOL], "tools"),
    "top_p": (0.5, "top_p"),
}
# With a tool.
CHOSEN: dict[str, tuple[Any, str]] = {
    "tool_choice": ({"type": "function", "function": {"name": "f"}}, "tool_choice"),
    "function_call": ({"name": "f"}, "tool_choice"),
    "parallel_tool_calls": (False, "parallel_tool_calls"),
}
NAMED: dict[str, Any] = {
    "audio": {"voice": "alloy", "format": "wav"},
    "modalities": ["text", "audio"],
    "functions": [{"name": "f"}],
    "moderation": {"model": "m"},
    "prediction": {"type": "content", "content": "x"},
    "prompt_cache_options": {"ttl": "30m"},
    "prompt_cache_retention": "24h",
    "service_tier": "flex",
    "store": True,
    "top_logprobs": 2,
    "verbosity": "low",
    "web_search_options": {},
}
# They have an effect here, as in `/v1/responses`, and are sent if the backend's profile allows it.
KEPT = {"n", "metadata", "prompt_cache_key", "safety_identifier", "stream_options", "user"}


def test_table_has_each_field_of_the_newest_sdk() -> None:
    fields = CompletionCreateParamsBase.__annotations__.keys()
    assert fields == SENT.keys() | CHOSEN.keys() | NAMED.keys() | KEPT


async def test_each_field_is_sent_or_named() -> None:
    overrides = {"transport.passthrough": "never"}
    async with (
        Upstream() as up,
        antiphon(backend_url=up.url, backend_overrides=overrides) as url,
        httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client,
    ):
        up.always(sse(chunk("Hello"), finish(), DONE))
        for fields, others in ((SENT, {}), (CHOSEN, {"tools": [TOOL]})):
            for name, (value, sent_as) in fields.items():
                body = {"model": "m", "messages": SENT["messages"][0], **others, name: value}
                answer = await client.post("/v1/chat/completions", json=body)
                assert answer.status_code == 200, (name, answer.text)
                assert sent_as in up.requests[-1].json, name
                assert "x-antiphon-warning" not in answer.headers, name
        for name, value in NAMED.items():
            body = {"model": "m", "messages": SENT["messages"][0], name: value}
            answer = await client.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200, (name, answer.text)
            assert name.removesuffix("_options") in answer.headers["x-antiphon-warning"], name


async def test_metadata_is_returned() -> None:
    body = {"model": "demo", "messages": SENT["messages"][0], "metadata": {"a": "b"}}
    async with antiphon() as url, httpx.AsyncClient(base_url=url, trust_env=False) as client:
        assert (await client.post("/v1/chat/completions", json=body)).json()["metadata"] == {"a": "b"}
