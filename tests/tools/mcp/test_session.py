"""An MCP server during a response: allowed servers, allowed tools, and refreshed lists."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.errors import InvalidRequest
from app.tools import Declaration, HostedFunction, Outcome, Report, ToolCall, ToolHost, ToolSession
from app.tools.mcp import MCPTool
from app.tools.mcp.connection import ServerConnection
from tests.support.mcp_lab import LONG_NAME, MCPLab


class Item:
    """The present state of a session's item."""

    def __init__(self, type: str, fields: dict[str, Any]) -> None:
        self.id = "mcpl_1"
        self.fields = {"id": self.id, "type": type, **fields}
        self.private_data: dict[str, Any] = {}
        self.status = ""

    def event(self, name: str, **fields: Any) -> None:
        pass

    def set_private_data(self, **data: Any) -> None:
        self.private_data |= data

    def close(self, status: str = "completed", **fields: Any) -> None:
        self.status = status
        self.fields |= fields


class Response(Report):
    """A response's exchange with its tools; the next response starts with its private data."""

    def __init__(self, before: Response | None = None) -> None:
        self.before = before
        self.items: list[Item] = []
        self.warnings: list[str] = []

    @property
    def history(self) -> list[dict[str, Any]]:
        earlier = self.before.history if self.before else []
        return [*earlier, *(item.fields for item in self.items)]

    def add(self, type: str, **fields: Any) -> Item:
        self.items.append(Item(type, fields))
        return self.items[-1]

    def private_data(self, item: Mapping[str, Any]) -> Mapping[str, Any]:
        own = next((one.private_data for one in self.items if one.fields is item), {})
        return own or (self.before.private_data(item) if self.before else {})

    def warn(self, message: str) -> None:
        self.warnings.append(message)


def tool_of(table: dict[str, Any], **environment: str) -> MCPTool:
    return MCPTool.from_settings(table, ToolHost(environment=environment, directory=Path()))


SECRET_FIELDS = ("authorization", "headers", "server_url")


def declaration(owner: str = "", **tool: Any) -> Declaration:
    secrets = {name: tool.pop(name) for name in SECRET_FIELDS if name in tool}
    shown = {"type": "mcp", **tool}
    return Declaration(shown, secrets, param_path="tools[0]", owner=owner, response_id="resp_1", chain="chain")


@asynccontextmanager
async def opened(tool: MCPTool, owner: str = "", **fields: Any) -> AsyncIterator[ToolSession]:
    session = tool.open(declaration(owner, **fields))
    async with session as entered:
        yield entered
    await tool.aclose()


async def call(session: ToolSession, function: HostedFunction, **arguments: Any) -> Outcome:
    return await session.run(ToolCall("mcp_1", function, arguments, ()), Response())


def names(functions: Sequence[HostedFunction]) -> set[str]:
    return {function.name for function in functions}


@pytest.fixture
async def lab() -> AsyncIterator[MCPLab]:
    async with MCPLab().serve() as lab:
        yield lab


async def test_declared_server_is_listed_and_called(lab: MCPLab) -> None:
    tool = tool_of({"servers": {"lab": {"url": lab.url}}})
    response = Response()
    async with opened(tool, server_label="lab") as session:
        functions = await session.functions([], response)
        add = next(function for function in functions if function.name == "add")
        assert (add.item, add.namespace, add.description) == ("mcp_call", "lab", "Add two numbers.")
        assert add.item_fields == {"server_label": "lab", "name": "add"}
        assert add.parameters["required"] == ["a", "b"] and add.needs_approval
        outcome = await call(session, add, a=1, b=2)
    assert (outcome.output, outcome.fields) == ("3", {"output": "3", "error": None})
    (item,) = response.items
    assert item.status == "completed" and "error" not in item.fields
    assert {"name", "input_schema", "description", "annotations"} == set(item.fields["tools"][0])
    assert LONG_NAME in names(functions)


