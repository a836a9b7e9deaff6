"""The demo tool: every hosted item type, with OpenAI's events in OpenAI's order."""

from __future__ import annotations

import inspect
import sys
import textwrap
import types
from contextlib import nullcontext
from typing import Any

import pytest
from openai.types.responses.response import ToolUsage
from openai.types.responses.response_output_item import McpCall

import app.tools
from app.main import create_app
from app.settings import SettingsError
from app.stores.memory import MemoryStore
from app.tools import Declaration, HostedFunction, Outcome, Report, ToolCall, ToolHost
from tests.responses.test_tool_loop import client, events_of, hello, made
from tests.support import laws
from tests.support.scripted import Scripted
from tests.support.serving import settings

DEMO = [{"type": "mcp", "server_label": "demo"}]
OPENAI = {"user-agent": "OpenAI/Python 3.54.0"}

ORDERS: dict[str, tuple[tuple[str, Any], str]] = {
    "mcp_call": (
        ("demo__add", {"a": 1, "b": 2}),
        "output_item.added mcp_call.in_progress mcp_call_arguments.delta mcp_call_arguments.done mcp_call.completed "
        "output_item.done",
    ),
    "a call that fails": (
        ("demo__fail", {"message": "No."}),
        "output_item.added mcp_call.in_progress mcp_call_arguments.delta mcp_call_arguments.done mcp_call.failed "
        "output_item.done",
    ),
    "web_search_call": (
        ("web_search", {"query": "x"}),
        "output_item.added web_search_call.in_progress web_search_call.searching web_search_call.completed "
        "output_item.done",
    ),
    "file_search_call": (
        ("file_search", {"queries": ["x"]}),
        "output_item.added file_search_call.in_progress file_search_call.searching file_search_call.completed "
        "output_item.done",
    ),
    "code_interpreter_call": (
        ("code_interpreter", {"code": "1"}),
        "output_item.added code_interpreter_call.in_progress code_interpreter_call_code.delta "
        "code_interpreter_call_code.done code_interpreter_call.interpreting code_interpreter_call.completed "
        "output_item.done",
    ),
    "image_generation_call": (
        ("image_generation", {"prompt": "x"}),
        "output_item.added image_generation_call.in_progress image_generation_call.generating "
        "image_generation_call.partial_image image_generation_call.completed output_item.done",
    ),
    "mcp_approval_request": (("demo__send", {"text": "x"}), "output_item.added output_item.done"),
}
LIST = "output_item.added mcp_list_tools.in_progress mcp_list_tools.completed output_item.done"


@pytest.mark.parametrize(("called", "order"), ORDERS.values(), ids=ORDERS)
async def test_item_type_has_its_events(called: Any, order: str) -> None:
    async with client(Scripted(made(called), hello()), tools={"demo": {}}) as http:
        events = await events_of(http, tools=DEMO)
    laws.check(events)
    names = " ".join(event["type"].removeprefix("response.") for event in events)
    assert names.startswith(f"created in_progress {LIST} {order} ")


async def test_functions_are_listed_once_in_a_conversation() -> None:
    backend = Scripted(hello(), hello(), made(("demo__add", {"a": 1, "b": 2})), hello())
    async with client(backend, MemoryStore(ttl=60), tools={"demo": {}}) as http:
        first = (await events_of(http, tools=DEMO))[-1]["response"]
        second = (await events_of(http, tools=DEMO, previous_response_id=first["id"]))[-1]["response"]
        third = (await events_of(http, tools=DEMO, previous_response_id=second["id"]))[-1]["response"]
    assert [item["type"] for item in first["output"]] == ["mcp_list_tools", "message"]
    assert [item["type"] for item in second["output"]] == ["message"]
    assert [item["type"] for item in third["output"]] == ["mcp_call", "message"]


@pytest.mark.parametrize(
    ("called", "field", "include"),
    [
        (("file_search", {"queries": ["x"]}), "results", "file_search_call.results"),
        (("code_interpreter", {"code": "1"}), "outputs", "code_interpreter_call.outputs"),
    ],
)
async def test_fields_to_be_included_are_returned_only_then(called: Any, field: str, include: str) -> None:
    backend = Scripted(made(called), hello(), made(called), hello())
    async with client(backend, tools={"demo": {}}) as http:
        without = (await http.post("/responses", json={"model": "m", "input": "Hi", "tools": DEMO})).json()
        body = {"model": "m", "input": "Hi", "tools": DEMO, "include": [include]}
        answer = await http.post("/responses", json=body)
    assert without["output"][1][field] is None
    assert answer.json()["output"][1][field]
    assert "x-antiphon-warning" not in answer.headers
    results = [chat_body["messages"][-1]["content"] for chat_body in backend.received[1::2]]
    assert results[0] == results[1] != "(The results were not stored.)"


