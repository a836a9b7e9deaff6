"""Tools as functions, and tool_choice in the backend's form, without losing the constraint."""

from __future__ import annotations

from typing import Any

import pytest

from app.backends.apis import encode
from app.core.items import FUNCTION_CALL
from app.core.profile import Profile
from app.core.request import to_chat
from app.core.request.model_request import EncodedRequest, ModelRequest
from app.core.request.tool_types import stripped
from app.core.stream.event_types import ToolBinding
from app.core.types.hosted import HOSTED_TABLES
from app.core.types.request import CreateResponse
from app.errors import InvalidRequest
from app.loading import import_object
from app.tools import TOOLS

NO_PARAMETERS = {"type": "object", "properties": {}}


def ask(tools: list[Any], options: dict[str, Any] | None = None, **request: Any) -> EncodedRequest:
    """Translate a request with these tools; `options` are the backend's `request.*`."""
    profile = Profile().override({f"request.{name}": value for name, value in (options or {}).items()})
    parsed_request = CreateResponse.model_validate({"model": "m", "input": "Hi", "tools": tools, **request})
    return to_chat(ModelRequest(parsed_request, parsed_request.items(), "m"), profile)


def function(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, **fields}


def sent(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": NO_PARAMETERS, **fields}}


def names(chat: EncodedRequest) -> list[str]:
    return [tool["function"]["name"] for tool in chat.body.get("tools", [])]


A, B, C = function("a"), function("b"), function("c")


# Tools.


@pytest.mark.parametrize("tools", [[], None])
def test_request_without_tools_has_no_field_about_tools(tools: Any) -> None:
    chat = ask(tools, tool_choice="none", parallel_tool_calls=True)
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & set(chat.body)
    assert (chat.bindings, chat.allowed) == ({}, frozenset())


@pytest.mark.parametrize(
    "tool, nested",
    [
        (function("a"), sent("a")),
        (function("a", description=None, parameters=None, strict=None), sent("a")),
        (function("a", description="Look.", strict=False), sent("a", description="Look.", strict=False)),
        (function("a", parameters={}), sent("a")),
        (function("a", parameters={"type": "object"}), sent("a")),
        (function("a", parameters={"type": None, "properties": None}), sent("a")),
        (function("a", defer_loading=True, output_schema=None), sent("a")),
    ],
)
def test_functions_are_sent_without_nulls_and_with_parameters(tool: Any, nested: Any) -> None:
    chat = ask([tool])
    assert chat.body["tools"] == [nested]
    assert (chat.bindings, chat.allowed) == ({"a": ToolBinding(FUNCTION_CALL, {"name": "a"})}, None)
    assert "tool_choice" not in chat.body and "parallel_tool_calls" not in chat.body


TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
ONE = {"type": "object", "properties": {"a": TEXT, "b": TEXT}, "required": ["a", "b"]}
OTHER = {"type": "object", "properties": {"a": TEXT, "b": NUMBER, "c": TEXT}, "required": ["a"]}
EITHER = {"a": TEXT, "b": {"anyOf": [TEXT, NUMBER]}, "c": TEXT}
DEFINED = {"one": ONE, "other": {"$ref": "#/$defs/otherwise"}, "otherwise": OTHER, "loop": {"$ref": "#/$defs/loop"}}


@pytest.mark.parametrize(
    "schema, properties, required",
    [
        ({"properties": {"a": TEXT}}, {"a": TEXT}, None),
        ({"type": None, "properties": {"a": TEXT}, "required": ["a"]}, {"a": TEXT}, ["a"]),
        ({"type": ["object", "null"], "properties": {"a": TEXT}}, {"a": TEXT}, None),
        ({"anyOf": [ONE, OTHER]}, EITHER, ["a"]),
        ({"oneOf": [ONE, {"type": "null"}]}, ONE["properties"], ["a", "b"]),
        ({"type": "object", "anyOf": [ONE, OTHER, 3, None]}, EITHER, ["a"]),
        ({"allOf": [ONE, {"properties": {"c": TEXT}}], "required": ["c"]}, {**EITHER, "b": TEXT}, ["c", "a", "b"]),
        ({"type": "object", "properties": {"b": TEXT}, "anyOf": [OTHER]}, {**EITHER, "b": TEXT}, ["a"]),
        ({"properties": {"a": TEXT}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"a": TEXT}, None),
        ({"anyOf": [{"anyOf": [ONE]}, OTHER]}, EITHER, ["a"]),
        ({"anyOf": [{"$ref": "#/$defs/one"}, {"$ref": "#/$defs/other"}], "$defs": DEFINED}, EITHER, ["a"]),
        ({"$ref": "#/$defs/one", "$defs": DEFINED}, ONE["properties"], ["a", "b"]),
        ({"$ref": "#/$defs/loop", "$defs": DEFINED}, {}, None),
    ],
)
@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
def test_parameters_of_any_form_are_an_object_without_alternatives(
    api: str, schema: dict[str, Any], properties: Any, required: Any
) -> None:
    profile = Profile().override({"transport.api": api})
    request = {"model": "m", "input": "Hi", "tools": [function("a", parameters=schema)]}
    parsed_request = CreateResponse.model_validate(request)
    (tool,) = encode(ModelRequest(parsed_request, parsed_request.items(), "m"), profile).body["tools"]
    (sent_schema,) = (tool[name] for name in ("function", "parameters", "input_schema") if name in tool)
    sent_schema = sent_schema.get("parameters", sent_schema)
    assert (sent_schema["type"], sent_schema["properties"], sent_schema.get("required")) == (
        "object",
        properties,
        required,
    )
    assert not {"$ref", "anyOf", "oneOf", "allOf"} & set(sent_schema)


def test_references_that_cannot_be_resolved_are_kept() -> None:
    (tool,) = ask([function("a", parameters={"$ref": "#/$defs/x"})]).body["tools"]
    assert tool["function"]["parameters"] == {"$ref": "#/$defs/x", "type": "object", "properties": {}}


def test_definitions_that_refer_to_one_another_are_read_once() -> None:
    definitions = {f"{n}": {"anyOf": [{"$ref": f"#/$defs/{n + 1}"}] * 1000} for n in range(100)}
    (tool,) = ask([function("a", parameters={"$ref": "#/$defs/0", "$defs": definitions})]).body["tools"]
    assert tool["function"]["parameters"]["properties"] == {}


@pytest.mark.parametrize("option, strict", [("send", [True, False, None]), ("drop", [None] * 3), ("force", [True] * 3)])
def test_strict_is_sent_as_the_backend_takes_it(option: str, strict: list[Any]) -> None:
    tools = [function("a", strict=True), function("b", strict=False), function("c")]
    assert [tool["function"].get("strict") for tool in ask(tools, {"strict": option}).body["tools"]] == strict


PAIR = {"type": "object", "properties": {"a": TEXT, "b": TEXT}, "required": ["a"]}


@pytest.mark.parametrize("schema", [PAIR, {**PAIR, "required": None}])
def test_strict_function_with_an_optional_property_is_refused_as_by_openai(schema: dict[str, Any]) -> None:
    space = {"type": "namespace", "name": "ns", "tools": [function("look", parameters=schema, strict=True)]}
    with pytest.raises(InvalidRequest) as refused:
        ask([A, space])
    assert (refused.value.param, refused.value.code) == ("tools[1].tools[0].parameters", "invalid_function_parameters")
    assert refused.value.message.startswith("Invalid schema for function 'look': In context=(), 'required' is required")


@pytest.mark.parametrize("strict", [False, None])
def test_optional_properties_are_accepted_in_other_functions(strict: bool | None) -> None:
    assert names(ask([function("look", parameters=PAIR, strict=strict)])) == ["look"]
    assert names(ask([function("look", parameters={**PAIR, "required": ["b", "a"]}, strict=True)])) == ["look"]


def test_schema_keywords_are_stripped_but_not_names_and_data() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "title": {"type": "string", "title": "Title"},
            "tags": {"type": "array", "items": [{"title": "Tag", "enum": [{"title": "x"}]}]},
        },
        "$defs": {"title": {"title": "T", "anyOf": [{"title": "U"}, True]}},
    }
    assert stripped(schema, frozenset({"title", "$schema"})) == {
        "type": "object",
        "properties": {"title": {"type": "string"}, "tags": {"type": "array", "items": [{"enum": [{"title": "x"}]}]}},
        "$defs": {"title": {"anyOf": [{}, True]}},
    }