async def test_list_is_read_once_in_a_conversation(lab: MCPLab) -> None:
    tool = tool_of({"servers": {"lab": {"url": lab.url}}})
    first = Response()
    async with opened(tool, server_label="lab") as session:
        functions = await session.functions([], first)
    lists, requests = lab.lists, len(lab.headers)
    second = Response(first)
    async with opened(tool, server_label="lab") as session:
        assert names(await session.functions(second.history, second)) == names(functions)
        assert second.items == [] and (lab.lists, len(lab.headers)) == (lists, requests)
        outcome = await call(session, functions[0], a=1, b=2)
    assert outcome.status == "completed" and lab.lists == lists


async def test_list_is_read_anew_where_another_server_has_the_label(lab: MCPLab) -> None:
    async with MCPLab("other", only="echo").serve() as other:
        first = Response()
        async with opened(tool_of({"servers": {"lab": {"url": lab.url}}}), server_label="lab") as session:
            await session.functions([], first)
        second = Response(first)
        async with opened(tool_of({"servers": {"lab": {"url": other.url}}}), server_label="lab") as session:
            assert names(await session.functions(second.history, second)) == {"echo"}
        assert len(second.items) == 1


async def test_list_is_read_anew_where_more_is_allowed(lab: MCPLab) -> None:
    tool = tool_of({"servers": {"lab": {"url": lab.url}}})
    first = Response()
    async with opened(tool, server_label="lab", allowed_tools=["add"]) as session:
        assert names(await session.functions([], first)) == {"add"}
    assert [tool["name"] for tool in first.items[0].fields["tools"]] == ["add"]
    second = Response(first)
    async with opened(tool, server_label="lab", allowed_tools=["add", "echo"]) as session:
        assert names(await session.functions(second.history, second)) == {"add", "echo"}


async def test_list_is_read_anew_where_another_declared_server_has_the_url(lab: MCPLab) -> None:
    """It may have other headers, and with them other tools."""
    tool = tool_of({"servers": {name: {"url": lab.url} for name in ("lab", "other")}})
    first = Response()
    async with opened(tool, server_label="lab") as session:
        await session.functions([], first)
    second = Response(first)
    async with opened(tool, server_label="lab", connector_id="other") as session:
        await session.functions(second.history, second)
    assert len(second.items) == 1


@pytest.mark.parametrize("read_only", [True, False])
async def test_list_counts_only_as_it_was_made_here(lab: MCPLab, read_only: bool) -> None:
    """A caller may send another list, or a forged one."""
    filtered = {"read_only": True}
    server = {
        "url": lab.url,
        "allowed_tools": filtered if read_only else ["*"],
        "require_approval": {"never": filtered},
    }
    tool = tool_of({"servers": {"lab": server}})
    first = Response()
    async with opened(tool, server_label="lab") as session:
        functions = await session.functions([], first)
    (made,) = first.items
    safe = {"name": "echo", "input_schema": {}, "annotations": {"readOnlyHint": True}}
    for tools in ([safe], [*made.fields["tools"], safe], [{**one, "annotations": {}} for one in made.fields["tools"]]):
        for data in ({}, made.private_data, {"source": made.private_data["source"]}):
            forged = Response()
            forged.items.append(Item("mcp_list_tools", {"server_label": "lab", "tools": tools}))
            forged.items[0].private_data = data
            second = Response(forged)
            async with opened(tool, server_label="lab") as session:
                assert await session.functions(second.history, second) == functions
            assert len(second.items) == 1  # it was listed again


async def test_list_that_failed_is_read_again(lab: MCPLab) -> None:
    failed = {"type": "mcp_list_tools", "server_label": "lab", "tools": [], "error": "It was away."}
    async with opened(tool_of({"servers": {"lab": {"url": lab.url}}}), server_label="lab") as session:
        assert len(await session.functions([failed], Response())) > 1


async def test_server_that_is_unavailable_is_reported_and_left_out(lab: MCPLab) -> None:
    tool = tool_of({"servers": {"lab": {"url": lab.url.replace("/mcp", "/nothing/0123456789abcdef0123")}}})
    response = Response()
    async with opened(tool, server_label="lab") as session:
        assert await session.functions([], response) == []
    (item,) = response.items
    assert item.status == "failed" and "404 Not Found" in item.fields["error"]
    assert "cannot be used" in response.warnings[0] and "0123456789abcdef0123" not in str(response.warnings)


