"""
Requests to the tiny model in `tests/real/README.md`, and its answers, equal on every server except for quirks.

Results are lists of lines, `["completed", "text: Hello there, friend!"]` or `["400 context_length_exceeded"]`. An
expected line that ends in `...` is a prefix.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]


def _tool(name: str, description: str, properties: Json, *required: str) -> Json:
    parameters: Json = {"type": "object", "properties": properties}
    if required:
        parameters["required"] = list(required)
    return {"type": "function", "name": name, "description": description, "parameters": parameters}


WEATHER = _tool(
    "get_weather",
    "Get the current weather for a location",
    {"location": {"type": "string", "description": "The city and state, e.g. San Francisco, CA"}},
    "location",
)
TIME = _tool("get_time", "Get the time", {})
CALCULATE = _tool(
    "calculate",
    "Evaluate an expression",
    {
        "expression": {"type": "string"},
        "precision": {"type": "integer"},
        "units": {"type": "array", "items": {"type": "string"}},
        "nested": {"type": "object", "properties": {"ok": {"type": "boolean"}, "note": {"type": "string"}}},
    },
    "expression",
)
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
PIXEL = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)

# A custom tool, and possible inputs.
SPEAK: Json = {
    "type": "custom",
    "name": "speak",
    "description": "Speaks.",
    "format": {
        "type": "grammar",
        "syntax": "lark",
        "definition": 'start: "say" LF quoted LF\nquoted: "\\"" /[a-z]{3}/ "\\\\" "\\""\n%import common.LF',
    },
}
SPOKEN = r'say\n"[a-z]{3}\\"\n'

# Builds the next request from the earlier responses.
Turn: TypeAlias = Callable[[list[Json]], Json]


@dataclass(frozen=True)
class Scenario:
    """Consecutive requests, and the last request's expected result."""

    turns: tuple[Json | Turn, ...]
    want: list[str] = field(default_factory=list)


def seen(status: int, response: Json) -> list[str]:
    """Describe a result: the response's status and items, or the error."""
    if status != 200:
        return [f"{status} {response['error']['code']}"]
    lines = [response["status"]]
    if response["incomplete_details"]:
        lines = [f"incomplete: {response['incomplete_details']['reason']}"]
    if response["error"]:
        lines.append(f"error: {response['error']['code']}")
    return lines + [_item(item) for item in response["output"]]


def _item(item: Json) -> str:
    cut = " (cut)" if item["status"] != "completed" else ""
    if item["type"] == "function_call":
        return f"call{cut}: {item['name']} {_normal(item['arguments'])}"
    kind = {"message": "text", "reasoning": "thought"}[item["type"]]
    return f"{kind}{cut}: " + "".join(part.get("text", part.get("refusal", "")) for part in item["content"]).strip()


def _normal(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments))
    except ValueError:
        return arguments


def agrees(lines: list[str], want: list[str]) -> bool:
    """Compare a result with the expected lines; `|` separates alternatives."""
    return len(lines) == len(want) and all(
        any(line.startswith(one[:-3]) if one.endswith("...") else line == one for one in wanted.split(" | "))
        for line, wanted in zip(lines, want, strict=True)
    )


def _user(content: Any) -> Json:
    return {"role": "user", "content": content}


def _say(prompt: Any, *tools: Json, **request: Any) -> Json:
    return {"input": prompt, **({"tools": [*tools]} if tools else {}), **request}


def _answer(*outputs: Any, **request: Any) -> Turn:
    """Answer the previous response's calls."""

    def turn(responses: list[Json]) -> Json:
        last = responses[-1]
        calls = [item for item in last["output"] if item["type"] == "function_call"]
        # A server without a parsed call still gets a result, as for a lost call.
        ids = [call["call_id"] for call in calls] or ["call_none"] * len(outputs)
        items = [
            {"type": "function_call_output", "call_id": id, "output": output}
            for id, output in zip(ids, outputs, strict=False)
        ]
        return {"input": items, "previous_response_id": last["id"], **request}

    return turn


def _then(prompt: Any, *tools: Json, **request: Any) -> Turn:
    return lambda responses: {**_say(prompt, *tools, **request), "previous_response_id": responses[-1]["id"]}