async def test_tool_usage_is_counted_except_in_the_spec_dialect() -> None:
    calls = made(("web_search", {"query": "a"}), ("web_search", {"query": "b"}))
    async with client(Scripted(calls, hello(), calls, hello()), tools={"demo": {}}) as http:
        body = {"model": "m", "input": "Hi", "tools": DEMO}
        spec = (await http.post("/responses", json=body, headers={"user-agent": "curl/8.5.0"})).json()
        ours = (await http.post("/responses", json=body, headers=OPENAI)).json()
    assert "tool_usage" not in spec
    assert ToolUsage.model_validate(ours["tool_usage"]).web_search.num_requests == 2


async def test_arguments_that_are_invalid_are_reported_to_the_model() -> None:
    backend = Scripted(made(("demo__add", {"a": "one"}), ("demo__wait", {"seconds": "long"})), hello())
    async with client(backend, tools={"demo": {}}) as http:
        response = (await http.post("/responses", json={"model": "m", "input": "Hi", "tools": DEMO})).json()
    assert [item.get("status") for item in response["output"]] == [None, "failed", "failed", "completed"]
    outputs = [message["content"] for message in backend.received[1]["messages"] if message["role"] == "tool"]
    assert outputs == ["`a` and `b` must be numbers.", "`seconds` must be a number."]


async def test_client_with_its_own_history_sends_encrypted_results_back() -> None:
    calls = made(("web_search", {"query": "a"}), ("demo__add", {"a": 1, "b": 2}))
    backend = Scripted(calls, hello(), hello())
    include = ["reasoning.encrypted_content"]
    async with client(backend, tools={"demo": {}}) as http:
        body = {"model": "m", "input": "Hi", "tools": DEMO, "store": False, "include": include}
        events = await events_of(http, **body)
        laws.check(events)
        output = events[-1]["response"]["output"]
        assert [item["type"] for item in output][1:] == ["web_search_call", "mcp_call", "reasoning", "message"]
        question = {"type": "message", "role": "user", "content": "Hi"}
        again = {**body, "input": [question, *output, {"role": "user", "content": "And?"}]}
        assert (await http.post("/responses", json=again)).status_code == 200
    shown = [message["content"] for message in backend.received[2]["messages"] if message["role"] == "tool"]
    assert shown == [message["content"] for message in backend.received[1]["messages"] if message["role"] == "tool"]
    assert "A demo page" in shown[0]


async def test_documented_tool_makes_items_that_match_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    documentation = inspect.getdoc(app.tools)
    assert documentation is not None
    start = documentation.index("    import random")
    end = documentation.index("The loop guarantees")
    module = types.ModuleType("my_package.dice")
    exec(textwrap.dedent(documentation[start:end]), vars(module))
    monkeypatch.setitem(sys.modules, "my_package.dice", module)
    backend = Scripted(made(("dice__roll", {})), hello())
    async with client(backend, tools={"dice": {"tool": "my_package.dice:Dice"}}) as http:
        events = await events_of(http, tools=[{"type": "dice", "sides": 1}])
    laws.check(events)
    (added,) = (
        event["item"]
        for event in events
        if event["type"] == "response.output_item.added" and event["item"]["type"] == "mcp_call"
    )
    item = McpCall.model_validate(events[-1]["response"]["output"][0], strict=True)
    assert (item.server_label, item.name, item.output) == ("dice", "roll", "1")
    assert (added["server_label"], added["name"]) == ("dice", "roll")


class PlainTool:
    types = ("plain",)

    @classmethod
    def from_settings(cls, table: object, host: ToolHost) -> PlainTool:
        return cls()

    def open(self, declaration: Declaration) -> Any:
        return nullcontext(PlainSession())


class PlainSession:
    async def functions(self, items: Any, report: Report) -> list[HostedFunction]:
        return [HostedFunction("greet", "mcp_call", namespace="plain")]

    async def run(self, call: ToolCall, report: Report) -> Outcome:
        return Outcome("Hello", {"output": "Hello"})


class FixedTool(PlainTool):
    @classmethod
    def from_settings(cls, table: object, host: ToolHost) -> PlainTool:
        return PlainTool()


@pytest.mark.parametrize("name", ["PlainTool", "FixedTool"])
async def test_tool_without_base_class_gets_defaults(name: str) -> None:
    backend = Scripted(made(("plain__greet", {})), hello())
    async with client(backend, tools={"plain": {"tool": f"tests.tools.test_demo:{name}"}}) as http:
        events = await events_of(http, tools=[{"type": "plain"}])
        about = (await http.get("/v1/antiphon/about")).json()
    assert events[-1]["response"]["output"][0]["output"] == "Hello"
    assert about["tools"] == []


async def test_tool_path_to_a_function_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"tools\.plain: .*'function' object has no attribute 'from_settings'"):
        create_app(settings(tools={"plain": {"tool": "tests.tools.test_demo:hello"}}))