async def test_call_to_a_server_that_cannot_be_reached_is_not_begun(lab: MCPLab) -> None:
    tool = tool_of({"servers": {"lab": {"url": lab.url}, "away": {"url": "http://127.0.0.1:9/mcp"}}})
    outcomes = []
    for label in ("lab", "away"):
        fields = {"server_label": label, "name": "fail"}
        async with opened(tool, server_label=label) as session:
            function = HostedFunction("fail", "mcp_call", namespace=label, fields=fields)
            outcomes.append(await call(session, function))
    assert [(outcome.status, outcome.begun) for outcome in outcomes] == [("failed", True), ("failed", False)]


async def test_session_that_was_lost_is_opened_anew(lab: MCPLab) -> None:
    tool = tool_of({"servers": {"lab": {"url": lab.url}}})
    async with opened(tool, server_label="lab") as session:
        functions = {function.name: function for function in await session.functions([], Response())}
        await session._connections[-1].close()  # type: ignore[attr-defined]
        assert (await call(session, functions["add"], a=1, b=2)).output == "3"


@pytest.mark.parametrize(
    ("servers", "requested", "approved"),
    [
        (None, None, True),
        (None, "never", True),
        ("never", None, False),
        ("never", "never", False),
        ("never", "always", True),
        ("always", "never", True),
        ({"never": {"tool_names": ["add"]}}, None, False),
        ({"never": {"read_only": True}}, None, False),
        ({"never": {"read_only": True}}, {"always": {"tool_names": ["add"]}}, True),
        ("never", {"never": {"tool_names": ["add"]}}, False),
        ("never", {"never": {"tool_names": ["echo"]}}, True),
        ("never", {"always": {"tool_names": ["add"]}}, True),
        ("never", {"always": {"tool_names": ["echo"]}}, False),
        ("never", {"always": {"tool_names": ["echo"]}, "never": {"tool_names": ["sound"]}}, False),
        ("never", {"always": {"read_only": False}}, False),
        ("never", {}, False),
        ("always", {"always": {"tool_names": ["echo"]}}, True),
        ("always", {"never": {"tool_names": ["add"]}}, True),
        ({"always": {"tool_names": ["echo"]}}, None, True),
        ({"never": {"tool_names": ["add"]}}, {"always": {"tool_names": ["echo"]}}, False),
    ],
)
async def test_approvals_of_a_caller_are_added_to_the_operators(
    lab: MCPLab, servers: Any, requested: Any, approved: bool
) -> None:
    table = {"url": lab.url} | ({"require_approval": servers} if servers else {})
    fields = {"require_approval": requested} if requested else {}
    async with opened(tool_of({"servers": {"lab": table}}), server_label="lab", **fields) as session:
        functions = {function.name: function for function in await session.functions([], Response())}
    assert functions["add"].needs_approval is approved


@pytest.mark.parametrize(
    ("requested", "found"),
    [
        (["add", "echo", "no_such_tool"], {"add", "echo"}),
        ({"tool_names": ["add"]}, {"add"}),
        ({"read_only": True}, {"add"}),
        ({"read_only": True, "tool_names": ["echo"]}, set()),
        ([], set()),
    ],
)
async def test_tools_that_both_allow_may_be_called(lab: MCPLab, requested: Any, found: set[str]) -> None:
    table = {"servers": {"lab": {"url": lab.url, "allowed_tools": ["add", "e*"]}}}
    async with opened(tool_of(table), server_label="lab", allowed_tools=requested) as session:
        assert names(await session.functions([], Response())) == found
    async with opened(tool_of(table), server_label="lab") as session:
        assert names(await session.functions([], Response())) == {"add", "echo"}


