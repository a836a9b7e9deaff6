"""Translation from Anthropic Messages requests to Responses requests."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from app.api.client_apis import ClientRequest
from app.api.client_apis.messages.hosted import named_types
from app.api.client_apis.messages.reader import read_messages
from app.core.types.request import CreateResponse
from app.errors import InvalidRequest

HELLO = [{"role": "user", "content": "Hello!"}]
OURS = "antiphon1.abc"
PNG = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
IMAGE = {"type": "image", "source": PNG}
PART = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
TOOL = {"name": "weather", "input_schema": {"type": "object", "properties": {}}}


def read(**fields: Any) -> ClientRequest:
    """Read a body, and check that its fields are valid for a response."""
    request = read_messages({"model": "m", "max_tokens": 100, "messages": HELLO, **fields}, {})
    body = {name: value for name, value in request.fields.items() if name != "max_output_tokens"}
    CreateResponse.model_validate({**body, "store": False})
    return request


def items(*messages: Any, **fields: Any) -> Any:
    return read(messages=list(messages), **fields).fields["input"]


def by_user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def by_assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def text(value: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **fields}


def call(id: str = "toolu_1", name: str = "weather", **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": arguments}


def result(content: Any = "Sunny.", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "toolu_1", "content": content, **fields}


def output(value: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": "toolu_1", "output": value}


def spoken(role: str, *texts: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": each} for each in texts]}


def test_request_with_every_option_has_all_of_them() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    request = read(
        system="Be brief.",
        stop_sequences=["END"],
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        stream=True,
        service_tier="standard_only",
        metadata={"user_id": "user-1"},
        output_config={"effort": "xhigh", "format": {"type": "json_schema", "schema": schema}},
    )
    assert request.warnings == []
    assert request.fields == {
        "model": "m",
        "instructions": "Be brief.",
        "input": [{"type": "message", "role": "user", "content": "Hello!"}],
        "max_output_tokens": 100,
        "stop": ["END"],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "stream": True,
        "service_tier": "default",
        "safety_identifier": "user-1",
        "prompt_cache_key": hashlib.sha256(b"user-1").hexdigest(),
        "reasoning": {"effort": "xhigh"},
        "text": {"format": {"type": "json_schema", "name": "response", "schema": schema, "strict": True}},
        "include": ["reasoning.encrypted_content", "web_search_call.results", "code_interpreter_call.outputs"],
    }


def test_null_fields_are_absent() -> None:
    nothing = dict.fromkeys(("system", "tools", "tool_choice", "thinking", "metadata", "thread", "stop_sequences"))
    assert read(**nothing).fields == read().fields


# The conversation.


def test_conversation_with_calls_becomes_items_in_order() -> None:
    assert items(
        by_user(text("Where?"), IMAGE),
        by_assistant(text("I look."), call(place="Paris"), call("toolu_2", place="Oslo")),
        by_user(result(), {**result("Rain."), "tool_use_id": "toolu_2"}, text("And?")),
        {"role": "system", "content": "Be brief."},
    ) == [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Where?"}, PART]},
        spoken("assistant", "I look."),
        {"type": "function_call", "call_id": "toolu_1", "name": "weather", "arguments": '{"place": "Paris"}'},
        {"type": "function_call", "call_id": "toolu_2", "name": "weather", "arguments": '{"place": "Oslo"}'},
        output("Sunny."),
        {"type": "function_call_output", "call_id": "toolu_2", "output": "Rain."},
        spoken("user", "And?"),
        {"type": "message", "role": "system", "content": "Be brief."},
    ]


@pytest.mark.parametrize(
    ("block", "part"),
    [
        (IMAGE, PART),
        (
            {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}},
            {"type": "input_image", "image_url": "https://x/y.png"},
        ),
        (
            {"type": "image", "source": {"type": "file", "file_id": "file_1"}},
            {"type": "input_image", "file_id": "file_1"},
        ),
        (
            {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AA"}},
            {"type": "input_file", "filename": "document.pdf", "file_data": "data:application/pdf;base64,AA"},
        ),
        (
            {"type": "document", "title": "A.pdf", "source": {"type": "url", "url": "https://x/a.pdf"}},
            {"type": "input_file", "filename": "A.pdf", "file_url": "https://x/a.pdf"},
        ),
        (
            {"type": "document", "source": {"type": "file", "file_id": "file_1"}},
            {"type": "input_file", "file_id": "file_1"},
        ),
        (
            {
                "type": "document",
                "title": "Rules",
                "context": "Of 2026.",
                "source": {"type": "text", "media_type": "text/plain", "data": "No."},
            },
            {"type": "input_text", "text": "Document: Rules\nOf 2026.\n\nNo."},
        ),
        (
            {"type": "search_result", "source": "https://x", "title": "X", "content": [text("Found.")]},
            {"type": "input_text", "text": "[X](https://x)\n\nFound."},
        ),
        (
            {"type": "tool_reference", "tool_name": "mcp__lab__add"},
            {"type": "input_text", "text": "The tool mcp__lab__add can be called."},
        ),
    ],
)
def test_block_becomes_a_part_of_messages_and_of_results(block: Any, part: Any) -> None:
    assert items(by_user(block)) == [{"type": "message", "role": "user", "content": [part]}]
    assert items(by_user(result([block]))) == [output([part])]


def test_document_of_blocks_keeps_its_images() -> None:
    source = {"type": "content", "content": [text("See:"), IMAGE]}
    (item,) = items(by_user({"type": "document", "title": "Rules", "source": source}))
    assert item["content"] == [{"type": "input_text", "text": "Document: Rules\n\nSee:"}, PART]


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (result(None), ""),
        (result([]), ""),
        (result("No file.", is_error=True), "Error: No file."),
        (result("Error: no file.", is_error=True), "Error: no file."),
        (result("<tool_use_error>No.</tool_use_error>", is_error=True), "<tool_use_error>No.</tool_use_error>"),
        (result("", is_error=True), "Error: the call failed."),
        (
            result([IMAGE, text("Oh.")], is_error=True),
            [PART, {"type": "input_text", "text": "Error: Oh."}],
        ),
        (result([IMAGE], is_error=True), [{"type": "input_text", "text": "Error: the call failed."}, PART]),
    ],
)
def test_result_of_a_failed_call_says_so(block: Any, expected: Any) -> None:
    assert items(by_user(block)) == [output(expected)]


def test_system_blocks_lead_the_conversation_with_their_breakpoints() -> None:
    request = read(system=[text("Be brief.", cache_control={"type": "ephemeral"}), text("Always.")])
    part = {"type": "input_text", "text": "Be brief.", "prompt_cache_breakpoint": {"mode": "explicit"}}
    assert request.fields["input"][0] == {
        "type": "message",
        "role": "system",
        "content": [part, {"type": "input_text", "text": "Always."}],
    }
    assert "instructions" not in request.fields
    assert request.client_paths["input[0].content[1]"] == "system[1]"


BILLING = "x-anthropic-billing-header: cc_version=2.1.330; cch=00000;"


@pytest.mark.parametrize("system", [f"{BILLING}\nBe brief.", [text(BILLING), text("Be brief.")]])
def test_billing_line_of_claude_code_is_removed(system: Any) -> None:
    fields = read(system=system).fields
    assert "x-anthropic" not in str(fields) and "Be brief." in str(fields)


def test_breakpoints_are_kept_in_messages_and_results() -> None:
    hour, minutes = {"type": "ephemeral", "ttl": "1h"}, {"type": "ephemeral", "ttl": "5m"}
    message, returned = items(by_user(text("Hi", cache_control=minutes)), by_user(result("Sunny.", cache_control=hour)))
    assert message["content"][0]["prompt_cache_breakpoint"] == {"mode": "explicit"}
    assert returned["output"][0]["prompt_cache_breakpoint"] == {"mode": "explicit", "ttl": "12h"}


def test_summary_of_a_compaction_is_kept() -> None:
    (item,) = items(by_user({"type": "compaction", "content": "They greeted."}))
    assert item["content"].endswith("\n\nThey greeted.")


def test_unknown_blocks_are_left_out_with_a_warning() -> None:
    request = read(messages=[by_user({"type": "hologram"}, text("Hi"))])
    assert request.fields["input"] == [spoken("user", "Hi")]
    assert request.warnings == ["Content of unknown type 'hologram' was ignored."]


# Thinking.


def test_signature_of_this_server_becomes_encrypted_reasoning() -> None:
    first, second, _ = items(
        by_assistant(
            {"type": "thinking", "thinking": "Hm.", "signature": OURS},
            {"type": "redacted_thinking", "data": OURS},
            text("Hi"),
        ),
    )
    assert (first["content"], first["encrypted_content"]) == ([{"type": "reasoning_text", "text": "Hm."}], OURS)
    assert second["encrypted_content"] == OURS and "content" not in second


def test_foreign_signatures_are_dropped_with_a_warning() -> None:
    request = read(
        messages=[
            by_assistant(
                {"type": "thinking", "thinking": "Hm.", "signature": "EqQBCkYIARgCKkAv"},
                {"type": "thinking", "thinking": "", "signature": "EqQBCkYIARgCKkAv"},
                {"type": "redacted_thinking", "data": "EmwKAhgBEgy"},
            ),
            *HELLO,
        ]
    )
    reasoning, _ = request.fields["input"]
    assert reasoning == {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
    assert request.warnings == ["A thinking block's signature that this server did not create was dropped."]


@pytest.mark.parametrize(
    ("fields", "reasoning", "shown"),
    [
        ({}, None, True),
        ({"thinking": {"type": "disabled"}}, {"effort": "none"}, False),
        ({"thinking": {"type": "adaptive"}}, {"summary": "auto"}, True),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, {"summary": "auto"}, False),
        (
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}},
            {"effort": "max", "summary": "auto"},
            True,
        ),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"effort": "low", "summary": "auto"}, True),
        ({"thinking": {"type": "enabled", "budget_tokens": 8000}}, {"effort": "medium", "summary": "auto"}, True),
        ({"thinking": {"type": "enabled", "budget_tokens": 31999}}, {"effort": "high", "summary": "auto"}, True),
    ],
)
def test_thinking_becomes_an_effort(fields: Any, reasoning: Any, shown: bool) -> None:
    request = read(**fields)
    assert request.fields.get("reasoning") == reasoning
    writer: Any = request.writer
    assert writer.keywords["shows_thinking"] == shown


# Tools.


def test_custom_tools_are_functions() -> None:
    tool = {**TOOL, "description": "The weather.", "strict": True, "cache_control": {"type": "ephemeral"}}
    assert read(tools=[tool]).fields["tools"] == [
        {
            "type": "function",
            "name": "weather",
            "description": "The weather.",
            "parameters": TOOL["input_schema"],
            "strict": True,
        }
    ]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "weather"}, {"type": "function", "name": "weather"}),
        ({"type": "tool", "name": "web_search"}, {"type": "web_search"}),
    ],
)
def test_tool_choice_is_translated(choice: Any, expected: Any) -> None:
    tools = [TOOL, {"type": "web_search_20260318", "name": "web_search"}]
    fields = read(tools=tools, tool_choice={**choice, "disable_parallel_tool_use": True}).fields
    assert (fields["tool_choice"], fields["parallel_tool_calls"]) == (expected, False)


def test_long_tool_names_are_cut_everywhere() -> None:
    name = "mcp__" + "x" * 100
    request = read(
        tools=[{**TOOL, "name": name}],
        tool_choice={"type": "tool", "name": name},
        messages=[*HELLO, by_assistant(call(name=name)), by_user(result())],
    )
    short = request.fields["tools"][0]["name"]
    assert len(short) == 64
    assert request.fields["tool_choice"]["name"] == request.fields["input"][1]["name"] == short
    writer: Any = request.writer
    assert writer.keywords["names"] == {short: name}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("bash_20250124", "bash"),
        ("text_editor_20250728", "str_replace_based_edit_tool"),
        ("memory_20250818", "memory"),
        ("computer_20251124", "computer"),
    ],
)
def test_tools_that_the_client_runs_are_functions(kind: str, name: str) -> None:
    (tool,) = read(tools=[{"type": kind, "name": name}]).fields["tools"]
    assert (tool["type"], tool["name"]) == ("function", name)
    assert tool["parameters"]["properties"]


def test_server_tools_are_hosted_tools() -> None:
    tools = [
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 2, "allowed_domains": ["python.org"]},
        {"type": "web_fetch_20250910", "name": "web_fetch", "max_uses": 3},
        {"type": "code_execution_20250825", "name": "code_execution", "max_uses": 1},
    ]
    request = read(tools=tools)
    assert request.fields["tools"] == [
        {"type": "web_search", "filters": {"allowed_domains": ["python.org"]}},
        {"type": "code_interpreter", "container": {"type": "auto"}},
    ]
    assert request.fields["max_tool_calls"] == 6
    assert request.client_paths["tools[1]"] == "tools[2]"
    assert named_types({"tools": tools}) == {"web_search", "code_interpreter"}


def test_mcp_servers_are_hosted_tools() -> None:
    server = {"type": "url", "name": "lab", "url": "https://lab.example.com/mcp", "authorization_token": "secret"}
    toolset = {
        "type": "mcp_toolset",
        "mcp_server_name": "lab",
        "default_config": {"enabled": False},
        "configs": {"add": {"enabled": True}, "drop": {"enabled": False}},
    }
    declared = {
        "type": "mcp",
        "server_label": "lab",
        "server_url": "https://lab.example.com/mcp",
        "authorization": "secret",
        "require_approval": "never",
    }
    assert read(mcp_servers=[server]).fields["tools"] == [declared]
    assert read(mcp_servers=[server], tools=[toolset]).fields["tools"] == [{**declared, "allowed_tools": ["add"]}]
    chosen = {**server, "tool_configuration": {"enabled": True, "allowed_tools": ["add"]}}
    assert read(mcp_servers=[chosen]).fields["tools"] == [{**declared, "allowed_tools": ["add"]}]
    assert "tools" not in read(mcp_servers=[{**server, "tool_configuration": {"enabled": False}}]).fields
    assert named_types({"mcp_servers": [server]}) == {"mcp"}


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"},
        {"type": "advisor_20260301", "name": "advisor"},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 1},
    ],
)
def test_tools_without_a_counterpart_are_named_in_a_warning(tool: Any) -> None:
    other = {"type": "code_execution_20250825", "name": "code_execution"}
    assert len(read(tools=[tool, other]).warnings) == 1


def test_hosted_calls_of_earlier_turns_become_their_items() -> None:
    shown = items(
        *HELLO,
        by_assistant(
            {"type": "server_tool_use", "id": "ws_1", "name": "web_search", "input": {"query": "x"}},
            {"type": "web_search_tool_result", "tool_use_id": "ws_1", "content": []},
            {"type": "server_tool_use", "id": "ws_2", "name": "web_fetch", "input": {"url": "https://x"}},
            {
                "type": "web_fetch_tool_result",
                "tool_use_id": "ws_2",
                "content": {"type": "web_fetch_tool_result_error", "error_code": "unavailable"},
            },
            {"type": "server_tool_use", "id": "ci_1", "name": "code_execution", "input": {"code": "1"}},
            {
                "type": "code_execution_tool_result",
                "tool_use_id": "ci_1",
                "content": {"type": "code_execution_result", "stdout": "1\n", "stderr": "", "return_code": 0},
            },
            {"type": "mcp_tool_use", "id": "mcp_1", "name": "add", "server_name": "lab", "input": {"a": 1}},
            {"type": "mcp_tool_result", "tool_use_id": "mcp_1", "is_error": False, "content": [text("2")]},
            text("Done."),
        ),
    )
    assert shown[1:-1] == [
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}},
        {
            "type": "web_search_call",
            "id": "ws_2",
            "status": "failed",
            "action": {"type": "open_page", "url": "https://x"},
        },
        {
            "type": "code_interpreter_call",
            "id": "ci_1",
            "status": "completed",
            "code": "1",
            "container_id": "",
            "outputs": [{"type": "logs", "logs": "1\n"}],
        },
        {
            "type": "mcp_call",
            "id": "mcp_1",
            "status": "completed",
            "server_label": "lab",
            "name": "add",
            "arguments": '{"a": 1}',
            "output": "2",
        },
    ]


# Dropped and refused fields.


def test_unknown_fields_are_named_or_passed_on() -> None:
    request = read(input="Hi", background=True, context_management={"edits": []}, min_p=0.1, diagnostics={})
    assert request.fields["min_p"] == 0.1  # the encoders send it or name it
    assert request.fields["input"] == [{"type": "message", "role": "user", "content": "Hello!"}]
    assert {"background", "context_management", "diagnostics"}.isdisjoint(request.fields)
    named = [
        name for name in ("input", "background", "context_management") if f"'{name}'" in " ".join(request.warnings)
    ]
    assert len(named) == len(request.warnings) == 3


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"output_config": {"task_budget": {"type": "tokens"}}}, "output_config.task_budget"),
        ({"thinking": {"type": "adaptive", "depth": 2}}, "thinking.depth"),
        ({"tools": [{**TOOL, "input_examples": [{}], "defer_loading": True}]}, "tools[].input_examples"),
        ({"messages": [by_user(text("Hi", citations={"enabled": True}))]}, "citations"),
    ],
)
def test_unknown_nested_field_is_named(fields: Any, named: str) -> None:
    (warning,) = read(**fields).warnings
    assert f"'{named}'" in warning


@pytest.mark.parametrize("user", ["x" * 129, "a\0b"])
def test_user_id_that_is_not_an_identifier_is_hashed(user: str) -> None:
    assert read(metadata={"user_id": user}).fields["safety_identifier"] == hashlib.sha256(user.encode()).hexdigest()


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        ({"type": "object", "properties": {"a": {}}, "required": ["a"]}, True),
        ({"type": "object", "properties": {"a": {}}}, False),
        ({"type": "array", "items": {"type": "object", "properties": {"a": {}}, "required": []}}, False),
    ],
)
def test_schema_with_optional_properties_is_not_strict(schema: Any, strict: bool) -> None:
    fields = read(output_format={"type": "json_schema", "schema": schema}).fields
    assert fields["text"]["format"]["strict"] is strict


def user(*blocks: Any) -> dict[str, Any]:
    return {"messages": [by_user(*blocks)]}


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"messages": None}, "messages", "missing_required_parameter"),
        ({"messages": []}, "messages", "array_below_min_length"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "invalid_value"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
        (user(7), "messages[0].content[0]", "invalid_type"),
        (user(text("x"), {"type": "image"}), "messages[0].content[1].source", "missing_required_parameter"),
        (user({"type": "image", "source": {"type": "x"}}), "messages[0].content[0].source", "invalid_value"),
        (user({"type": "tool_result"}), "messages[0].content[0].tool_use_id", "missing_required_parameter"),
        (user({**call(), "input": "{}"}), "messages[0].content[0].input", "invalid_type"),
        ({"max_tokens": 0}, "max_tokens", "integer_below_min_value"),
        ({"system": [IMAGE]}, "system[0].type", "invalid_value"),
        ({"tools": [{**TOOL, "name": "a b"}]}, "tools[0].name", "invalid_value"),
        ({"tools": [{"name": "a"}]}, "tools[0].input_schema", "missing_required_parameter"),
        ({"tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name", "invalid_value"),
        ({"stop_sequences": "END"}, "stop_sequences", "invalid_type"),
        ({"thread": {"type": "create"}}, "thread", "thread_unsupported_request"),
        ({"thread": {"type": "continue", "previous_message_id": "msg_1"}}, "thread", "thread_unsupported_request"),
        ({"compaction": {"type": "summary"}}, "compaction", "unsupported_parameter"),
    ],
)
def test_invalid_request_names_the_field(fields: Any, param: str, code: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(**fields)
    assert (refused.value.param, refused.value.code) == (param, code)
    missing = f"Missing required parameter: '{param}'."
    assert refused.value.message == missing or refused.value.message.startswith(f"Invalid '{param}': ")
