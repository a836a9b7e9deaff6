"""Tools of coding agents: free text, namespaces, tool search, and tools in items."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.core import items
from app.core.profile import Profile
from app.core.request import to_chat
from app.core.request.model_request import EncodedRequest, ModelRequest
from app.core.types.request import CreateResponse, Event
from app.errors import InvalidRequest
from tests.support import laws
from tests.support.build import answer, call, delta, output, story, whole
from tests.support.conversation import CHAT_IMAGE, IMAGE, user

LARK = {"type": "grammar", "syntax": "lark", "definition": 'start: "a"+'}
PATCH = {"type": "custom", "name": "patch", "description": "Edits files.", "format": LARK}
WAIT = {"type": "function", "name": "wait", "description": "Waits.", "parameters": None}
FUNCTIONS = {"type": "namespace", "name": "functions", "tools": [{**PATCH, "name": "exec"}, WAIT]}
SEARCH = {"type": "tool_search", "execution": "client", "description": "Finds.", "parameters": None}


def ask(tools: Any, *items: Any, options: dict[str, Any] | None = None, **request: Any) -> EncodedRequest:
    parsed_request = CreateResponse.model_validate(
        {"model": "m", "input": [user("Hi"), *items], "tools": tools, **request}
    )
    return to_chat(ModelRequest(parsed_request, parsed_request.items(), "m"), Profile().override(options or {}))


def names(chat: EncodedRequest) -> list[str]:
    return [tool["function"]["name"] for tool in chat.body.get("tools", [])]


def answered(chat: EncodedRequest, *chunks: Any, reason: str | None = "tool_calls") -> list[Event]:
    events = answer(whole(*chunks, reason=reason), bindings=chat.bindings, allowed=chat.allowed)
    laws.check(events)
    return events


# Free-text tools.


def test_custom_tool_is_a_function_of_one_string_with_its_grammar_in_words() -> None:
    (tool,) = ask([PATCH]).body["tools"]
    assert tool == {
        "type": "function",
        "function": {
            "name": "patch",
            "description": "Edits files.\n\n"
            "Put the whole text into the argument `input`. Do not wrap it in JSON, quotes or a code fence."
            '\n\nThe text must match this Lark grammar:\n\nstart: "a"+',
            "parameters": {
                "type": "object",
                "properties": {"input": {"type": "string", "description": "The whole text for the tool."}},
                "required": ["input"],
                "additionalProperties": False,
            },
        },
    }


@pytest.mark.parametrize("format", [None, {"type": "text"}, {"type": "grammar"}, {"definition": 3}])
def test_custom_tool_without_a_grammar_is_a_function(format: Any) -> None:
    (tool,) = ask([{"type": "custom", "name": "patch", "description": None, "format": format}]).body["tools"]
    assert tool["function"]["description"].startswith("Put the whole text into the argument `input`.")
    assert "match" not in tool["function"]["description"]


@pytest.mark.parametrize(
    "syntax, definition, option, pattern",
    [
        ("regex", "a|b", "none", None),
        ("regex", "a|b", "pattern", "^(a|b)$"),
        ("regex", "^a+$", "pattern", "^a+$"),
        ("regex", "(?=a)b", "pattern", "^((?=a)b)$"),  # the server may understand it
        ("regex", 'a|"', "json_pattern", r'^(a|\\")$'),
        ("regex", "(?=a)b", "json_pattern", None),
        ("lark", 'start: "a"+ "\\n"', "none", None),
        ("lark", 'start: "a"+ "\\n"', "pattern", r"^((a)+\n)$"),
        ("lark", 'start: "a"+ "\\n"', "json_pattern", r"^((a)+\\n)$"),
        ("lark", 'start: "(" start ")" | "x"', "pattern", None),
        ("gbnf", 'root ::= "a"', "json_pattern", None),
    ],
)
def test_custom_tool_grammar_is_a_pattern_where_the_backend_enforces_it(
    syntax: str, definition: str, option: str, pattern: Any
) -> None:
    tool = {**PATCH, "format": {"type": "grammar", "syntax": syntax, "definition": definition}}
    (sent,) = ask([tool], options={"request.grammar": option}).body["tools"]
    assert sent["function"]["parameters"]["properties"]["input"].get("pattern") == pattern
    assert sent["function"].get("strict") == (True if pattern else None)
    assert sent["function"]["description"].endswith(f"\n\n{definition}")


def test_custom_tool_call_comes_back_as_one() -> None:
    pieces = ['{"inp', 'ut": "*** Begin', "\\n", 'End"}']
    events = answered(ask([PATCH]), call(0, "c", "patch"), *(call(0, arguments=piece) for piece in pieces))
    assert story(events[2:-1]) == (
        "output_item.added custom_tool_call_input.delta custom_tool_call_input.delta custom_tool_call_input.delta "
        "custom_tool_call_input.done output_item.done"
    )
    (item,) = output(events)
    assert item == {
        "type": "custom_tool_call",
        "id": "ctc_0",
        "call_id": "c",
        "name": "patch",
        "input": "*** Begin\nEnd",
        "status": "completed",
    }
    assert events[2]["item"] == {**item, "input": "", "status": "in_progress"}
    where = {"item_id": "ctc_0", "output_index": 0}
    done = {"type": "response.custom_tool_call_input.done", "sequence_number": 6, **where, "input": item["input"]}
    assert events[6] == done


@pytest.mark.parametrize("is_async", [True, False, None])
def test_asynchronous_tool_call_says_so(is_async: bool | None) -> None:
    tools = [{**PATCH, "async": is_async}, {"type": "function", "name": "build", "async": is_async}]
    chat = ask(tools)
    assert all(set(tool["function"]) <= {"name", "description", "parameters"} for tool in chat.body["tools"])
    events = answered(chat, call(0, "c", "patch", "{}"), call(1, "d", "build", "{}"))
    assert [item.get("async") for item in output(events)] == ([True, True] if is_async else [None, None])


INPUTS: dict[str, tuple[list[Any], str]] = {
    "whole": ([call(0, "c", "patch", '{"input": "x"}')], "x"),
    "as an object": ([call(0, "c", "patch", {"input": "x"})], "x"),
    "resent when it was whole": ([call(0, "c", "patch", '{"input": "x"}'), call(0, None, None, '{"input": "x"}')], "x"),
    "before the name": ([call(0, "c", None, '{"input"'), call(0, None, "patch", ': "x"}')], "x"),
    "raw": ([call(0, "c", "patch", "*** Be"), call(0, None, None, "gin"), call(0, None, None, "{}x")], "*** Begin{}x"),
    "raw and begun with braces": ([call(0, "c", "patch", "{ a } "), call(0, None, None, "x")], "{ a } x"),
    "a bare string": ([call(0, "c", "patch", '"x'), call(0, None, None, '\\ny"')], "x\ny"),
    "with something else": ([call(0, "c", "patch", '{"why": "so", "input": "x"}')], "x"),
    "under another name": ([call(0, "c", "patch", '{"patch": "x"}')], '{"patch": "x"}'),
    "nothing": ([call(0, "c", "patch", "")], ""),
    "an empty object": ([call(0, "c", "patch", "{}")], ""),
    "the empty text": ([call(0, "c", "patch", '{"input": ""}')], ""),
}  # fmt: skip


@pytest.mark.parametrize(("chunks", "expected"), INPUTS.values(), ids=INPUTS)
def test_custom_tool_input_is_unwrapped(chunks: list[Any], expected: str) -> None:
    (item,) = output(answered(ask([PATCH]), *chunks))
    assert (item["input"], item["status"]) == (expected, "completed")


@pytest.mark.parametrize(
    "arguments, reason, text",
    [
        ('{"input": "half', "stop", "half"),
        ('{"input": "half', "length", "half"),
        ('{"input": "whole"', "tool_calls", "whole"),
        ('{"inp', "stop", ""),
        ("half", "length", "half"),
        ("", "length", ""),
    ],
)
def test_custom_tool_call_that_was_cut_off_is_incomplete(arguments: str, reason: str, text: str) -> None:
    events = answered(ask([PATCH]), call(0, "c", "patch", arguments), reason=reason)
    (item,) = output(events)
    assert (item["input"], item["status"]) == (text, "incomplete")
    assert events[-1]["type"] == "response.incomplete"


def test_custom_tool_calls_side_by_side_are_kept_apart() -> None:
    events = answered(
        ask([PATCH]),
        call(0, "a", "patch", '{"input": "1'),
        call(1, "b", "patch", '{"input": "2'),
        call(0, arguments='1"}'),
        call(1, arguments='2"}'),
    )
    assert [(item["call_id"], item["input"]) for item in output(events)] == [("a", "11"), ("b", "22")]


@pytest.mark.parametrize(
    "choice, sent",
    [
        ({"type": "custom", "name": "patch"}, "patch"),
        ({"type": "custom", "custom": {"name": "patch"}}, "patch"),
        ({"type": "custom", "name": "exec", "namespace": "functions"}, "functions__exec"),
        ({"type": "tool_search"}, "tool_search"),
    ],
)
def test_tool_choice_of_any_kind_of_tool_is_sent(choice: Any, sent: str) -> None:
    chat = ask([PATCH, FUNCTIONS, SEARCH], tool_choice=choice)
    assert chat.body["tool_choice"] == {"type": "function", "function": {"name": sent}}
    assert chat.allowed == {sent}


def test_custom_tool_call_and_output_are_sent_as_those_of_a_function() -> None:
    chat = ask(
        [PATCH],
        {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c", "name": "patch", "input": 'say "é"\n', "x": None},
        {"type": "custom_tool_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "Done."}, IMAGE]},
    )
    _, made, tool_message, shown = chat.body["messages"]
    assert made["tool_calls"] == [
        {"id": "c", "type": "function", "function": {"name": "patch", "arguments": '{"input": "say \\"é\\"\\n"}'}}
    ]
    assert tool_message == {"role": "tool", "tool_call_id": "c", "content": "Done."}
    assert shown["content"][1] == CHAT_IMAGE


@pytest.mark.parametrize("item", [{"call_id": "", "name": "p", "input": ""}, {"call_id": "c", "name": "p"}])
def test_custom_tool_call_without_required_fields_is_refused(item: Any) -> None:
    with pytest.raises(ValueError, match="custom_tool_call"):
        ask([PATCH], {"type": "custom_tool_call", **item})


# Namespaces.


def test_namespace_tools_of_any_kind_come_back_in_their_namespace() -> None:
    chat = ask([FUNCTIONS, WAIT])
    assert names(chat) == ["wait", "functions__exec", "functions__wait"]
    events = answered(
        chat,
        call(0, "a", "functions__exec", '{"input": "x"}'),
        call(1, "b", "functions__wait", "{}"),
        call(2, "c", "wait", "{}"),
    )
    call_items = [
        (event["item"]["type"], event["item"]["name"], event["item"].get("namespace"))
        for kind in ("added", "done")
        for event in events
        if event["type"] == f"response.output_item.{kind}"
    ]
    custom, function = ("custom_tool_call", "exec", "functions"), ("function_call", "wait", "functions")
    assert call_items == [custom, function, ("function_call", "wait", None)] * 2
    assert [(item["name"], item.get("namespace")) for item in output(events)] == [name[1:] for name in call_items[:3]]


def test_namespace_calls_are_sent_under_the_backends_name() -> None:
    custom = {"type": "custom_tool_call", "call_id": "a", "name": "exec", "namespace": "functions", "input": "x"}
    function = {"type": "function_call", "call_id": "b", "name": "wait", "namespace": "functions", "arguments": "{}"}
    for tools in ([FUNCTIONS], []):
        made = ask(tools, custom, function).body["messages"][1]["tool_calls"]
        assert [one["function"]["name"] for one in made] == ["functions__exec", "functions__wait"]


# Tools in items.


def adding(*tools: Any) -> dict[str, Any]:
    return {"type": "additional_tools", "role": "developer", "tools": list(tools)}


def test_additional_tools_item_offers_its_tools() -> None:
    chat = ask([], adding(FUNCTIONS, WAIT), tool_choice="required")
    assert names(chat) == ["functions__exec", "functions__wait", "wait"]
    assert chat.body["tool_choice"] == "required"
    assert chat.body["messages"] == [user("Hi")]
    assert chat.warnings == ()
    assert ask([], adding(WAIT), tool_choice={"type": "function", "name": "wait"}).allowed == {"wait"}


def test_additional_tools_of_a_later_item_win_and_those_of_the_request_most() -> None:
    first, second, third = ({**WAIT, "description": text} for text in ("1", "2", "3"))

    def described(chat: EncodedRequest) -> list[str]:
        return [tool["function"]["description"] for tool in chat.body["tools"]]

    assert described(ask([], adding(first), adding(second))) == ["2"]
    assert described(ask([third], adding(first), adding(second))) == ["3"]


@pytest.mark.parametrize(
    "tools",
    [None, "x", [None], [{"type": "function"}], [{"type": "custom", "name": "x" * 65}], [{"type": "web_search"}]],
)
def test_additional_tools_that_are_invalid_are_no_tools(tools: Any) -> None:
    assert names(ask([WAIT], {"type": "additional_tools", "tools": tools})) == ["wait"]


# A search for tools, which the client runs.


def found(*tools: Any, call_id: str | None = "s") -> dict[str, Any]:
    return {"type": "tool_search_output", "call_id": call_id, "execution": "client", "tools": list(tools)}


SEARCHED = {
    "type": "tool_search_call",
    "call_id": "s",
    "execution": "client",
    "status": "completed",
    "arguments": {"query": "add", "limit": 2},
}
ADD = {"type": "function", "name": "add", "description": "Adds.", "defer_loading": True}
LAB = {"type": "namespace", "name": "mcp__lab", "description": "Lab.", "tools": [ADD]}


def test_tool_search_is_a_function_with_its_description_or_ours() -> None:
    schema = {"type": "object", "properties": {"q": {"type": "string"}}}
    own, ours = (
        ask([{**SEARCH, "description": text, "parameters": parameters}]).body["tools"][0]["function"]
        for text, parameters in (("Finds.", schema), (None, None))
    )
    assert own == {"name": "tool_search", "description": "Finds.", "parameters": schema}
    assert ours["name"] == "tool_search" and ours["parameters"]["required"] == ["query"]
    assert set(ours["parameters"]["properties"]) == {"query", "limit"}


def test_tool_search_call_comes_back_with_an_object() -> None:
    events = answered(ask([SEARCH]), call(0, "s", "tool_search", '{"query":'), call(0, arguments=' "add"}'))
    assert story(events[2:-1]) == "output_item.added output_item.done"
    (item,) = output(events)
    assert item == {
        "type": "tool_search_call",
        "id": "tsc_0",
        "call_id": "s",
        "execution": "client",
        "arguments": {"query": "add"},
        "status": "completed",
    }
    assert events[2]["item"] == {**item, "arguments": {}, "status": "in_progress"}


@pytest.mark.parametrize(
    "arguments, expected, status",
    [
        ("", {}, "completed"),
        ('"add"', {"query": "add"}, "completed"),
        ("[1]", {}, "completed"),
        ('{"query": "ad', {}, "incomplete"),
    ],
)
def test_tool_search_arguments_are_always_an_object(arguments: str, expected: Any, status: str) -> None:
    (item,) = output(answered(ask([SEARCH]), call(0, "s", "tool_search", arguments)))
    assert (item["arguments"], item["status"]) == (expected, status)


def test_tool_search_beside_a_function_of_its_name_stays_apart() -> None:
    chat = ask([SEARCH, {**WAIT, "name": "tool_search"}])
    function, search = names(chat)
    assert function == "tool_search" != search
    assert chat.bindings[function].kind is items.FUNCTION_CALL
    assert chat.bindings[search].kind is items.TOOL_SEARCH_CALL


def test_deferred_tools_are_offered_once_found() -> None:
    deferred = {**LAB, "tools": [ADD, WAIT]}
    assert names(ask([SEARCH, ADD, deferred])) == ["tool_search", "mcp__lab__wait"]
    assert names(ask([SEARCH, deferred], SEARCHED, found(LAB))) == ["tool_search", "mcp__lab__wait", "mcp__lab__add"]
    assert names(ask([SEARCH], SEARCHED, found(LAB, ADD))) == ["tool_search", "mcp__lab__add", "add"]


def test_deferred_tools_without_a_search_are_offered_at_once() -> None:
    assert names(ask([ADD, LAB])) == ["add", "mcp__lab__add"]
    assert names(ask([{"type": "tool_search", "execution": "server"}, ADD])) == ["add"]


def test_tool_choice_among_tools_that_were_not_found_is_translated() -> None:
    tools = [SEARCH, ADD, WAIT]
    allowed = {"type": "allowed_tools", "tools": [{"type": "function", "name": name} for name in ("add", "wait")]}
    assert names(ask(tools, tool_choice=allowed)) == ["wait"]
    assert names(ask(tools, SEARCHED, found(ADD), tool_choice=allowed)) == ["wait", "add"]
    with pytest.raises(InvalidRequest):
        ask(tools, tool_choice={"type": "function", "name": "add"})


def test_tool_that_was_found_is_called_in_its_namespace() -> None:
    chat = ask([SEARCH], SEARCHED, found(LAB))
    (item,) = output(answered(chat, call(0, "a", "mcp__lab__add", "{}")))
    assert (item["type"], item["name"], item["namespace"]) == ("function_call", "add", "mcp__lab")


def test_tool_search_and_its_result_are_sent_as_a_call_and_its_result() -> None:
    _, made, tool_message = ask([SEARCH], SEARCHED, found(LAB, PATCH)).body["messages"]
    function = {"name": "tool_search", "arguments": '{"query": "add", "limit": 2}'}
    assert made["tool_calls"] == [{"id": "s", "type": "function", "function": function}]
    assert tool_message == {
        "role": "tool",
        "tool_call_id": "s",
        "content": "These tools were found. You can call them now:\n"
        "- mcp__lab__add: Lab.\n\nAdds.\n- patch: Edits files.",
    }
    nothing = ask([SEARCH], SEARCHED, found()).body["messages"][-1]
    assert nothing["content"] == "No tools were found."


def test_tool_search_that_ran_elsewhere_offers_its_tools_and_is_not_sent() -> None:
    elsewhere = {"type": "tool_search_call", "call_id": None, "execution": "server", "arguments": {"paths": ["lab"]}}
    chat = ask([], elsewhere, found(LAB, call_id=None))
    assert chat.body["messages"] == [user("Hi")]
    assert names(chat) == ["mcp__lab__add"]
    assert chat.warnings == ()


# Calls to OpenAI's own tools, from other servers.


@pytest.mark.parametrize(
    "call_item, output_item, name, arguments, content",
    [
        (
            {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}},
            {"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "a", "stderr": ""}]},
            "shell",
            {"commands": ["ls"]},
            '[{"stdout": "a", "stderr": ""}]',
        ),
        (
            {"type": "local_shell_call", "id": "l", "call_id": "c", "action": {"type": "exec", "command": ["ls"]}},
            {"type": "local_shell_call_output", "id": "c", "output": "a"},
            "local_shell",
            {"command": ["ls"]},
            "a",
        ),
        (
            {"type": "apply_patch_call", "call_id": "c", "operation": {"type": "delete_file", "path": "a"}},
            {"type": "apply_patch_call_output", "call_id": "c", "status": "completed", "output": None},
            "apply_patch",
            {"type": "delete_file", "path": "a"},
            "completed",
        ),
    ],
)
def test_calls_of_tools_that_are_not_offered_are_sent(
    call_item: Any, output_item: Any, name: str, arguments: Any, content: str
) -> None:
    _, assistant, result = ask([], call_item, output_item).body["messages"]
    (function,) = (one["function"] for one in assistant["tool_calls"])
    assert (function["name"], json.loads(function["arguments"])) == (name, arguments)
    assert result == {"role": "tool", "tool_call_id": "c", "content": content}


@pytest.mark.parametrize("type", ["shell_call", "shell_call_output", "local_shell_call_output", "apply_patch_call"])
def test_calls_of_missing_tools_without_an_id_are_left_out_with_a_warning(type: str) -> None:
    chat = ask([], {"type": type, "status": None})
    assert chat.body["messages"] == [user("Hi")]
    assert chat.warnings == (f"Items of unknown type '{type}' were ignored.",)


def test_text_beside_every_kind_of_call_is_kept() -> None:
    events = answered(
        ask([PATCH, SEARCH]),
        delta(content="Let me see."),
        call(0, "a", "tool_search", "{}"),
        call(1, "b", "patch", '{"input": "x"}'),
        delta(content="Done."),
    )
    assert [item["type"] for item in output(events)] == ["message", "tool_search_call", "custom_tool_call", "message"]