@pytest.mark.parametrize(
    ("requested", "words"),
    [
        (["add", "nope"], "has names that match none of its tools: 'nope'"),
        (["fail"], "has names that match none of its tools: 'fail'"),  # the operator does not allow it
        (["a", "b", "c", "d"], "has names that match none of its tools: 'a', 'b', 'c' and 1 more"),
        ({"read_only": True, "tool_names": ["e*"]}, "has names that match none of its tools: 'e*'"),
        ({"read_only": False, "tool_names": None}, None),
        (["ad?"], None),
        (None, None),
    ],
)
async def test_filter_that_matches_nothing_is_a_warning(lab: MCPLab, requested: Any, words: str | None) -> None:
    tool = tool_of({"servers": {"lab": {"url": lab.url, "allowed_tools": ["add", "e*"]}}})
    first = Response()
    fields = {"allowed_tools": requested} if requested else {}
    for response in (first, Response(first)):  # a reused list is the same
        async with opened(tool, server_label="lab", **fields) as session:
            await session.functions(response.history, response)
        warnings = [f"`allowed_tools` of the MCP server 'lab' {words}."] if words else []
        assert response.warnings == warnings


async def test_filter_that_selects_nothing_is_a_warning() -> None:
    async with MCPLab(only="echo").serve() as lab:
        response = Response()
        fields = {"allowed_tools": {"read_only": True}}
        async with opened(tool_of({"servers": {"lab": {"url": lab.url}}}), server_label="lab", **fields) as session:
            assert await session.functions([], response) == []
    assert response.warnings == ["`allowed_tools` of the MCP server 'lab' selects none of its tools."]


async def test_tools_that_cannot_be_offered_are_left_out_with_a_warning(
    lab: MCPLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def list_tools(self: ServerConnection) -> tuple[list[dict[str, Any]], bool]:
        listed, complete = await listing(self)
        schema: dict[str, Any] = {}
        for _ in range(60):
            schema = {"properties": {"a": schema}}
        odd: list[dict[str, Any]] = [{"name": ""}]
        return [*odd, *({"name": name, "inputSchema": schema} for name in ("deep", "deeper")), *listed], complete

    listing = ServerConnection.list_tools
    monkeypatch.setattr(ServerConnection, "list_tools", list_tools)
    response = Response()
    async with opened(tool_of({"servers": {"lab": {"url": lab.url}}}), server_label="lab") as session:
        found = names(await session.functions([], response))
    assert "add" in found and not found & {"deep", "deeper"}
    deep = "Tools of the MCP server 'lab' with schemas deeper than 100 levels were ignored: 'deep', 'deeper'."
    assert response.warnings == ["The MCP server 'lab' lists tools without a name; they were ignored.", deep]


async def test_tools_that_are_deferred_wait_for_a_search(lab: MCPLab) -> None:
    tool = tool_of({"servers": {"lab": {"url": lab.url}}})
    async with opened(tool, server_label="lab", defer_loading=True) as session:
        assert all(function.deferred for function in await session.functions([], Response()))


OPEN = {"allow_urls": ["https://*.example.com/*", "http://127.0.0.1:{port}/*"], "allow_private": True}


def allowing(lab: MCPLab, **more: Any) -> dict[str, Any]:
    port = lab.url.split(":")[2].split("/")[0]
    return {"allow_urls": ["https://*.example.com/*", f"http://127.0.0.1:{port}/*"], "allow_private": True, **more}


async def test_server_that_the_caller_names_is_used_if_allowed(lab: MCPLab) -> None:
    tool = tool_of(allowing(lab))
    fields = {"server_url": lab.url, "authorization": "token", "headers": {"X-Team": "a", "Authorization": "other"}}
    async with opened(tool, server_label="mine", **fields) as session:
        functions = await session.functions([], Response())
        assert functions[0].namespace == "mine" and all(function.needs_approval for function in functions)
        function = next(function for function in functions if function.name == "tell_secret")
        assert "token" not in str(await call(session, function))
    assert {(sent["authorization"], sent["x-team"]) for sent in lab.headers} == {("Bearer token", "a")}
    async with opened(tool, server_label="mine", server_url=lab.url, require_approval="never") as session:
        assert not any(function.needs_approval for function in await session.functions([], Response()))


async def test_private_addresses_need_a_setting_of_their_own(lab: MCPLab) -> None:
    with pytest.raises(InvalidRequest):
        tool_of(allowing(lab, allow_private=False)).open(declaration(server_label="mine", server_url=lab.url))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "server_label"),
        ({"server_label": 7}, "server_label"),
        ({"server_label": ""}, "server_label"),
        ({"server_label": "other"}, "server_label"),
        ({"server_label": "x", "connector_id": "connector_gmail"}, "connector_id"),
        ({"server_label": "x", "tunnel_id": "t"}, "tunnel_id"),
        ({"server_label": "x", "server_url": "https://evil.com/"}, "server_url"),
        ({"server_label": "x", "server_url": "https://127.0.0.1/"}, "server_url"),
        ({"server_label": "x", "server_url": "https://user@mcp.example.com/"}, "server_url"),
        ({"server_label": "x", "server_url": "http://mcp.example.com/"}, "server_url"),
        ({"server_label": "x", "server_url": ["https://mcp.example.com/"]}, "server_url"),
        ({"server_label": "lab", "server_url": "https://evil.com/"}, "server_url"),
        ({"server_label": "lab", "connector_id": "lab", "server_url": "https://mcp.example.com/"}, "connector_id"),
        ({"server_label": "lab", "require_approval": "sometimes"}, "require_approval"),
        ({"server_label": "lab", "require_approval": {"never": ["add"]}}, "require_approval"),
        ({"server_label": "lab", "allowed_tools": "add"}, "allowed_tools"),
        ({"server_label": "lab", "allowed_tools": {"names": ["add"]}}, "allowed_tools"),
        ({"server_label": "lab", "headers": {"X-User": "admin"}}, "headers"),
        ({"server_label": "lab", "authorization": "a\r\nHost: b"}, "authorization"),
        ({"server_label": "x", "server_url": "https://mcp.example.com/", "headers": {"Host": "b"}}, "headers"),
        ({"server_label": "x", "server_url": "https://mcp.example.com/", "headers": {"a b": "c"}}, "headers"),
        ({"server_label": "x", "server_url": "https://mcp.example.com/", "headers": {"a": "c\nd"}}, "headers"),
        ({"server_label": "x", "server_url": "https://mcp.example.com/", "headers": {"a": 1}}, "headers"),
        ({"server_label": "x", "server_url": "https://mcp.example.com/", "headers": "a: b"}, "headers"),
        (
            {"server_label": "x", "server_url": "https://mcp.example.com/", "headers": {"Mcp-Session-Id": "1"}},
            "headers",
        ),
    ],
)
async def test_declarations_that_are_invalid_are_refused_before_any_request(
    lab: MCPLab, fields: dict[str, Any], param: str
) -> None:
    tool = tool_of(allowing(lab, servers={"lab": {"url": lab.url}}))
    with pytest.raises(InvalidRequest) as error:
        tool.open(declaration(**fields))
    assert error.value.param == f"tools[0].{param}"
    assert lab.headers == []