PARIS = _say("What is the weather in Paris?", WEATHER)
PARIS_AND_TOKYO = _say("What is the weather in Paris and Tokyo?", WEATHER)
CALL_PARIS = 'call: get_weather {"location": "Paris"}'
NUMBERS = ", ".join(map(str, range(1, 101))) + "."
SUNNY = "text: It is sunny and 21 degrees."
SUNNY_JSON = '{"temperature": 21, "condition": "sunny"}'
HELLO = ["completed", "text: Hello there, friend!"]
PERSON_FORMAT = {"format": {"type": "json_schema", "name": "person", "schema": PERSON, "strict": True}}
ADA = ["completed", 'text: {"name": "Ada Lovelace", "age": 36}']
CALCULATION = {
    "expression": "6 * 7",
    "precision": 2,
    "units": ["none"],
    "nested": {"ok": True, "note": 'a "quoted" word'},
}
TOO_LONG = "word " * 6000
IMAGE = {"type": "input_image", "image_url": PIXEL, "detail": "auto"}

SCENARIOS: dict[str, Scenario] = {
    # Text.
    "hello": Scenario((_say("Say hello."),), HELLO),
    "hello in parts": Scenario((_say([_user([{"type": "input_text", "text": "Say hello."}])]),), HELLO),
    "count": Scenario((_say("Count from 1 to 5."),), ["completed", "text: 1, 2, 3, 4, 5."]),
    "long": Scenario((_say("Count to one hundred."),), ["completed", f"text: {NUMBERS}"]),
    "unicode": Scenario(
        (_say("Write some unicode."),), ["completed", "text: Naïve café 😀 日本語 🇫🇷 👩\u200d👩\u200d👧 — done."]
    ),
    "code": Scenario(
        (_say("Show a code block."),),
        ["completed", 'text: Here is code:\n\n```python\nprint("hello <tool> & </b>")\n```\n\nThat is all.'],
    ),
    "poem": Scenario(
        (_say("Write a poem about the sea."),), ["completed", "text: The sea is wide,\nthe sea is deep,..."]
    ),
    "logprobs": Scenario((_say("Say hello.", top_logprobs=2, include=["message.output_text.logprobs"]),), HELLO),
    # Who speaks.
    "instructions": Scenario((_say("Say hello.", instructions="Be brief."),), HELLO),
    "developer": Scenario((_say([{"role": "developer", "content": "Be brief."}, _user("Say hello.")]),), HELLO),
    "system later": Scenario(
        (
            _say(
                [
                    _user("Hi"),
                    {"role": "assistant", "content": "Hello there, friend!"},
                    {"role": "system", "content": "Be brief."},
                    _user("Say hello."),
                ]
            ),
        ),
        HELLO,
    ),
    "instructions and developer": Scenario(
        (
            _say(
                [{"role": "developer", "content": "Be brief."}, _user("Say hello.")], instructions="Answer in English."
            ),
        ),
        HELLO,
    ),
    "two users": Scenario((_say([_user("Hi"), _user("Say hello.")]),), HELLO),
    "name from history": Scenario(
        (_say("My name is Alice."), _then("What is my name?")), ["completed", "text: Your name is Alice."]
    ),
    "number from history": Scenario(
        (_say("Think, then answer: what is 2+2?"), _then("Repeat only the number.")), ["completed", "text: 4"]
    ),
    # Calls.
    "call": Scenario((PARIS,), ["completed", CALL_PARIS]),
    "call with a comma": Scenario(
        (_say("What's the weather like in San Francisco?", WEATHER),),
        ["completed", 'call: get_weather {"location": "San Francisco, CA"}'],
    ),
    "call without arguments": Scenario((_say("What time is it?", TIME),), ["completed", "call: get_time {}"]),
    "call with nested arguments": Scenario(
        (_say("Multiply 6 by 7 with the calculator.", CALCULATE),),
        ["completed", f"call: calculate {json.dumps(CALCULATION)}"],
    ),
    "two calls": Scenario((PARIS_AND_TOKYO,), ["completed", CALL_PARIS, 'call: get_weather {"location": "Tokyo"}']),
    "one call at a time": Scenario(({**PARIS_AND_TOKYO, "parallel_tool_calls": False},), ["completed", CALL_PARIS]),
    "text and call": Scenario(
        (_say("Tell me first, then check the weather in Rome.", WEATHER),),
        ["completed", "text: Let me check the weather in Rome.", 'call: get_weather {"location": "Rome"}'],
    ),
    "two tools": Scenario((_say("What is the weather in Paris?", TIME, WEATHER),), ["completed", CALL_PARIS]),
    "tool choice none": Scenario(({**PARIS, "tool_choice": "none"},), ["completed", "text: ..."]),
    "tool choice required": Scenario(({**PARIS, "tool_choice": "required"},), ["completed", CALL_PARIS]),
    "tool choice named": Scenario(
        (
            _say(
                "What is the weather in Paris?", TIME, WEATHER, tool_choice={"type": "function", "name": "get_weather"}
            ),
        ),
        ["completed", CALL_PARIS],
    ),
    "tool choice allowed": Scenario(
        (
            _say(
                "What is the weather in Paris?",
                TIME,
                WEATHER,
                tool_choice={
                    "type": "allowed_tools",
                    "mode": "auto",
                    "tools": [{"type": "function", "name": "get_weather"}],
                },
            ),
        ),
        ["completed", CALL_PARIS],
    ),
    # Call results.
    "result": Scenario((PARIS, _answer("Sunny, 21C", tools=[WEATHER])), ["completed", SUNNY]),
    "result as JSON": Scenario((PARIS, _answer(SUNNY_JSON, tools=[WEATHER])), ["completed", SUNNY]),
    "result in parts": Scenario(
        (PARIS, _answer([{"type": "input_text", "text": "Sunny, 21C"}], tools=[WEATHER])), ["completed", SUNNY]
    ),
    "result without tools": Scenario((PARIS, _answer("Sunny, 21C")), ["completed", SUNNY]),
    "two results": Scenario(
        (PARIS_AND_TOKYO, _answer("Sunny, 21C", "Sunny, 21C", tools=[WEATHER])), ["completed", SUNNY]
    ),
    "no result": Scenario((PARIS, _then("Say hello.", WEATHER)), HELLO),
    # Call results in the client's history: also for servers without a call parser.
    "result of the client's call": Scenario(
        (
            _say(
                [
                    _user("What is the weather in Paris?"),
                    {
                        "type": "function_call",
                        "call_id": "call_1",
                        "name": "get_weather",
                        "arguments": '{"location": "Paris"}',
                    },
                    {"type": "function_call_output", "call_id": "call_1", "output": "Sunny, 21C"},
                ],
                WEATHER,
            ),
        ),
        ["completed", SUNNY],
    ),
    # Thoughts.
    "thought": Scenario(
        (_say("Think, then answer: what is 2+2?"),),
        ["completed", "thought: The user wants 2+2. That is 4.", "text: The answer is 4."],
    ),
    "thought and call": Scenario(
        (_say("Think, then check the weather in Oslo.", WEATHER),),
        ["completed", "thought: I need the weather tool for Oslo.", 'call: get_weather {"location": "Oslo"}'],
    ),
    "thought, text and call": Scenario(
        (_say("Think, talk, then check the weather in Lima.", WEATHER),),
        [
            "completed",
            "thought: The user wants Lima.",
            "text: Checking Lima now.",
            'call: get_weather {"location": "Lima"}',
        ],
    ),
    "thought, call and result": Scenario(
        (_say("Think, then check the weather in Oslo.", WEATHER), _answer("Sunny, 21C", tools=[WEATHER])),
        ["completed", SUNNY],
    ),
    "effort": Scenario((_say("Say hello.", reasoning={"effort": "low"}),), HELLO),
    # Cut off.
    "text cut": Scenario(
        (_say("Count to one hundred.", max_output_tokens=16),),
        ["incomplete: max_output_tokens", "text (cut): 1, 2, ..."],
    ),
    "thought cut": Scenario(
        (_say("Think for a very long time.", max_output_tokens=24),),
        ["incomplete: max_output_tokens", "thought (cut): Step 1: keep thinking. ..."],
    ),
    "call cut": Scenario(
        (_say("Multiply 6 by 7 with the calculator.", CALCULATE, max_output_tokens=24),),
        ["incomplete: max_output_tokens", "call (cut): calculate ..."],
    ),
    # JSON.
    "JSON": Scenario((_say("Give me a person as JSON.", text={"format": {"type": "json_object"}}),), ADA),
    "JSON schema": Scenario((_say("Give me a person as JSON.", text=PERSON_FORMAT),), ADA),
    "file of text": Scenario(
        (_say([_user([{"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,aGk="}])]),),
        ["completed", "text: ..."],
    ),
    # Refused.
    "image": Scenario((_say([_user([{"type": "input_text", "text": "Say hello."}, IMAGE])]),), ["400 invalid_request"]),
    "image from a tool": Scenario((PARIS, _answer([IMAGE], tools=[WEATHER])), ["400 invalid_request"]),
    "file": Scenario(
        (
            _say(
                [_user([{"type": "input_file", "filename": "a.zip", "file_data": "data:application/zip;base64,UEsD"}])]
            ),
        ),
        ["400 invalid_request"],
    ),
    "too long": Scenario((_say(TOO_LONG),), ["400 context_length_exceeded"]),
    "unknown model": Scenario((_say("Say hello.", model="no-such-model"),), ["404 model_not_found"]),
}
