"""Calls in the text, as each model marks them: the same, however the text is cut."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.backends.apis.filters import TextToolCallFilter
from app.core.types.deltas import Delta, ReasoningDelta, TextDelta, ToolCallDelta

FUNCTIONS: dict[str, Any] = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "zip": {"type": "string"}},
    },
    "get_time": {"type": "object", "properties": {}},
}
PARIS, ROME = '{"city": "Paris"}', '{"city": "Rome"}'


def call(name: str, arguments: str, call_id: str | None = None) -> ToolCallDelta:
    return ToolCallDelta(None, call_id, name, [arguments])


REQUEST = {"tools": [{"name": name, "parameters": parameters} for name, parameters in FUNCTIONS.items()]}


def find(*texts: str) -> list[str | Delta]:
    """Return the deltas found in a streamed text, with neighbouring texts joined."""
    finder = TextToolCallFilter(REQUEST)
    found: list[str | Delta] = []
    for delta in [one for text in texts for one in finder.feed([TextDelta([text])])] + finder.end():
        written = "".join(delta.texts) if isinstance(delta, TextDelta) else delta
        if found and isinstance(written, str) and isinstance(found[-1], str):
            found[-1] += written
        else:
            found.append(written)
    return found


def special(name: str) -> str:
    return f"<\uff5c{name}\uff5c>"


DEEPSEEK = (
    special("tool\u2581calls\u2581begin")
    + special("tool\u2581call\u2581begin")
    + "{}"
    + special("tool\u2581call\u2581end")
    + special("tool\u2581calls\u2581end")
)
SEP = special("tool\u2581sep")
KIMI = "<|tool_call_begin|>functions.{}:{}<|tool_call_argument_begin|>{}<|tool_call_end|>"


def xtml(name: str, body: str, attributes: str = "") -> str:
    return f"<|open|>{name}{attributes}<|sep|>{body}<|close|>{name}<|sep|>"


CALLS: dict[str, tuple[str, list[str | Delta]]] = {
    "Hermes, Qwen": (
        f'<tool_call>\n{{"name": "get_weather", "arguments": {PARIS}}}\n</tool_call>',
        [call("get_weather", PARIS)],
    ),
    "two of them, behind text": (
        f'Let me look.\n\n<tool_call>{{"name": "get_weather", "arguments": {PARIS}}}</tool_call>\n'
        '<tool_call>{"name": "get_time", "arguments": {}}</tool_call>\n',
        ["Let me look.", call("get_weather", PARIS), call("get_time", "{}")],
    ),
    "DeepSeek V3.2": (
        'Let me look.\n\n<|DSML|function_calls>\n<|DSML|invoke name="get_weather">\n'
        '<|DSML|parameter name="city" string="true">12</|DSML|parameter>\n'
        '<|DSML|parameter name="days" string="false">2</|DSML|parameter>\n</|DSML|invoke>\n'
        '<|DSML|invoke name="get_time">\n</|DSML|invoke>\n</|DSML|function_calls>'.replace("|", "\uff5c"),
        ["Let me look.", call("get_weather", '{"city": "12", "days": 2}'), call("get_time", "{}")],
    ),
    "DeepSeek V4": (
        '<|DSML|tool_calls><|DSML|invoke name="get_weather"><|DSML|parameter name="city">Paris</|DSML|parameter>'
        "</|DSML|invoke></|DSML|tool_calls>".replace("|", "\uff5c"),
        [call("get_weather", PARIS)],
    ),
    "MiniMax M2": (
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n'
        '<parameter name="days">2</parameter>\n</invoke>\n<invoke name="get_time">\n</invoke>\n</minimax:tool_call>',
        [call("get_weather", '{"city": "Paris", "days": 2}'), call("get_time", "{}")],
    ),
    "MiniMax M3": (
        'Look.\n@<tool_call>\n@<invoke name="get_weather">@<city>Paris@</city>@<zip>75001@</zip>@</invoke>\n'
        "@</tool_call>".replace("@", "]<]minimax[>["),
        ["Look.", call("get_weather", '{"city": "Paris", "zip": "75001"}')],
    ),
    "Gemma 4": (
        '<|channel>thought\nThe weather.\n<channel|><|tool_call>call:get_weather{city:<|"|>Pa{r,is: "x"<|"|>,days:2}'
        "<tool_call|><|tool_call>call:get_time{}<tool_call|>",
        [
            ReasoningDelta(["The weather.\n"]),
            call("get_weather", '{"city": "Pa{r,is: \\"x\\"", "days": 2}'),
            call("get_time", "{}"),
        ],
    ),
    "Gemma 4, with quotation marks": (
        '<|tool_call>call:get_weather{city:"Paris"}<tool_call|>',
        [call("get_weather", PARIS)],
    ),
    "Seed": (
        "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris</parameter>\n</function>\n</seed:tool_call>",
        [call("get_weather", PARIS)],
    ),
    "Nemotron": (
        f'<TOOLCALL>[{{"name": "get_weather", "arguments": {PARIS}}}]</TOOLCALL>',
        [call("get_weather", PARIS)],
    ),
    "Kimi K2, another of its marks": (
        f"<|tool_call_section_begin|>{KIMI.format('get_weather', 0, PARIS)}<|tool_call_section_end|>",
        [call("get_weather", PARIS, "functions.get_weather:0")],
    ),
    "Kimi K3": (
        xtml("think", "Look first.")
        + xtml("response", "Let me look.")
        + xtml(
            "tools",
            xtml(
                "call",
                xtml("argument", "A & B", ' key="city" type="string"')
                + xtml("argument", "3", ' key="days" type="number"'),
                ' tool="get_weather" index="1"',
            )
            + xtml("call", "", ' tool="get_time" index="2"')
            + xtml("call", xtml("json", PARIS, ' type="object"'), ' tool="get_weather" index="3"'),
        )
        + "<|close|>message<|sep|><|end_of_msg|>",
        [
            ReasoningDelta(["Look first."]),
            "Let me look.",
            call("get_weather", '{"city": "A & B", "days": 3}'),
            call("get_time", "{}"),
            call("get_weather", PARIS),
        ],
    ),
    "text behind it": (
        '<tool_call>{"name": "get_time"}</tool_call>\n\nThat is it. ',
        [call("get_time", "{}"), "That is it. "],
    ),
    "the last mark is missing: servers stop there": (
        f'<tool_call>\n{{"name": "get_weather", "arguments": {PARIS}}}\n',
        [call("get_weather", PARIS)],
    ),
    "arguments in a string": (
        '<tool_call>{"name": "get_weather", "arguments": "{\\"city\\": \\"Paris\\"}"}</tool_call>',
        [call("get_weather", PARIS)],
    ),
    "Qwen3-Coder: the schema tells what the texts mean": (
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis,\nTexas\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
        "<parameter=zip>\n75460\n</parameter>\n</function>\n</tool_call>",
        [call("get_weather", '{"city": "Paris,\\nTexas", "days": 3, "zip": "75460"}')],
    ),
    "Qwen3-Coder, nothing around it": (
        "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>",
        [call("get_weather", PARIS)],
    ),
    "Llama 3": (f"<function=get_weather>{PARIS}</function>", [call("get_weather", PARIS)]),
    "Llama 3, built in": (
        f'<|python_tag|>{{"name": "get_weather", "parameters": {PARIS}}}; {{"name": "get_time", "parameters": {{}}}}',
        [call("get_weather", PARIS), call("get_time", "{}")],
    ),
    "Mistral": (
        f'[TOOL_CALLS] [{{"name": "get_weather", "arguments": {PARIS}}}, {{"name": "get_time", "arguments": {{}}}}]',
        [call("get_weather", PARIS), call("get_time", "{}")],
    ),
    "Mistral, since 2025": (
        f"Sure.[TOOL_CALLS]get_weather[ARGS]{PARIS}[TOOL_CALLS]get_weather[CALL_ID]AbCdEf123[ARGS]{ROME}",
        ["Sure.", call("get_weather", PARIS), call("get_weather", ROME, "AbCdEf123")],
    ),
    "Kimi, whose ids are kept": (
        f"<|tool_calls_section_begin|>{KIMI.format('get_weather', 0, PARIS)}{KIMI.format('get_time', 1, '{}')}"
        "<|tool_calls_section_end|>",
        [call("get_weather", PARIS, "functions.get_weather:0"),
            call("get_time", "{}", "functions.get_time:1")],
    ),
    "DeepSeek R1": (
        DEEPSEEK.format(f"function{SEP}get_weather\n```json\n{PARIS}\n```"),
        [call("get_weather", PARIS)],
    ),
    "DeepSeek V3.1": (DEEPSEEK.format(f"get_weather{SEP}{PARIS}"), [call("get_weather", PARIS)]),
    "GLM": (
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n"
        "<arg_value>3</arg_value>\n</tool_call>",
        [call("get_weather", '{"city": "Paris", "days": 3}')],
    ),
    "GLM, no arguments": ("<tool_call>get_time\n</tool_call>", [call("get_time", "{}")]),
    "Phi": (
        f'<|tool_call|>[{{"name": "get_weather", "arguments": {PARIS}}}]<|/tool_call|>',
        [call("get_weather", PARIS)],
    ),
    "gpt-oss": (
        "<|channel|>analysis<|message|>Look first.<|end|><|start|>assistant<|channel|>commentary "
        f"to=functions.get_weather <|constrain|>json<|message|>{PARIS}<|call|>",
        [ReasoningDelta(["Look first."]), call("get_weather", PARIS)],
    ),
    "gpt-oss, an answer": (
        "<|channel|>analysis<|message|>Easy.<|end|><|start|>assistant<|channel|>final<|message|>It is 4.<|return|>",
        [ReasoningDelta(["Easy."]), "It is 4."],
    ),
}  # fmt: skip

TEXTS = {
    "nothing of the kind": "Hello, 1 < 2, [a], <b>. ",
    "no function of that name": '<tool_call>{"name": "rm", "arguments": {}}</tool_call> Yes.',
    "one of two": f'<tool_call>[{{"name": "get_weather", "arguments": {PARIS}}}, {{"name": "rm"}}]</tool_call>',
    "a call that was cut off": '<tool_call>{"name": "get_weather", "arguments": {"ci',
    "a parameter that was cut off": "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n",
    "the second of Kimi's calls was cut off": (
        f"<|tool_calls_section_begin|>{KIMI.format('get_weather', 0, PARIS)}<|tool_call_begin|>functions.get_time:1<|to"
    ),
    "a call of DeepSeek's that was cut off": (
        '<|DSML|tool_calls><|DSML|invoke name="get_weather"><|DSML|parameter name="city" string="true">Pa'
    ).replace("|", "\uff5c"),
    "a call of Kimi K3's that was cut off": (
        '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>'
        '<|open|>argument key="city" type="string"<|sep|>Pa'
    ),
    "a call of Gemma's that cannot be read": "<|tool_call>call:get_weather{city:Paris}<tool_call|>",
    "parameters that are none": '<minimax:tool_call><invoke name="get_weather">Paris</invoke></minimax:tool_call>',
    "what is talked about": "Write <tool_call>...</tool_call> around it.",
    "half a mark": "So: <tool_ca",
    "arguments that are none": "<function=get_weather>{city: Paris}</function>",
}


@pytest.mark.parametrize(("text", "expected"), CALLS.values(), ids=CALLS)
def test_text_tool_call_is_taken_out(text: str, expected: list[str | Delta]) -> None:
    assert find(text) == find(*text) == expected


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_text_without_a_call_is_text(text: str) -> None:
    assert find(text) == find(*text) == [text]


@pytest.mark.parametrize("body", [f"<function=get_weather>{' ' * 50_000}x</function>", f"<tool_call>{'1 ' * 50_000}"])
def test_long_text_without_a_call_is_read_in_linear_time(body: str) -> None:
    assert find(body) == [body]


def test_text_that_cannot_be_a_delimiter_is_emitted_at_once() -> None:
    finder = TextToolCallFilter(REQUEST)
    found = [finder.feed([TextDelta([piece])]) for piece in ("Hi ", "<tool", "s>", " there")]
    assert found == [[TextDelta([text])] if text else [] for text in ("Hi", "", " <tools>", " there")]


def test_empty_commentary_is_dropped() -> None:
    assert find("<|channel|>commentary<|message|><|end|><|call|>Hi.") == ["Hi."]


MARKED = st.lists(st.sampled_from([text for text, _ in CALLS.values()] + [*TEXTS.values(), " ", "\n", "<", "hm"]))


@given(text=MARKED.map("".join), cuts=st.lists(st.integers(0, 2000), max_size=8))
def test_text_tool_calls_are_the_same_for_any_cut(text: str, cuts: list[int]) -> None:
    positions = [0, *sorted({cut % (len(text) + 1) for cut in cuts}), len(text)]
    assert find(*(text[a:b] for a, b in itertools.pairwise(positions))) == find(text)
