"""Hosted and client-run tool items, as a model receives and as a client writes them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.core.items.readings import NOTES
from app.core.profile import Profile
from app.core.request import to_chat
from app.core.request.model_request import EncodedRequest, ModelRequest
from app.core.types.hosted import NO_HOSTED_TOOLS, HostedFunction, HostedTools
from app.core.types.request import CreateResponse
from app.errors import InvalidRequest
from tests.support.build import answer, call, output, story, whole
from tests.support.conversation import user

ADD = HostedFunction("add", "mcp_call", namespace="lab", fields={"server_label": "lab", "name": "add"})
SUBTRACT = HostedFunction("subtract", "mcp_call", namespace="lab", fields={"server_label": "lab", "name": "subtract"})
SEARCH = HostedFunction("web_search", "web_search_call")
DECLARED = [{"type": "mcp", "server_label": "lab"}, {"type": "web_search"}]
HOSTED = HostedTools(
    ((ADD, {"mcp"}), (SUBTRACT, {"mcp"}), (SEARCH, {"web_search", "web_search_preview"})),
    frozenset({0, 1}),
    frozenset({"mcp", "web_search", "web_search_preview"}),
)


def ask(
    *items: Any, notes: dict[str, Any] | None = None, hosted: HostedTools = HOSTED, **request: Any
) -> EncodedRequest:
    body = {"model": "m", "input": [user("Hi"), *items], "tools": DECLARED, **request}
    parsed_request = CreateResponse.model_validate(body)
    upstream = {id: {NOTES: note} for id, note in (notes or {}).items()}
    return to_chat(
        ModelRequest(parsed_request, parsed_request.items(), "m", upstream=upstream, hosted=hosted), Profile()
    )


def added(id: str, output: str | None = "3", **fields: Any) -> dict[str, Any]:
    item = {
        "type": "mcp_call",
        "id": id,
        "server_label": "lab",
        "name": "add",
        "arguments": '{"a": 1}',
        "output": output,
    }
    return {**item, "status": "completed", **fields}


def shape(chat: EncodedRequest) -> list[Any]:
    """Roles, with how many calls an assistant message makes."""
    return [(m["role"], len(m["tool_calls"])) if "tool_calls" in m else m["role"] for m in chat.body["messages"]]


def test_hosted_functions_are_offered_by_flat_names_without_a_warning() -> None:
    chat = ask()
    assert [tool["function"]["name"] for tool in chat.body["tools"]] == ["lab__add", "lab__subtract", "web_search"]
    assert chat.warnings == ()
    assert chat.bindings["lab__add"].hosted is ADD


def test_hosted_functions_are_declared_once_for_the_questions_of_one_server() -> None:
    parsed_request = CreateResponse.model_validate({"input": "Hi", "tools": DECLARED})
    hosted = HostedTools([(ADD, {"mcp"})])
    model_request, profile = ModelRequest(parsed_request, parsed_request.items(), "m", hosted=hosted), Profile()
    first, second = (to_chat(model_request, profile).body["tools"][0] for _ in range(2))
    assert first is second
    other = to_chat(model_request, Profile().override({"request.strict": "force"})).body["tools"][0]
    assert other == {**first, "function": {**first["function"], "strict": True}}


def test_deferred_hosted_function_is_offered_once_a_search_has_found_it() -> None:
    deferred = [HostedFunction(name, "mcp_call", namespace="lab", deferred=True) for name in ("add", "subtract")]
    search = HostedFunction("tool_search", "tool_search_call")
    hosted = HostedTools([(search, {"tool_search"}), *((one, {"mcp"}) for one in deferred)], {0}, {"mcp"})
    tools = [{"type": "mcp", "server_label": "lab", "defer_loading": True}]
    assert [*ask(hosted=hosted, tools=tools).bindings] == ["tool_search"]
    found = {
        "type": "tool_search_output",
        "call_id": "call_1",
        "execution": "server",
        "tools": [{"type": "namespace", "name": "lab", "tools": [{"type": "function", "name": "add"}]}],
    }
    assert [*ask(found, hosted=hosted, tools=tools).bindings] == ["tool_search", "lab__add"]


def test_function_of_the_client_keeps_its_name() -> None:
    own = {"type": "function", "name": "web_search"}
    chat = ask(tools=[*DECLARED, own])
    assert chat.bindings["web_search"].hosted is None
    assert sum(binding.hosted is SEARCH for binding in chat.bindings.values()) == 1


def test_functions_beyond_the_servers_limit_are_not_offered() -> None:
    many = [(HostedFunction(f"f{n}", "mcp_call", namespace="lab"), {"mcp"}) for n in range(200)]
    chat = ask(hosted=HostedTools(many, {0, 1}, {"mcp"}), tools=[*DECLARED, {"type": "function", "name": "mine"}])
    assert len(chat.body["tools"]) == 128
    assert "mine" in chat.bindings
    (warning,) = chat.warnings
    assert "73 functions of hosted tools were left out" in warning


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ({"type": "mcp", "server_label": "lab", "name": "add"}, {"lab__add"}),
        ({"type": "mcp", "server_label": "lab"}, {"lab__add", "lab__subtract"}),
        ({"type": "web_search_preview"}, {"web_search"}),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "mcp", "server_label": "lab"}]},
            {"lab__add", "lab__subtract"},
        ),
    ],
)
def test_tool_choice_of_a_hosted_type_names_its_functions(choice: Any, names: set[str]) -> None:
    chat = ask(tool_choice=choice)
    assert chat.allowed == names
    assert chat.body["tool_choice"] != "auto"


def test_tool_choice_of_a_server_without_functions_is_refused() -> None:
    with pytest.raises(InvalidRequest) as refused:
        ask(tool_choice={"type": "mcp", "server_label": "other"})
    assert refused.value.param == "tool_choice"


def test_hosted_call_is_sent_as_a_call_and_its_result() -> None:
    chat = ask(added("mcp_1"))
    _, made, result = chat.body["messages"]
    assert made["tool_calls"][0]["function"] == {"name": "lab__add", "arguments": '{"a": 1}'}
    assert result == {"role": "tool", "tool_call_id": made["tool_calls"][0]["id"], "content": "3"}


def test_hosted_calls_of_one_round_are_one_message_and_of_two_rounds_two() -> None:
    both = [added("mcp_1"), added("mcp_2")]
    together = {"mcp_1": {"round": 0, "call_id": "c1"}, "mcp_2": {"round": 0, "call_id": "c2"}}
    apart = {"mcp_1": {"round": 0}, "mcp_2": {"round": 1}}
    assert shape(ask(*both, notes=together)) == ["user", ("assistant", 2), "tool", "tool"]
    assert shape(ask(*both, notes=apart)) == ["user", ("assistant", 1), "tool", ("assistant", 1), "tool"]
    assert shape(ask(*both)) == ["user", ("assistant", 1), "tool", ("assistant", 1), "tool"]


def test_client_call_of_the_same_round_is_in_the_same_message() -> None:
    mine = {"type": "function_call", "id": "fc_1", "call_id": "m", "name": "mine", "arguments": "{}"}
    done = {"type": "function_call_output", "call_id": "m", "output": "ok"}
    notes = {"mcp_1": {"round": 0, "call_id": "h"}, "fc_1": {"round": 0}}
    chat = ask(added("mcp_1"), mine, done, notes=notes)
    assert shape(chat) == ["user", ("assistant", 2), "tool", "tool"]
    assert [message["content"] for message in chat.body["messages"][2:]] == ["3", "ok"]


def test_reasoning_between_the_calls_of_a_round_does_not_part_them() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    notes = {"mcp_1": {"round": 0, "call_id": "c1"}, "mcp_2": {"round": 0, "call_id": "c2"}}
    assert shape(ask(added("mcp_1"), thought, added("mcp_2"), notes=notes)) == [
        "user",
        ("assistant", 2),
        "tool",
        "tool",
    ]


def test_hosted_result_that_was_shown_is_shown_again() -> None:
    item = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}}
    notes = {"ws_1": {"arguments": '{"query":"x","n":3}', "output": "Three results.", "call_id": "c9"}}
    _, made, result = ask(item, notes=notes).body["messages"]
    assert made["tool_calls"][0] == {
        "id": "c9",
        "type": "function",
        "function": {"name": "web_search", "arguments": '{"query":"x","n":3}'},
    }
    assert result["content"] == "Three results."


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        ({"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": "No."}]}, "Error: No."),
        ({"type": "http_error", "code": 500, "message": "Away."}, "Error: Away."),
        ("It broke.", "Error: It broke."),
        ({}, "Error: the call failed."),
    ],
)
def test_hosted_error_is_shown_in_words(error: Any, shown: str) -> None:
    assert ask(added("mcp_1", None, error=error, status="failed")).body["messages"][-1]["content"] == shown


@pytest.mark.parametrize(
    ("item", "shown"),
    [
        ({"type": "web_search_call", "status": "failed"}, "Error: the call failed."),
        ({"type": "web_search_call", "status": "incomplete"}, "(The call was interrupted and has no result.)"),
        ({"type": "web_search_call", "status": "completed"}, "(The results were not stored.)"),
        (
            {"type": "code_interpreter_call", "code": "1", "outputs": None, "status": "failed"},
            "Error: the call failed.",
        ),
        ({"type": "image_generation_call", "error": {"message": "Too big."}}, "Error: Too big."),
        ({"type": "image_generation_call", "error": "Too big.", "status": "in_progress"}, "Error: Too big."),
        ({"type": "image_generation_call", "status": "failed"}, "Error: the image could not be created."),
        ({"type": "image_generation_call", "error": None}, "Image created."),
    ],
)
def test_call_without_a_result_says_how_it_ended(item: Any, shown: str) -> None:
    *_, result = ask({"id": "one_1", **item}).body["messages"]
    assert (result["role"], result["content"]) == ("tool", shown)


REQUEST = {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "lab", "name": "add", "arguments": "{}"}


def decision(**fields: Any) -> dict[str, Any]:
    return {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", **fields}


@pytest.mark.parametrize(
    ("after", "shown"),
    [
        ([], "The user has not approved this call yet."),
        ([decision(approve=False)], "The user did not approve this call."),
        ([decision(approve=False, reason="Too dear.")], "The user did not approve this call: Too dear."),
        ([decision(approve=True), added("mcp_1", "4", approval_request_id="mcpr_1")], "4"),
    ],
)
def test_hosted_call_that_needs_approval_is_sent_once(after: Any, shown: str) -> None:
    chat = ask(REQUEST, *after)
    assert shape(chat) == ["user", ("assistant", 1), "tool"]
    assert chat.body["messages"][-1]["content"] == shown


@pytest.mark.parametrize(
    ("after", "shown"),
    [
        ([decision(approve=False)], "The user did not approve the requested call of add."),
        ([decision(approve=True)], "The user approved the requested call of add, but it was not run."),
        ([decision(approve=True), added("mcp_1", "4", approval_request_id="mcpr_1")], "4"),
    ],
)
def test_late_decision_leaves_the_request_as_the_model_saw_it(after: Any, shown: str) -> None:
    answered = [{"role": "user", "content": "Later."}, {"role": "assistant", "content": "Fine."}]
    chat = ask(REQUEST, *answered, *after)
    assert chat.body["messages"][2]["content"] == "The user has not approved this call yet."
    assert chat.body["messages"][-1]["content"] == shown


# Client-run tools.

CLIENT_RUN: dict[str, tuple[dict[str, Any], str, Any, str]] = {
    "local_shell": (
        {"type": "local_shell"},
        '{"command": ["ls"]}',
        {"action": {"type": "exec", "command": ["ls"], "env": {}}},
        "output_item.added output_item.done",
    ),
    "shell": (
        {"type": "shell", "environment": {"type": "local"}},
        '{"commands": ["ls", "pwd"]}',
        {"action": {"commands": ["ls", "pwd"]}, "environment": {"type": "local"}},
        "output_item.added shell_call_command.added shell_call_command.delta shell_call_command.done "
        "shell_call_command.added shell_call_command.delta shell_call_command.done output_item.done",
    ),
    "apply_patch": (
        {"type": "apply_patch"},
        '{"type": "create_file", "path": "a", "diff": "+a"}',
        {"operation": {"type": "create_file", "path": "a", "diff": "+a"}},
        "output_item.added apply_patch_call_operation_diff.delta apply_patch_call_operation_diff.done output_item.done",
    ),
    "computer": (
        {"type": "computer"},
        '{"actions": [{"type": "click", "x": 1, "y": 2}]}',
        {"actions": [{"type": "click", "x": 1, "y": 2}], "pending_safety_checks": []},
        "output_item.added output_item.done",
    ),
    "computer_use_preview": (
        {"type": "computer_use_preview", "display_width": 800, "display_height": 600, "environment": "browser"},
        '{"type": "click", "x": 1, "y": 2, "button": "left"}',
        {"action": {"type": "click", "x": 1, "y": 2, "button": "left"}, "pending_safety_checks": []},
        "output_item.added output_item.done",
    ),
}


@pytest.mark.parametrize(("tool", "arguments", "fields", "events"), CLIENT_RUN.values(), ids=CLIENT_RUN)
def test_client_tool_of_a_known_type_comes_back_as_its_own_item(
    tool: Any, arguments: str, fields: Any, events: str
) -> None:
    chat = ask(tools=[tool], hosted=NO_HOSTED_TOOLS)
    assert chat.warnings == ()
    (name,) = chat.bindings
    made = answer(whole(call(0, "c", name, arguments), reason="tool_calls"), bindings=chat.bindings)
    (item,) = output(made)
    assert {name: item[name] for name in fields} == fields
    assert (item["call_id"], item["status"]) == ("c", "completed")
    assert story(made[2:-1]) == events
    again = ask(item, tools=[tool], hosted=NO_HOSTED_TOOLS).body["messages"][1]["tool_calls"][0]["function"]
    assert (again["name"], json.loads(again["arguments"])) == (name, {**json.loads(arguments)})


@pytest.mark.parametrize("written", ["", "{", '{"commands": "ls"}', '{"commands": 3}', "[]", '"ls"'])
def test_client_tool_call_that_is_cut_or_odd_has_the_form_of_its_type(written: str) -> None:
    chat = ask(tools=[{"type": "shell"}], hosted=NO_HOSTED_TOOLS)
    (item,) = output(answer(whole(call(0, "c", "shell", written), reason="length"), bindings=chat.bindings))
    assert isinstance(item["action"]["commands"], list)


def test_screenshot_is_sent_as_an_image() -> None:
    made = {"type": "computer_call", "id": "cu_1", "call_id": "c", "action": {"type": "screenshot"}}
    shot = {"type": "computer_screenshot", "image_url": "data:image/png;base64,AA=="}
    chat = ask(
        made,
        {"type": "computer_call_output", "call_id": "c", "output": shot},
        tools=[{"type": "computer"}],
        hosted=NO_HOSTED_TOOLS,
    )
    assert {"type": "image_url", "image_url": {"url": shot["image_url"]}} in chat.body["messages"][-1]["content"]


@pytest.mark.parametrize("declared", ["computer", "computer_use_preview"])
@pytest.mark.parametrize("chosen", ["computer", "computer_use_preview", "computer_use"])
def test_tool_choice_of_either_computer_type_chooses_the_computer(declared: str, chosen: str) -> None:
    options: Any = {"tools": [{"type": declared}, {"type": "apply_patch"}], "hosted": NO_HOSTED_TOOLS}
    one = ask(tool_choice={"type": chosen}, **options)
    assert one.body["tool_choice"] == {"type": "function", "function": {"name": "computer"}}
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": chosen}]}
    assert ask(tool_choice=allowed, **options).allowed == {"computer"}


def test_screenshot_in_a_message_is_sent_as_an_image() -> None:
    shot = {"type": "computer_screenshot", "image_url": "data:image/png;base64,AA==", "detail": "original"}
    chat = ask(user([shot, {"type": "input_text", "text": "What is this?"}]), hosted=NO_HOSTED_TOOLS, tools=[])
    image = {"type": "image_url", "image_url": {"url": shot["image_url"], "detail": "high"}}
    assert chat.body["messages"][-1]["content"] == [image, {"type": "text", "text": "What is this?"}]
    assert chat.warnings == ()


def test_program_of_another_server_is_a_call_with_its_result() -> None:
    called = {"type": "function_call", "call_id": "f", "name": "add", "arguments": "{}"}
    chat = ask(
        {"type": "program", "id": "p", "call_id": "c", "code": "add()", "fingerprint": "x"},
        {**called, "caller": {"type": "program", "caller_id": "c"}},
        {"type": "function_call_output", "call_id": "f", "output": "3"},
        {"type": "program_output", "id": "o", "call_id": "c", "result": "It is 3.", "status": "completed"},
        hosted=NO_HOSTED_TOOLS,
        tools=[],
    )
    assert shape(chat) == ["user", ("assistant", 2), "tool", "tool"]
    calls = [call["function"] for call in chat.body["messages"][1]["tool_calls"]]
    assert [call["name"] for call in calls] == ["programmatic_tool_calling", "add"]
    assert json.loads(calls[0]["arguments"]) == {"code": "add()"}
    assert [message["content"] for message in chat.body["messages"][2:]] == ["It is 3.", "3"]
    assert chat.warnings == ("The parameter 'input[].caller' is not supported by this backend and was ignored.",)


def test_multi_agent_call_is_a_call_with_its_result() -> None:
    chat = ask(
        {"type": "multi_agent_call", "call_id": "c", "action": "spawn_agent", "arguments": '{"task": "Look."}'},
        {
            "type": "multi_agent_call_output",
            "call_id": "c",
            "action": "spawn_agent",
            "output": [{"type": "output_text", "text": "Found."}, {"type": "output_text", "text": "Done."}, "odd"],
        },
        hosted=NO_HOSTED_TOOLS,
        tools=[],
    )
    assert shape(chat) == ["user", ("assistant", 1), "tool"]
    function = chat.body["messages"][1]["tool_calls"][0]["function"]
    assert (function["name"], json.loads(function["arguments"])) == ("spawn_agent", {"task": "Look."})
    assert chat.body["messages"][2]["content"] == "Found.\nDone."
    assert chat.warnings == ()


def test_shell_in_a_container_is_not_the_clients() -> None:
    chat = ask(tools=[{"type": "shell", "environment": {"type": "container_auto"}}], hosted=NO_HOSTED_TOOLS)
    assert "tools" not in chat.body
    [warning] = chat.warnings
    assert "[tools.code_interpreter]" in warning