def test_schemas_of_the_caller_are_unchanged() -> None:
    parameters = {"type": "object", "properties": {}, "$schema": "x"}
    assert ask([function("a", parameters=parameters)], {"schema_drop": ["$schema"]}).body["tools"] == [sent("a")]
    assert "$schema" in parameters


DAY = {"type": "object", "properties": {"day": {"type": "string", "pattern": "^x$"}}, "required": ["day"]}


def test_dropped_schema_keyword_is_named_in_a_warning() -> None:
    chat = ask([function("a", parameters=DAY)], {"schema_drop": ["pattern", "format"]})
    assert chat.body["tools"] == [sent("a", parameters={**DAY, "properties": {"day": {"type": "string"}}})]
    assert chat.warnings == ("This backend rejects the keyword 'pattern' in tool schemas; it was removed.",)


def test_dropped_schema_keyword_stays_in_strict_tools() -> None:
    chat = ask([function("a", parameters=DAY, strict=True)], {"schema_drop": ["pattern"]})
    assert chat.body["tools"] == [sent("a", parameters=DAY, strict=True)]
    assert chat.warnings == ()


def test_dropped_schema_keyword_stays_in_the_text_format() -> None:
    text = {"format": {"type": "json_schema", "name": "x", "schema": DAY, "strict": True}}
    chat = ask([function("a", parameters=DAY)], {"schema_drop": ["pattern"]}, text=text)
    assert chat.body["response_format"]["json_schema"]["schema"] == DAY