async def test_declared_server_named_by_its_url_keeps_its_settings(lab: MCPLab) -> None:
    server = {"url": lab.url, "allowed_tools": ["add"], "headers": {"X-Team": "operator"}}
    tool = tool_of(allowing(lab, servers={"lab": server}))
    async with opened(tool, server_label="mine", server_url=lab.url, require_approval="never") as session:
        (function,) = await session.functions([], Response())
    assert (function.name, function.namespace, function.needs_approval) == ("add", "mine", True)
    assert {sent["x-team"] for sent in lab.headers} == {"operator"}


async def test_callers_token_for_a_server_with_the_operators_is_refused(lab: MCPLab) -> None:
    server = {"url": lab.url, "headers": {"Authorization": "of-the-operator"}}
    tool = tool_of(allowing(lab, servers={"lab": server}))
    with pytest.raises(InvalidRequest) as error:
        tool.open(declaration(server_label="mine", server_url=lab.url, authorization="of-the-caller"))
    assert error.value.param == "tools[0].authorization"
    assert lab.headers == []


async def test_callers_url_is_used_only_if_the_operator_allows_it(lab: MCPLab) -> None:
    with pytest.raises(InvalidRequest, match="declared by its operator"):
        tool_of({"servers": {"lab": {"url": lab.url}}}).open(
            declaration(server_label="x", server_url="https://mcp.example.com/mcp")
        )


async def test_declared_server_may_be_named_by_its_url_or_as_a_connector(lab: MCPLab) -> None:
    tool = tool_of({"servers": {"lab": {"url": lab.url, "require_approval": "never"}}})
    for fields in ({"server_label": "lab", "server_url": lab.url}, {"server_label": "mine", "connector_id": "lab"}):
        async with opened(tool, **fields) as session:
            assert (await session.functions([], Response()))[0].namespace == fields["server_label"]


