"""`antiphon probe` against known servers: real sockets, and rules instead of a model."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any

import pytest

from app.cli.probe import probe, recognised_profile
from app.errors import BackendError
from app.settings import load_settings
from tests.cli.test_cli import run
from tests.support.gemini_server import GeminiServer
from tests.support.upstream import DONE as END
from tests.support.upstream import HANG, Received, Step, Upstream, call, chunk, finish, reply, sse, status, usage

Body = dict[str, Any]


def words(messages: list[Body]) -> str:
    return json.dumps([message["content"] for message in messages if message.get("content")])


class Faithful(Upstream):
    """Follows requests like OpenAI's server, and reasons if asked."""

    owner = "somebody"

    def __init__(self) -> None:
        super().__init__()
        self.models = [{"id": "good-1", "owned_by": self.owner}]
        self.received: list[Body] = []

    def answer_to(self, request: Received) -> list[Step]:
        if not request.path.endswith("/chat/completions"):
            return super().answer_to(request) if request.method == "GET" else status(404, {"detail": "Not Found"})
        body = request.json
        if not body:
            return status(400, {"error": {"message": "Missing required parameter: 'model'."}})
        self.received.append(body)
        if complaint := self.complaint(body):
            return status(400, {"error": {"message": complaint, "type": "invalid_request_error"}})
        return self.streamed(body) if body["stream"] else self.whole(body)

    def complaint(self, body: Body) -> str | None:
        return "The model `no-such-model` does not exist." if body["model"] != "good-1" else None

    def prompt(self, body: Body) -> int:
        return 5 + len(json.dumps(body["messages"])) // 4

    def whole(self, body: Body) -> list[Step]:
        message = {"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}
        tokens = {"prompt_tokens": self.prompt(body), "completion_tokens": 1}
        return reply(json.dumps({"object": "chat.completion", "choices": [message], "usage": tokens}).encode())

    def called(self, body: Body) -> list[str]:
        """The called tools."""
        choice, tools = body.get("tool_choice", "auto"), [one["function"]["name"] for one in body.get("tools", ())]
        if not tools or choice == "none":
            return []
        if isinstance(choice, dict):
            return [choice["function"]["name"]]
        if "Tokyo" in words(body["messages"]) and body.get("parallel_tool_calls", True):
            return ["get_weather", "get_weather"]
        return ["get_weather"] if choice == "required" or "weather" in words(body["messages"]) else []

    def text(self, body: Body) -> str:
        format = body.get("response_format", {}).get("type")
        return {"json_schema": '{"color": "red"}', "json_object": "{}"}.get(format, "Hello")

    def thought(self, body: Body) -> str:
        return "2+2" if "Think" in words(body["messages"]) and body.get("reasoning_effort") != "none" else ""

    def streamed(self, body: Body) -> list[Step]:
        frames: list[Any] = [chunk(role="assistant", content="")]
        calls = self.called(body)
        if thought := self.thought(body):
            frames.append(chunk(reasoning_content=thought))
        for n, name in enumerate(calls):
            frames += [call(n, id=f"call_{n}", name=name), call(n, arguments="{"), call(n, arguments="}")]
        if not calls:
            logprobs = {"logprobs": {"content": []}} if body.get("logprobs") else {}
            frames.append(chunk(self.text(body)))
            frames[-1]["choices"][0] |= logprobs
        cut = "hundred" in words(body["messages"]) and self.limit(body) is not None
        frames.append(finish("length" if cut else "tool_calls" if calls else "stop"))
        if body.get("stream_options"):
            frames.append(usage(self.prompt(body), 1))
        return sse(*frames, END)

    def limit(self, body: Body) -> int | None:
        return body.get("max_tokens") or body.get("max_completion_tokens")


class Odd(Faithful):
    """Refuses, ignores or loses most features."""

    owner = "vllm"

    def complaint(self, body: Body) -> str | None:
        messages = body["messages"]
        roles = [message["role"] for message in messages]
        if "max_tokens" in body:
            return "Unsupported parameter: 'max_tokens'."
        if body.get("temperature") is not None:
            return "temperature is fixed."
        if "developer" in roles:
            return "unknown variant `developer`"
        if "system" in roles[1:]:
            return "System message must be at the beginning."
        if any(one == other == "user" for one, other in pairwise(roles)):
            return "Conversation roles must alternate."
        if ("tool", "user") in pairwise(roles):
            return "Unexpected role 'user' after role 'tool'."
        if "tool" in roles and "tools" not in body:
            return "There are no tools."
        if any("reasoning" in key for message in messages for key in message):
            return "Extra inputs are not permitted."
        if any(message["role"] == "assistant" and message.get("content") is None for message in messages):
            return "Assistant message must have either content or tool_calls."
        if "image_url" in words(messages):
            return "This model has no eyes."
        if body.get("parallel_tool_calls") is False or any(t["function"].get("strict") for t in body.get("tools", ())):
            return "Extra inputs are not permitted."
        if body.get("tool_choice") == "required":
            return "tool_choice must be one of auto, any, none."
        if (body.get("response_format") or {}).get("type") == "json_schema" or body.get("stream_options"):
            return "Extra inputs are not permitted."
        unknown = body.keys() & {"seed", "presence_penalty", "antiphon_probe", "logprobs"}
        return f"Extra inputs are not permitted: {sorted(unknown)}" if unknown else None

    def prompt(self, body: Body) -> int:
        kept = [message for message in body["messages"] if not isinstance(message.get("content"), list)]
        return 5 + len(json.dumps(kept)) // 4

    def called(self, body: Body) -> list[str]:
        choice = body.get("tool_choice")
        return (
            ["get_weather"] if body.get("tools") and ("weather" in words(body["messages"]) or choice == "any") else []
        )

    def thought(self, body: Body) -> str:
        return ""

    def text(self, body: Body) -> str:
        return "<think>2+2</think>4" if "Think" in words(body["messages"]) else super().text(body)

    def streamed(self, body: Body) -> list[Step]:
        return [step for step in super().streamed(body) if not (isinstance(step, bytes) and b"[DONE]" in step)]


class Pensive(Faithful):
    """Forces nothing before a thought has ended, and its thoughts do not: vLLM with a parser of thoughts."""

    finish = "length"
    switch = True  # whether an effort `none` disables reasoning

    def thinks(self, body: Body) -> bool:
        return not (self.switch and body.get("reasoning_effort") == "none")

    def streamed(self, body: Body) -> list[Step]:
        if not self.thinks(body):
            return super().streamed(body)
        return sse(chunk(reasoning="Hello"), finish(self.finish), *([usage(5, 1)] * ("stream_options" in body)), END)


async def test_probe_of_a_complete_server_needs_no_settings() -> None:
    async with Faithful() as server:
        report = await probe(server.url)
    assert report.overrides() == {"request.reasoning_field": "reasoning_content"}
    assert (report.profile.name, report.model) == ("default", "good-1")
    found = {finding.about: finding.result for finding in report.findings}
    assert found == {
        "models": "1: good-1",
        "APIs": "chat",
        "model": "good-1, tested with temperature, max_tokens",
        "stream": "3 chunks, text, finish_reason stop",
        "[DONE]": "sent",
        "usage of a stream": "with stream_options",
        "max_tokens": "honoured, finish_reason length",
        "max_completion_tokens": "honoured, finish_reason length",
        "system message": "accepted",
        "developer message": "accepted",
        "system message later": "accepted",
        "two system messages": "accepted",
        "two user messages in a row": "accepted",
        "text as a list of parts": "accepted",
        "image": "accepted",
        "tools": "called, in 3 pieces, finish_reason tool_calls",
        "parallel calls": "2 in one answer",
        "parallel_tool_calls: false": "honoured",
        "tool_choice required": "forced",
        "tool_choice by name": "forced",
        "tool_choice none": "honoured",
        "strict tools": "accepted",
        "calls without text": "omit, null, empty",
        "user after a tool result": "accepted",
        "tool result as parts": "accepted",
        "image in a tool result": "accepted",
        "calls without tools": "accepted",
        "JSON schema": "forced",
        "JSON object": "forced",
        "reasoning": "in reasoning_content",
        "reasoning_effort none": "turns reasoning off",
        "reasoning sent back": "used, as reasoning_content",
        "sampling parameters": "accepted",
        "unknown parameter": "ignored",
        "logprobs": "returned",
        "counts prompt tokens": "no",
        "unknown model": "400: The model `no-such-model` does not exist.",
    }


async def test_probe_of_an_incomplete_server_prints_settings() -> None:
    async with Odd() as server:
        report = await probe(server.url)
        assert len(server.received) <= 60
    assert report.profile.name == "vllm"
    assert report.overrides() == {
        "request.stream_usage": "none",
        "request.max_tokens": "max_completion_tokens",
        "request.roles.system": "single_first",
        "request.roles.alternate": True,
        "request.parallel_tool_calls": "drop",
        "request.tool_choice.required": "any",
        "request.tool_choice.named": "filter_required",
        "request.strict": "drop",
        "request.content.assistant_null": "empty",
        "request.roles.user_after_tool": "bridge",
        "request.tools_for_history": True,
        "request.response_format.json_schema": "json_object",
        "response.think_tags": "auto",
        "request.reasoning_replay": "never",
        "request.drop_params": ["presence_penalty", "seed"],
    }
    found = {finding.about: finding.result for finding in report.findings}
    assert found["[DONE]"] == "not sent"
    assert found["text as a list of parts"] == "accepted, but not in the prompt"
    assert found["developer message"] == "400: unknown variant `developer`"


async def test_probe_finds_a_forced_call_after_reasoning() -> None:
    async with Pensive() as server:
        report = await probe(server.url)
        assert len(server.received) <= 60
    assert report.overrides() == {"request.reasoning_field": "reasoning"}
    found = {finding.about: finding.result for finding in report.findings}
    assert found["stream"] == "2 chunks, only truncated reasoning, finish_reason length"
    assert found["tools"] == "called, in 3 pieces, finish_reason tool_calls"
    for question in ("tool_choice required", "tool_choice by name", "JSON schema", "JSON object"):
        assert found[question] == "forced"
    assert found["tool_choice none"] == "honoured"


async def test_probe_of_endless_reasoning_guesses_nothing() -> None:
    class Endless(Pensive):
        switch = False

    async with Endless() as server:
        report = await probe(server.url)
    assert report.overrides() == {"request.reasoning_field": "reasoning"}
    found = {finding.about: finding.result for finding in report.findings}
    for question in ("tools", "JSON schema", "JSON object"):
        assert found[question] == "not tested: the answer was only reasoning"


async def test_probe_finds_a_parser_that_takes_the_answer_for_reasoning() -> None:
    class Swallowing(Pensive):
        finish = "stop"

    async with Swallowing() as server:
        report = await probe(server.url)
    assert report.overrides() == {
        "response.reasoning_only_as_message": True,
        "request.reasoning_field": "reasoning",
    }


async def test_probe_of_json_mode_that_is_not_enforced_does_not_use_it() -> None:
    class Careless(Faithful):
        def text(self, body: Body) -> str:
            return "Hello"

    async with Careless() as server:
        report = await probe(server.url)
    assert report.overrides() == {
        "request.reasoning_field": "reasoning_content",
        "request.response_format.json_schema": "prompt",
        "request.response_format.json_object": "drop",
    }


async def test_probe_of_json_mode_that_needs_its_name_uses_it() -> None:
    class Pedantic(Faithful):
        def complaint(self, body: Body) -> str | None:
            named = body.get("response_format", {}).get("type") != "json_object" or "JSON" in words(body["messages"])
            return super().complaint(body) if named else "'messages' must contain the word 'json' in some form."

        def streamed(self, body: Body) -> list[Step]:
            held = body.get("response_format", {}).get("type") == "json_object"
            return sse(chunk('{"cut": '), finish("length"), END) if held else super().streamed(body)

    async with Pedantic() as server:
        report = await probe(server.url)
    assert "request.response_format.json_object" not in report.overrides()


@pytest.mark.parametrize(
    "owner, complaint, profile",
    [
        ("me", None, "llama-cpp-python"),
        ("meta", None, "default"),
        ("Qwen", "Unexpected fields in the request: {'antiphon_probe'}", "transformers"),
    ],
)
async def test_probe_recognizes_a_server(owner: str, complaint: str | None, profile: str) -> None:
    class Known(Faithful):
        def complaint(self, body: Body) -> str | None:
            return complaint if "antiphon_probe" in body else super().complaint(body)

    async with Known() as server:
        server.models = [{"id": "good-1", "owned_by": owner}]
        report = await probe(server.url)
    assert report.profile.name == profile
    assert "request.content.assistant_null" not in report.overrides()  # the other form is not accepted either


async def test_probe_settings_can_be_used(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Odd() as server:
        report = await probe(server.url)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "antiphon.toml").write_text(report.settings("odd"))
    monkeypatch.setenv("ANTIPHON_CONFIG", "antiphon.toml")
    options = load_settings().served()["odd"].options()
    assert (options.name, options.request.drop_params) == ("vllm", ("presence_penalty", "seed"))
    (line,) = [line for line in report.variables().splitlines() if line.startswith("ANTIPHON_BACKEND_OVERRIDES=")]
    assert json.loads(line.partition("=")[2].strip("'")) == report.overrides()


async def test_probe_of_a_silent_server_ends_in_time() -> None:
    async with Upstream() as server:
        server.always(HANG)
        with pytest.raises(BackendError, match="no answer within 0 seconds"):
            await probe(server.url, each=0.1)


async def test_probe_at_its_time_limit_stops_asking() -> None:
    class Slow(Faithful):
        def answer_to(self, request: Received) -> list[Step]:
            steps = super().answer_to(request)
            return [asyncio.Event(), *steps] if len(self.received) > 3 else steps

    async with Slow() as server:
        report = await probe(server.url, seconds=1.5)
    assert report.findings[-1].about == "the rest"


async def test_probe_key_is_sent_and_never_shown() -> None:
    async with Upstream() as server:
        server.always(status(401, {"error": {"message": "Incorrect API key provided: hush-key."}}))
        with pytest.raises(BackendError) as caught:
            await probe(server.url, "hush-key")
    assert server.requests[0].headers["authorization"] == "Bearer hush-key"
    assert "hush" not in caught.value.message


def test_probe_command_prints_its_result(tmp_path: Any) -> None:
    refused = run(tmp_path, "probe", "http://127.0.0.1:9/v1")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "The server cannot be reached: it refuses connections" in refused.stderr
    assert "ConnectError" not in refused.stderr


class Native(Faithful):
    """Has the Responses API beside chat, or alone."""

    chat = True
    encrypted: str | None = "gAAAA"

    def answer_to(self, request: Received) -> list[Step]:
        if request.path.endswith("/responses"):
            if not request.json:
                return status(400, {"error": {"message": "Missing required parameter: 'model'."}})
            reasoning = {"type": "reasoning", "summary": [], "encrypted_content": self.encrypted}
            return reply(json.dumps({"object": "response", "output": [reasoning]}).encode())
        if request.path.endswith("/chat/completions") and not self.chat:
            return status(404, {"detail": "Not Found"})
        return super().answer_to(request)


@pytest.mark.parametrize(
    ("chat", "encrypted", "result", "overrides"),
    [
        (True, "gAAAA", "chat, responses; best: responses", {"transport.api": "responses"}),
        (True, None, "chat, responses; best: chat", {}),
        (False, None, "responses", {"transport.api": "responses"}),
    ],
)
async def test_api_that_loses_nothing_is_the_best(
    chat: bool, encrypted: str | None, result: str, overrides: Body
) -> None:
    async with Native() as server:
        server.chat, server.encrypted = chat, encrypted
        report = await probe(server.url)
    assert [finding.result for finding in report.findings if finding.about == "APIs"] == [result]
    assert {name: value for name, value in report.overrides().items() if name.startswith("transport")} == overrides


async def test_probe_of_a_gemini_server_finds_its_api_and_its_models() -> None:
    async with GeminiServer() as server:
        report = await probe(server.url, "k-1")
    assert (report.model, report.overrides()) == ("gemini-3-pro", {"transport.api": "gemini"})
    assert server.requests[-1].path == "/v1/models/gemini-3-pro:streamGenerateContent?alt=sse"


@pytest.mark.parametrize(
    ("url", "profile"),
    [
        ("https://generativelanguage.googleapis.com/v1beta", "gemini"),
        ("https://generativelanguage.googleapis.com/v1beta/openai/", "gemini-chat"),
        ("https://europe-west1-aiplatform.googleapis.com/v1/projects/p/locations/europe-west1", "vertex"),
        ("https://gateway.test/api.openai.com/v1", "default"),
    ],
)
def test_probe_recognizes_a_server_by_its_address(url: str, profile: str) -> None:
    assert recognised_profile(url, "") == profile