def test_moonshot_schema_keeps_its_meaning() -> None:
    properties = {
        "type": {
            "type": "object",
            "anyOf": [{"required": ["a"]}, {"type": "object", "title": "x"}, {"$ref": "#/$defs/b"}],
        },
        "pair": {"type": "array", "items": [{"type": "string"}, {"type": "integer"}]},
        "who": {"$ref": "#/$defs/b", "description": "Somebody."},
        "plain": {"type": ["string", "null"], "description": "As it was.", "default": {"anyOf": [1], "type": 2}},
    }
    parameters = {"type": "object", "properties": properties, "$defs": {"b": {"type": "object"}}}
    chat = ask([function("a", parameters=parameters)], {"schema_form": "mfjs"})
    changed = {
        "type": {
            "anyOf": [{"type": "object", "required": ["a"]}, {"type": "object", "title": "x"}, {"$ref": "#/$defs/b"}]
        },
        "pair": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}]},
        "who": {"$ref": "#/$defs/b"},
        "plain": properties["plain"],
    }
    assert chat.body["tools"] == [sent("a", parameters={**parameters, "properties": changed})]
    assert chat.warnings == ()


def test_tools_that_cannot_be_offered_are_left_out_with_a_warning() -> None:
    chat = ask([A, {"type": "web_search"}, {"type": "shell", "environment": {"type": "container_auto"}}, {"type": "x"}])
    assert names(chat) == ["a"]
    assert chat.warnings == (
        "Tools of type 'web_search' require a table [tools.web_search] in this server's settings; left out.",
        "Tools of type 'shell' require a table [tools.code_interpreter] in this server's settings; left out.",
        "Tools of type 'x' are not supported; left out.",
    )


def test_hosted_tools_declared_several_times_are_one_warning() -> None:
    chat = ask([A, SEARCH, SEARCH, {"type": "web_search_preview"}])
    assert [warning.split()[3] for warning in chat.warnings] == ["'web_search'", "'web_search_preview'"]


def test_hosted_tools_in_items_are_left_out_with_their_place() -> None:
    items = [{"type": "additional_tools", "tools": [SEARCH]}, {"type": "message", "role": "user", "content": "Hi"}]
    assert ask([A], input=items).warnings == ("Tools of type 'web_search' must be in the request's 'tools'; left out.",)


def test_hosted_tools_of_every_type_name_their_table() -> None:
    for name, path in TOOLS.items():
        if name != "demo":  # supports the others' types, for demonstration
            for type in import_object(path).types:
                assert HOSTED_TABLES[type] == f"tools.{name}"


def test_tools_of_which_none_can_be_offered_are_not_sent() -> None:
    chat = ask([{"type": "web_search"}], tool_choice="auto", parallel_tool_calls=False)
    assert set(chat.body) == {"model", "messages", "stream", "stream_options"}
    assert chat.allowed is None


