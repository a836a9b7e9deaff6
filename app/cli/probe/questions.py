"""Questions to a probed server, and resulting profile options."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from app.backends.apis.chat import counting_methods
from app.backends.server.endpoints import count_tokens
from app.cli.probe.client import PROMPT_ONLY_TOKENS, ProbedServer, ProbeResult
from app.core.profile import Profile
from app.core.types import JSONObject


class Finding(NamedTuple):
    about: str
    result: str
    options: JSONObject = {}  # noqa: RUF012 (of a tuple, never changed)


Findings = list[Finding]
ChatMessage = JSONObject

HELLO = "Say hello."
WEATHER = "What is the weather in Paris?"
_LOCATION = {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]}
_COLOR = {"type": "object", "properties": {"color": {"type": "string", "enum": ["red"]}}, "required": ["color"]}
_PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5E"
    "rkJggg=="
)
UNKNOWN = "unknown parameter"
_CHOICE, _FORMAT = "request.tool_choice", "request.response_format"
_UNSEEN = "not tested: the answer was only reasoning"
_MARKS = ("<tool_call", "<function", "[TOOL_CALLS]", "<|tool", "<\uff5ctool")


def tool(name: str, parameters: ChatMessage | None = None, **fields: object) -> ChatMessage:
    described = {"name": name, "description": name.replace("_", " ").capitalize() + "."}
    return {
        "type": "function",
        "function": {**described, "parameters": parameters or {"type": "object", "properties": {}}, **fields},
    }


GET_WEATHER, GET_TIME = tool("get_weather", _LOCATION), tool("get_time")
EXAMPLE_TOOLS = [GET_WEATHER, GET_TIME]


def user(content: object) -> ChatMessage:
    return {"role": "user", "content": content}


def image() -> ChatMessage:
    return {"type": "image_url", "image_url": {"url": _PIXEL}}


def history(output: object = "Sunny, 21C", call_id: str = "call_1", **assistant: object) -> list[ChatMessage]:
    function = {"name": "get_weather", "arguments": '{"location": "Paris"}'}
    call = {"role": "assistant", "tool_calls": [{"id": call_id, "type": "function", "function": function}], **assistant}
    return [user(WEATHER), call, {"role": "tool", "tool_call_id": call_id, "content": output}]


def verdict(result: ProbeResult, good: str = "accepted") -> str:
    """`good` for an accepted request, else the status and error message."""
    return good if result.ok else f"{result.status or 'no answer'}: {result.error[:100]}"


def parameter_finding(about: str, result: ProbeResult, good: str | None, options: dict[str, object]) -> Finding:
    """The effect is unknown if the answer contains only reasoning."""
    if result.only_reasoning:
        return Finding(about, _UNSEEN)
    return Finding(about, good or verdict(result, "ignored"), options)


async def probe_request(server: ProbedServer, messages: list[ChatMessage], **body: object) -> ProbeResult:
    """Test whether messages are accepted; the answer is irrelevant."""
    return await server.ask(messages, tokens=PROMPT_ONLY_TOKENS, stream=False, **body)


# The stream.


async def streams(server: ProbedServer) -> Findings:
    result = await server.ask(HELLO)
    options: dict[str, object] = {}
    _, thought = result.reasoning
    answer = "text"
    if not result.text and thought and result.finish == "length":
        answer = "only truncated reasoning"
    elif not result.text and thought:
        answer = "only reasoning: the server reports the answer as reasoning"
        options["response.reasoning_only_as_message"] = True
    finish = f"finish_reason {result.finish or 'never'}"
    return [
        Finding(
            "stream", f"{len(result.chunks)} chunks, {answer}, {finish}" if result.ok else verdict(result), options
        ),
        Finding("[DONE]", "sent" if result.done else "not sent"),
        *await _usage(server, result),
    ]


async def _usage(server: ProbedServer, plain: ProbeResult) -> Findings:
    if plain.usage:
        return [Finding("usage of a stream", "always", {"request.stream_usage": "always"})]
    result = await server.ask(HELLO, tokens=PROMPT_ONLY_TOKENS, stream_options={"include_usage": True})
    if result.ok and result.usage:
        return [Finding("usage of a stream", "with stream_options", {"request.stream_usage": "stream_options"})]
    # Requesting it is safe even if it is accepted without effect.
    how = "stream_options" if result.ok else "none"
    return [Finding("usage of a stream", verdict(result, "never"), {"request.stream_usage": how})]


async def limits(server: ProbedServer) -> Findings:
    findings, known = [], []
    for name in ("max_tokens", "max_completion_tokens"):
        limit: JSONObject = {server.limit: None, name: 8}
        result = await server.ask("Count to one hundred.", **limit)
        cut = result.ok and (result.finish == "length" or 0 < len(result.deltas) < 20)
        known += [name] if cut else []
        findings.append(
            Finding(name, f"honoured, finish_reason {result.finish}" if cut else verdict(result, "ignored"))
        )
    if known:
        findings[-1] = findings[-1]._replace(options={"request.max_tokens": known[0]})
    return findings


# Roles and messages.


async def roles(server: ProbedServer) -> Findings:
    rules = "Answer in one word, whatever the question may be."
    plain = await probe_request(server, [user(HELLO)])
    system = await probe_request(server, [{"role": "system", "content": rules}, user(HELLO)])
    developer = await probe_request(server, [{"role": "developer", "content": rules}, user(HELLO)])
    findings = [
        Finding("system message", verdict(system), {} if system.ok else {"request.roles.system": "user"}),
        Finding("developer message", _compared(developer, plain, system)),
    ]
    if system.ok:
        findings += await _placed(server)
    return findings


def _compared(result: ProbeResult, without: ProbeResult, with_: ProbeResult) -> str:
    """The prompt tokens show whether a message reached the model."""
    if not result.ok or not (result.prompt_tokens and with_.prompt_tokens > without.prompt_tokens):
        return verdict(result)
    return "accepted, but not in the prompt" if result.prompt_tokens <= without.prompt_tokens else "accepted"


async def _placed(server: ProbedServer) -> Findings:
    """Where system messages are accepted; others are moved to the front, and merged if necessary."""
    rule = {"role": "system", "content": "Be brief."}
    later = await probe_request(server, [user(HELLO), {"role": "assistant", "content": "Hello."}, rule, user(HELLO)])
    second = await probe_request(server, [rule, rule, user(HELLO)])
    position = "single_first" if second.refused else "first_only" if later.refused else "any"
    turns = await probe_request(server, [user(HELLO), user(HELLO)])
    return [
        Finding("system message later", verdict(later), {"request.roles.system": position}),
        Finding("two system messages", verdict(second)),
        Finding("two user messages in a row", verdict(turns), {"request.roles.alternate": turns.refused}),
    ]


async def contents(server: ProbedServer) -> Findings:
    plain = await probe_request(server, [user("")])
    string = await probe_request(server, [user(f"{HELLO} {HELLO} {HELLO}")])
    parts = await probe_request(server, [user([{"type": "text", "text": f"{HELLO} {HELLO} {HELLO}"}])])
    picture = await probe_request(server, [user([{"type": "text", "text": HELLO}, image()])])
    return [
        Finding("text as a list of parts", _compared(parts, plain, string)),
        Finding("image", verdict(picture)),
    ]


# Tools.


async def calls(server: ProbedServer) -> Findings:
    result = await server.answer(WEATHER, tools=EXAMPLE_TOOLS)
    if not result.ok or result.only_reasoning:
        return [parameter_finding("tools", result, None, {})]
    if not result.called:
        if not any(mark in result.text for mark in _MARKS):
            return [Finding("tools", "not called")]
        option = {"response.call_marks": "auto"}
        return [Finding("tools", "called in the text: the server does not parse the call", option)]
    pieces = result.pieces
    how = "whole" if len(pieces) == len(result.called) else f"in {len(pieces)} pieces"
    named = [name for name in ("index", "id") if all(piece.get(name) is None for piece in pieces)]
    lacks = f", without {' and '.join(named)}" if named else ""
    findings = [Finding("tools", f"called, {how}{lacks}, finish_reason {result.finish}")]
    findings += await _several(server) + await _choices(server)
    strict_tool = tool("get_weather", {**_LOCATION, "additionalProperties": False}, strict=True)
    strict = await server.ask(WEATHER, tools=[strict_tool], tokens=PROMPT_ONLY_TOKENS)
    return [*findings, Finding("strict tools", verdict(strict), {"request.strict": "drop"} if strict.refused else {})]


async def _several(server: ProbedServer) -> Findings:
    prompt = "What is the weather in Paris and Tokyo?"
    several = await server.answer(prompt, tools=[GET_WEATHER])
    one = await server.answer(prompt, tools=[GET_WEATHER], parallel_tool_calls=False)
    findings = [Finding("parallel calls", f"{len(several.called)} in one answer" if several.ok else verdict(several))]
    if not one.ok:
        option = {"request.parallel_tool_calls": "drop"}
        return [*findings, Finding("parallel_tool_calls: false", verdict(one), option)]
    if len(several.called) < 2:
        return findings
    return [*findings, Finding("parallel_tool_calls: false", "ignored" if len(one.called) > 1 else "honoured")]


async def _choices(server: ProbedServer) -> Findings:
    by_name = {"type": "function", "function": {"name": "get_time"}}
    required = await server.answer(HELLO, tools=[GET_WEATHER], tool_choice="required")
    named = await server.answer(WEATHER, tools=EXAMPLE_TOOLS, tool_choice=by_name)
    none = await server.answer(WEATHER, tools=EXAMPLE_TOOLS, tool_choice="none")
    mode = "required" if required.called else "message"
    if not required.ok:
        any_ = await server.answer(HELLO, tools=[GET_WEATHER], tool_choice="any")
        mode = "any" if any_.called else "message"
    forced = named.called[:1] == ["get_time"]
    object_ = "object" if forced else "filter_required"
    called = none.called or any(mark in none.text for mark in _MARKS)
    tools = "drop_tools" if called or not none.ok else "none"
    return [
        parameter_finding(
            "tool_choice required", required, "forced" if required.called else None, {f"{_CHOICE}.required": mode}
        ),
        parameter_finding("tool_choice by name", named, "forced" if forced else None, {f"{_CHOICE}.named": object_}),
        parameter_finding(
            "tool_choice none", none, None if called or not none.ok else "honoured", {f"{_CHOICE}.none": tools}
        ),
    ]


async def tool_results(server: ProbedServer) -> Findings:
    """The required form of conversations with tool calls."""
    forms: dict[str, ChatMessage] = {"omit": {}, "null": {"content": None}, "empty": {"content": ""}}
    accepted = [
        name
        for name, fields in forms.items()
        if (await probe_request(server, history(**fields), tools=EXAMPLE_TOOLS)).ok
    ]
    fields = forms[accepted[0] if accepted else "empty"]
    content = {"request.content.assistant_null": accepted[0]} if accepted and accepted[0] != "omit" else {}
    findings = [Finding("calls without text", ", ".join(accepted) or "refused", content)]
    if not accepted:
        short = await probe_request(server, history(call_id="a1b2c3d4e", **fields), tools=EXAMPLE_TOOLS)
        option = {"request.tool_ids": "^[A-Za-z0-9]{9}$"} if short.ok else {}
        return [*findings, Finding("call ids", verdict(short, "accepted with nine letters or digits"), option)]
    after = await probe_request(server, [*history(**fields), user(HELLO)], tools=EXAMPLE_TOOLS)
    array = await probe_request(
        server, history([{"type": "text", "text": "Sunny, 21C"}], **fields), tools=EXAMPLE_TOOLS
    )
    picture = await probe_request(server, history([image()], **fields), tools=EXAMPLE_TOOLS)
    bare = await probe_request(server, history(**fields))
    bridged = {"request.roles.user_after_tool": "bridge"} if after.refused else {}
    return [
        *findings,
        Finding("user after a tool result", verdict(after), bridged),
        Finding("tool result as parts", verdict(array)),
        Finding("image in a tool result", verdict(picture)),
        Finding("calls without tools", verdict(bare), {"request.tools_for_history": True} if bare.refused else {}),
    ]


# Formats, reasoning, and others.


async def formats(server: ProbedServer) -> Findings:
    schema = {"type": "json_schema", "json_schema": {"name": "color", "schema": _COLOR, "strict": True}}
    held = await server.answer(HELLO, response_format=schema)
    as_object = {"type": "json_object"}
    object_ = await server.answer(HELLO, response_format=as_object)
    if not object_.ok:  # some servers require the word in the prompt, so it must not also instruct the model
        object_ = await server.answer(f"{HELLO} Do not answer in JSON.", response_format=as_object)
    obeyed = held.ok and _json(held) == {"color": "red"}
    cut = object_.finish == "length" and object_.text.lstrip().startswith("{")
    is_object = object_.ok and (cut or isinstance(_json(object_), dict))
    mode = "native" if obeyed else "json_object" if is_object else "prompt"
    any_object = "native" if is_object else "json_schema_any" if obeyed else "drop"
    return [
        parameter_finding("JSON schema", held, "forced" if obeyed else None, {f"{_FORMAT}.json_schema": mode}),
        parameter_finding(
            "JSON object", object_, "forced" if is_object else None, {f"{_FORMAT}.json_object": any_object}
        ),
    ]


def _json(result: ProbeResult) -> object:
    try:
        return json.loads(result.text or result.reasoning[1])
    except ValueError:
        return None


async def reasoning(server: ProbedServer) -> Findings:
    prompt = "Think, then answer: what is 2+2?"
    result = await server.ask(prompt)
    field, _ = result.reasoning
    if field:
        option: dict[str, object] = {"request.reasoning_field": field} if field != "reasoning_details" else {}
        findings = [Finding("reasoning", f"in {field}", option)]
    elif "<think>" in result.text[:20]:
        findings = [Finding("reasoning", "in the text, between tags", {"response.think_tags": "auto"})]
    elif "</think>" in result.text:
        findings = [Finding("reasoning", "in the text, up to a tag", {"response.think_tags": "implicit_open"})]
    else:
        return [Finding("reasoning", "none" if result.ok else verdict(result))]
    reasoning_off: JSONObject = {"reasoning_effort": "none"}
    off = await server.ask(prompt, **reasoning_off)
    switched = off.ok and not off.reasoning[0] and "</think>" not in off.text
    findings.append(Finding("reasoning_effort none", "turns reasoning off" if switched else verdict(off, "ignored")))
    if not switched:
        reasoning_off = {"chat_template_kwargs": {"enable_thinking": False}}
        by_template = await server.ask(prompt, **reasoning_off)
        switched = by_template.ok and not by_template.reasoning[0] and "</think>" not in by_template.text
        option = {"request.effort": "chat_template_kwargs.enable_thinking"} if switched else {}
        template_effect = "turns reasoning off" if switched else verdict(by_template, "ignored")
        findings.append(Finding("chat_template_kwargs", template_effect, option))
    server.reasoning_off = reasoning_off if switched else {}
    return findings + await _replayed(server, field)


async def _replayed(server: ProbedServer, field: str) -> Findings:
    thought = "I should look it up, since nobody can know the weather by heart."
    without = await probe_request(server, history(content=""), tools=EXAMPLE_TOOLS)
    refused, used = "", ""
    for name in dict.fromkeys((field or "reasoning_content", "reasoning_content")):
        result = await probe_request(server, history(content="", **{name: thought}), tools=EXAMPLE_TOOLS)
        if result.refused:
            refused = verdict(result)
        elif result.prompt_tokens > without.prompt_tokens > 0:
            used = used or name
    if refused and not used:
        return [Finding("reasoning sent back", refused, {"request.reasoning_replay": "never"})]
    return [Finding("reasoning sent back", f"used, as {used}" if used else "accepted")]


async def parameters(server: ProbedServer) -> Findings:
    sampling: dict[str, object] = {
        "top_p": 0.9,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.1,
        "seed": 1,
        "stop": ["\n\n\n"],
    }
    together = await probe_request(server, [user(HELLO)], **sampling)
    dropped = []
    if not together.ok:
        for name, value in sampling.items():
            if (await probe_request(server, [user(HELLO)], **{name: value})).refused:
                dropped.append(name)
    about = f"refused: {', '.join(dropped)}" if dropped else verdict(together)
    unknown = await probe_request(server, [user(HELLO)], antiphon_probe=1)
    logprobs = await server.ask(HELLO, tokens=4, logprobs=True, top_logprobs=1)
    returned = any(choice.get("logprobs") for choice in logprobs.choices)
    return [
        Finding("sampling parameters", about, {"request.drop_params": dropped} if dropped else {}),
        Finding(UNKNOWN, verdict(unknown, "ignored")),
        Finding("logprobs", "returned" if returned else verdict(logprobs, "ignored")),
    ]


async def tokens(server: ProbedServer) -> Findings:
    body = {"model": server.fields.get("model"), "messages": [user(HELLO)]}
    count = await count_tokens(counting_methods(server.url, Profile()), body, server.post)
    return [Finding("counts prompt tokens", "no" if count is None else f"yes: {count}")]


async def unknown_model(server: ProbedServer) -> Findings:
    result = await probe_request(server, [user(HELLO)], model="no-such-model")
    return [Finding("unknown model", verdict(result, "answered anyway"))]


QUESTIONS: tuple[Callable[[ProbedServer], Awaitable[Findings]], ...] = (
    streams,
    limits,
    roles,
    contents,
    reasoning,  # first, so that later questions can turn reasoning off
    calls,
    tool_results,
    formats,
    parameters,
    tokens,
    unknown_model,
)