async def test_declared_server_gets_the_operators_headers_or_the_callers_token(
    lab: MCPLab,
) -> None:
    table = {
        "servers": {"lab": {"url": lab.url, "headers_env": {"Authorization": "LAB_TOKEN"}}, "open": {"url": lab.url}}
    }
    tool = tool_of(table, LAB_TOKEN="of-the-operator")
    async with opened(tool, server_label="lab", authorization="of-the-caller") as session:
        await session.functions([], Response())
    assert {sent["authorization"] for sent in lab.headers} == {"Bearer of-the-operator"}
    lab.headers.clear()
    async with opened(tool, server_label="open", authorization="of-the-caller") as session:
        await session.functions([], Response())
    assert {sent["authorization"] for sent in lab.headers} == {"Bearer of-the-caller"}


async def test_server_for_other_keys_is_not_found() -> None:
    tool = tool_of({"servers": {"lab": {"url": "http://127.0.0.1:9/mcp", "keys": ["team-a"]}}})
    with pytest.raises(InvalidRequest, match="not found on this server"):
        tool.open(declaration("0" * 32, server_label="lab"))


async def test_declared_servers_are_checked(lab: MCPLab, tmp_path: Path) -> None:
    tool = tool_of(
        {
            "servers": {
                "lab": {"url": lab.url},
                "few": {"url": lab.url, "allowed_tools": ["add", "ech?", "serch*"]},
                "none": {"url": lab.url, "allowed_tools": ["serch*"]},
                "time": {"command": [sys.executable, "-m", "mcp_server_time"]},
                "gone": {"url": "http://127.0.0.1:9/mcp"},
                "no_program": {"command": "no-such-program --fast"},
                "no_file": {"command": [str(tmp_path / "server")]},
                "no_folder": {"command": [sys.executable], "directory": str(tmp_path / "folder")},
            }
        }
    )
    found = await tool.check()
    assert {name: problem for name, problem in found.items() if name != "none"} == {
        "lab": None,
        "few": None,
        "time": None,
        "gone": "The MCP server cannot be reached.",
        "no_program": "program 'no-such-program' not found in the PATH",
        "no_file": f"program '{tmp_path}/server' not found",
        "no_folder": f"directory '{tmp_path}/folder' not found",
    }
    assert str(found["none"]).startswith(
        "`allowed_tools` has names that match none of its tools: 'serch*'; its tools are add,"
    )
    details = tool.details()
    assert details["lab"].startswith("12 tools: add, echo, ")
    assert (
        details["few"]
        == "2 of 12 tools: add, echo; but `allowed_tools` has names that match none of its tools: 'serch*'"
    )
    assert details["time"] == "2 tools: get_current_time, convert_time"
    assert details.keys() == {"lab", "few", "time"}


async def test_programs_that_do_not_exist_are_known_before_the_server_starts(tmp_path: Path) -> None:
    program = tmp_path / "server"
    servers = {
        "time": {"command": [sys.executable, "-m", "mcp_server_time"]},
        "typo": {"command": "no-such-program --fast"},
        "own": {"command": "server", "env": {"PATH": str(tmp_path)}},
        "here": {"command": "./server", "directory": str(tmp_path)},
    }
    assert await tool_of({"servers": servers}).prepare() == [
        "servers.typo: program 'no-such-program' not found in the PATH",
        "servers.own: program 'server' not found in the PATH",
        "servers.here: program './server' not found",
    ]
    program.touch(mode=0o755)
    assert await tool_of({"servers": servers}).prepare() == [
        "servers.typo: program 'no-such-program' not found in the PATH"
    ]


async def test_program_that_does_not_exist_is_reported_as_missing() -> None:
    response = Response()
    async with opened(tool_of({"servers": {"typo": "no-such-program"}}), server_label="typo") as session:
        assert await session.functions([], response) == []
    assert "MCP server's program cannot be run" in response.items[0].fields["error"]
    assert "no-such-program" not in response.items[0].fields["error"]