@pytest.mark.parametrize(
    "tools, param",
    [
        ([A, B, A], "tools[2].name"),
        ([{"type": "namespace", "name": "n", "tools": [A, A]}], "tools[0].tools[1].name"),
    ],
)
def test_tools_of_one_name_are_refused(tools: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ask(tools)
    assert caught.value.param == param


# Namespaces.


def test_namespace_tools_are_distinguished_both_ways() -> None:
    chat = ask([A, {"type": "namespace", "name": "mcp__lab", "description": "x", "tools": [A, B]}])
    assert names(chat) == ["a", "mcp__lab__a", "mcp__lab__b"]
    assert chat.bindings["a"].fields == {"name": "a"}
    assert chat.bindings["mcp__lab__a"] == ToolBinding(FUNCTION_CALL, {"name": "a", "namespace": "mcp__lab"})


def test_flat_names_are_unique_and_short_enough() -> None:
    long = function("x" * 60)
    tools = [
        {"type": "namespace", "name": "n", "tools": [A, long]},
        {"type": "namespace", "name": "n.", "tools": [A, long]},
        {"type": "namespace", "name": "n_", "tools": [A]},
        function("n__a"),
    ]
    known = names(ask(tools))
    assert len(set(known)) == 6 and known[0] == "n__a"
    assert all(len(name) <= 64 and name.replace("_", "").isalnum() for name in known)
    assert known == names(ask(tools))


@pytest.mark.parametrize("tools", [None, "x", [], [None, 3, {"type": "custom"}, {"type": "function", "name": "é"}]])
def test_namespace_that_is_invalid_has_no_tools(tools: Any) -> None:
    assert names(ask([A, {"type": "namespace", "name": "n", "tools": tools}])) == ["a"]


def test_tool_choice_of_a_tool_in_a_namespace_is_sent() -> None:
    tools = [A, {"type": "namespace", "name": "n", "tools": [A]}]
    chat = ask(tools, tool_choice={"type": "function", "name": "a", "namespace": "n"})
    assert chat.body["tool_choice"] == {"type": "function", "function": {"name": "n__a"}}
    assert chat.allowed == {"n__a"}


# The history's.


HISTORY = [
    {"role": "user", "content": "Hi"},
    {"type": "function_call", "call_id": "1", "name": "old", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "1", "output": "x"},
]


@pytest.mark.parametrize("none, choice", [("none", {"tool_choice": "none"}), ("drop_tools", {})])
def test_history_tools_are_declared_for_backends_that_demand_it(none: str, choice: Any) -> None:
    chat = ask([], {"tools_for_history": True, "tool_choice.none": none}, input=HISTORY)
    assert {name: chat.body[name] for name in chat.body if name.startswith("tool")} == {
        "tools": [sent("old")],
        **choice,
    }
    assert (chat.bindings, chat.allowed) == ({"old": ToolBinding(FUNCTION_CALL, {"name": "old"})}, frozenset())


def test_history_tools_are_not_declared_for_others_or_beside_tools() -> None:
    assert "tools" not in ask([], input=HISTORY).body
    assert "tools" not in ask([], {"tools_for_history": True}).body
    assert names(ask([A], {"tools_for_history": True}, input=HISTORY)) == ["a"]


def test_tools_are_kept_for_backends_that_demand_them_when_none_may_be_called() -> None:
    chat = ask([A], {"tools_for_history": True, "tool_choice.none": "drop_tools"}, input=HISTORY, tool_choice="none")
    assert names(chat) == ["a"] and chat.allowed == frozenset() and "tool_choice" not in chat.body


# The choice.

NAMED_A = {"type": "function", "name": "a"}
OBJECT_A = {"type": "function", "function": {"name": "a"}}


def allowed(*tools: Any, mode: str | None = None) -> dict[str, Any]:
    return {"type": "allowed_tools", "tools": list(tools), "mode": mode}


NATIVE = {
    "type": "allowed_tools",
    "allowed_tools": {"mode": "auto", "tools": [OBJECT_A, {"type": "function", "function": {"name": "b"}}]},
}


@pytest.mark.parametrize(
    "choice, options, tools, value, may",
    [
        (None, {}, "abc", None, None),
        ("auto", {}, "abc", "auto", None),
        ("none", {}, "abc", "none", ""),
        ("none", {"tool_choice.none": "drop_tools"}, "", None, ""),
        ("required", {}, "abc", "required", None),
        ("required", {"tool_choice.required": "any"}, "abc", "any", None),
        ("required", {"tool_choice.required": "auto"}, "abc", "auto", None),
        ("required", {"tool_choice.required": "message"}, "abc", None, None),
        (NAMED_A, {}, "abc", OBJECT_A, "a"),
        (OBJECT_A, {}, "abc", OBJECT_A, "a"),
        (NAMED_A, {"tool_choice.named": "filter_required"}, "a", "required", "a"),
        (NAMED_A, {"tool_choice.named": "filter_required", "tool_choice.required": "any"}, "a", "any", "a"),
        (NAMED_A, {"tool_choice.named": "drop"}, "a", None, "a"),
        (allowed(A, B), {}, "ab", "auto", "ab"),
        (allowed(A, B, mode="required"), {}, "ab", "required", "ab"),
        (allowed(A, B, mode="none"), {}, "abc", "none", ""),
        (allowed(A, B), {"tool_choice.allowed": "keep"}, "abc", NATIVE, "ab"),
        (allowed(A), {}, "a", "auto", "a"),
        (allowed(A, mode="required"), {}, "abc", OBJECT_A, "a"),
        (allowed(A, mode="required"), {"tool_choice.named": "filter_required"}, "a", "required", "a"),
        (allowed(A, {"type": "web_search"}), {}, "a", "auto", "a"),
        (allowed({"type": "web_search"}), {}, "abc", "none", ""),
    ],
)
def test_tool_choice_is_sent_in_the_backends_terms(
    choice: Any, options: Any, tools: str, value: Any, may: str | None
) -> None:
    chat = ask([A, B, C], options, tool_choice=choice)
    assert names(chat) == list(tools) == list(chat.bindings)
    assert chat.body.get("tool_choice") == value
    assert chat.allowed == (None if may is None else frozenset(may))


def test_tool_choice_that_cannot_be_forced_is_an_instruction() -> None:
    options = {"tool_choice.required": "message", "tool_choice.named": "filter_required"}
    assert ask([A, B], options, tool_choice="required").body["messages"] == [
        {"role": "user", "content": "Hi"},
        {"role": "user", "content": "Call one of the tools now. Do not answer with text."},
    ]
    words = ask([A, B], options, tool_choice=NAMED_A).body["messages"][-1]["content"]
    assert words == "Call the tool `a` now. Do not answer with text."


CANNOT = "This backend cannot force "


@pytest.mark.parametrize(
    "choice, options, warning",
    [
        ("required", {"tool_choice.required": "auto"}, CANNOT + "tool calls; the model can answer with text."),
        (
            NAMED_A,
            {"tool_choice.named": "drop"},
            CANNOT + "the call of a certain tool; the model was offered only that tool.",
        ),
        (allowed(A, {"type": "mcp"}), {}, "The allowed tool 'mcp' is not a function and was ignored."),
    ],
)
def test_tool_choice_that_loses_something_is_a_warning(choice: Any, options: Any, warning: str) -> None:
    assert ask([A, B], options, tool_choice=choice).warnings == (warning,)


@pytest.mark.parametrize(
    "tools, choice",
    [
        ([A], {"type": "function", "name": "b"}),
        ([A], {"type": "function", "name": None}),
        ([A], {"type": "function", "name": "a", "namespace": "n"}),
        ([A], allowed(A, B)),
        ([], NAMED_A),
        ([], allowed(A)),
    ],
)
def test_tool_choice_of_a_missing_tool_is_refused(tools: Any, choice: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ask(tools, tool_choice=choice)
    assert caught.value.param == "tool_choice"


SEARCH = {"type": "web_search"}
NOTHING = "Invalid 'tool_choice': must not force a call if no tool can be offered to the model."
UNCONFIGURED = (
    "Invalid 'tool_choice': tools of type 'web_search' require a table [tools.web_search] in this server's settings."
)


@pytest.mark.parametrize(
    ("tools", "choice", "message"),
    [
        ([], "required", NOTHING),
        ([SEARCH], "required", NOTHING),
        ([SEARCH], SEARCH, UNCONFIGURED),
        ([A, SEARCH], SEARCH, UNCONFIGURED),
        (
            [A],
            SEARCH,
            "Invalid 'tool_choice': must name a tool in 'tools', which has no tool of type 'web_search'.",
        ),
        (
            [{"type": "x"}],
            {"type": "x"},
            "Invalid 'tool_choice': tools of type 'x' are not supported.",
        ),
        ([SEARCH], allowed(SEARCH, mode="required"), NOTHING),
        ([A, SEARCH], allowed(SEARCH, mode="required"), NOTHING),
        (
            [function("get_weather"), A],
            {"type": "function", "name": "get_wether"},
            "Invalid 'tool_choice': tool 'get_wether' not found in 'tools'. Did you mean 'get_weather'?",
        ),
    ],
)
def test_tool_choice_that_is_impossible_is_refused(tools: Any, choice: Any, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ask(tools, tool_choice=choice)
    assert (caught.value.message, caught.value.param) == (message, "tool_choice")


@pytest.mark.parametrize(
    "given, option, sent",
    [
        (None, "send", None),
        (True, "send", True),
        (False, "send", False),
        (True, "drop", None),
        (False, "drop", None),
        (True, "drop_false", True),
        (False, "drop_false", None),
    ],
)
def test_parallel_tool_calls_is_sent(given: Any, option: str, sent: Any) -> None:
    chat = ask([A], {"parallel_tool_calls": option}, parallel_tool_calls=given)
    assert chat.body.get("parallel_tool_calls") is sent
    lost = given is False and sent is None
    assert chat.warnings == (("This backend does not support `parallel_tool_calls: false`.",) if lost else ())
