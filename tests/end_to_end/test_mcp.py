"""Responses with MCP tools: real servers on real sockets, end to end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import httpx
import pytest

from app.responses.tool_loop.sessions import MAX_DECLARED
from tests.clients.answers import saying
from tests.support.logs import all_text
from tests.support.mcp_lab import LONG_NAME, PIXEL, MCPLab
from tests.support.serving import antiphon
from tests.support.upstream import DONE, Upstream, call, finish, sse, usage
from tests.support.upstream import upstream as upstream

SEVEN = {"a": 3, "b": 4}


@pytest.fixture
async def lab() -> AsyncIterator[MCPLab]:
    async with MCPLab().serve() as lab:
        yield lab


def calling(*calls: tuple[str, Any]) -> list[Any]:
    """An answer with function calls."""
    pieces = []
    for index, (name, arguments) in enumerate(calls):
        written = arguments if isinstance(arguments, str) else json.dumps(arguments)
        pieces += [call(index, id=f"call_{index}", name=name), call(index, arguments=written)]
    return sse(*pieces, finish("tool_calls"), usage(), DONE)


@asynccontextmanager
async def mcp_client(
    upstream: Upstream, mcp: dict[str, Any], key: str = "", **settings: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """A client, for a server with these MCP servers."""
    async with antiphon(backend_url=upstream.url, tools={"mcp": mcp}, **settings) as url:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        async with httpx.AsyncClient(base_url=f"{url}/v1", headers=headers, timeout=30) as client:
            yield client


def declared(lab: MCPLab, **more: Any) -> dict[str, Any]:
    return {"servers": {"lab": {"url": lab.url, "require_approval": "never", **more}}}


MCP = {"type": "mcp", "server_label": "lab"}


async def respond(client: httpx.AsyncClient, *tools: dict[str, Any], **body: Any) -> dict[str, Any]:
    answer = await client.post("/responses", json={"model": "m", "input": "Add.", "tools": tools or [MCP], **body})
    assert answer.status_code == 200, answer.text
    response: dict[str, Any] = answer.json()
    return response


async def events(client: httpx.AsyncClient, *tools: dict[str, Any], **body: Any) -> list[dict[str, Any]]:
    request = {"model": "m", "input": "Add.", "tools": tools or [MCP], "stream": True, **body}
    answer = await client.post("/responses", json=request)
    assert answer.status_code == 200, answer.text
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]


def types(response: dict[str, Any]) -> list[str]:
    return [item["type"] for item in response["output"]]


def only(response: dict[str, Any], type: str) -> dict[str, Any]:
    (item,) = (item for item in response["output"] if item["type"] == type)
    assert isinstance(item, dict)
    return item


def text(response: dict[str, Any]) -> str:
    return "".join(part["text"] for part in only(response, "message")["content"])


def tool_results(upstream: Upstream, request: int = -1) -> list[Any]:
    """Tool results in a model request."""
    messages = upstream.requests[request].json["messages"]
    return [message["content"] for message in messages if message["role"] == "tool"]


def offered(upstream: Upstream, request: int = -1) -> set[str]:
    return {tool["function"]["name"] for tool in upstream.requests[request].json.get("tools", ())}


async def test_mcp_tool_is_called_and_answered(upstream: Upstream, lab: MCPLab) -> None:
    upstream.say(calling(("lab__add", SEVEN)))
    upstream.say(saying("It is 7."))
    async with mcp_client(upstream, declared(lab)) as client:
        response = await respond(client)
    assert types(response) == ["mcp_list_tools", "mcp_call", "message"]
    listed, called = only(response, "mcp_list_tools"), only(response, "mcp_call")
    assert "error" not in listed and {"name", "input_schema"} <= set(listed["tools"][0])
    assert {name: called[name] for name in ("server_label", "name", "output", "error", "status")} == {
        "server_label": "lab",
        "name": "add",
        "output": "7",
        "error": None,
        "status": "completed",
    }
    assert json.loads(called["arguments"]) == SEVEN
    assert (text(response), tool_results(upstream), lab.calls) == ("It is 7.", ["7"], [("add", SEVEN)])
    assert response["usage"]["input_tokens"] == 10


async def test_mcp_events_are_those_that_clients_know(upstream: Upstream, lab: MCPLab) -> None:
    upstream.say(calling(("lab__add", SEVEN)))
    upstream.say(saying("It is 7."))
    async with mcp_client(upstream, declared(lab)) as client:
        seen = await events(client)
    names = [event["type"].removeprefix("response.") for event in seen]
    assert [name for name in names if not name.startswith(("output_text", "content_part"))] == [
        "created",
        "in_progress",
        "output_item.added",
        "mcp_list_tools.in_progress",
        "mcp_list_tools.completed",
        "output_item.done",
        "output_item.added",
        "mcp_call.in_progress",
        "mcp_call_arguments.delta",
        "mcp_call_arguments.done",
        "mcp_call.completed",
        "output_item.done",
        "output_item.added",
        "output_item.done",
        "completed",
    ]
    added = [event["item"] for event in seen if event["type"] == "response.output_item.added"]
    assert added[0]["tools"] == [] and "error" not in added[0]
    assert (added[1]["arguments"], added[1]["output"], added[1]["status"]) == ("", None, "in_progress")
    assert [event["sequence_number"] for event in seen] == list(range(len(seen)))


async def test_mcp_list_is_read_once_in_a_conversation(upstream: Upstream, lab: MCPLab) -> None:
    upstream.always(saying("Hello."))
    async with MCPLab("other", only="echo").serve() as other:
        both = {"servers": {name: {"url": one.url} for name, one in (("lab", lab), ("other", other))}}
        async with mcp_client(upstream, both) as client:
            first = await respond(client)
            second = await respond(client, previous_response_id=first["id"])
            also = {**MCP, "server_label": "other"}
            third = await respond(client, MCP, also, previous_response_id=second["id"])
            replayed = [{"role": "user", "content": "Hi."}, *third["output"], {"role": "user", "content": "Go on."}]
            fourth = await respond(client, MCP, also, input=replayed, store=False)
    assert [types(response) for response in (first, second, third, fourth)] == [
        ["mcp_list_tools", "message"],
        ["message"],
        ["mcp_list_tools", "message"],
        ["mcp_list_tools", "message"],  # from `lab`, because its list was not sent back
    ]
    assert only(third, "mcp_list_tools")["server_label"] == "other"
    assert {"lab__add", "other__echo"} <= offered(upstream, 2) and lab.lists == 1
    assert "lab__add" in offered(upstream, 1)


async def test_mcp_servers_with_tools_of_one_name_are_kept_apart(upstream: Upstream, lab: MCPLab) -> None:
    upstream.say(calling(("lab__echo", {"value": "one"}), ("other__echo", {"value": "two"})))
    upstream.say(saying("Done."))
    async with MCPLab("other").serve() as other:
        servers = {
            name: {"url": one.url, "require_approval": "never"} for name, one in (("lab", lab), ("other", other))
        }
        async with mcp_client(upstream, {"servers": servers}) as client:
            response = await respond(client, MCP, {**MCP, "server_label": "other"})
        assert (lab.calls, other.calls) == ([("echo", {"value": "one"})], [("echo", {"value": "two"})])
    assert [item["output"] for item in response["output"] if item["type"] == "mcp_call"] == ['"one"', '"two"']


async def test_mcp_calls_of_one_answer_run_side_by_side(upstream: Upstream, lab: MCPLab) -> None:
    upstream.say(calling(("lab__meet", {}), ("lab__meet", {})))
    upstream.say(saying("Done."))
    async with mcp_client(upstream, declared(lab)) as client:
        response = await respond(client)
    assert [item["output"] for item in response["output"] if item["type"] == "mcp_call"] == ["met", "met"]


async def test_mcp_tool_names_of_any_length_are_found_again(upstream: Upstream, lab: MCPLab) -> None:
    upstream.say(saying("Hello."))
    async with mcp_client(upstream, declared(lab, allowed_tools=[LONG_NAME])) as client:
        await respond(client)
        (name,) = offered(upstream)
        assert len(name) <= 64 and len(f"lab__{LONG_NAME}") > 64
        upstream.say(calling((name, {})))
        upstream.say(saying("Done."))
        called = only(await respond(client), "mcp_call")
    assert (called["name"], called["output"]) == (LONG_NAME, "long")


async def test_mcp_images_are_shown_to_the_model(upstream: Upstream, lab: MCPLab) -> None:
    upstream.say(calling(("lab__picture", {})))
    upstream.say(saying("A pixel."))
    async with mcp_client(upstream, declared(lab)) as client:
        called = only(first := await respond(client), "mcp_call")
        assert PIXEL in json.dumps(upstream.requests[-1].json["messages"])
        upstream.say(saying("Still a pixel."))
        await respond(client, previous_response_id=first["id"])
    assert called["output"].startswith("One pixel:") and PIXEL not in called["output"]
    assert PIXEL in json.dumps(upstream.requests[-1].json["messages"])


async def test_mcp_results_that_are_too_long_are_cut(upstream: Upstream, lab: MCPLab) -> None:
    upstream.say(calling(("lab__huge", {})))
    upstream.say(saying("Much."))
    async with (
        antiphon(backend_url=upstream.url, tools={"max_result_chars": 1000, "mcp": declared(lab)}) as url,
        httpx.AsyncClient(base_url=f"{url}/v1") as client,
    ):
        called = only(await respond(client), "mcp_call")
    assert len(called["output"]) == 1000 and "truncated" in called["output"]
    assert tool_results(upstream) == [called["output"]]


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("lab__fail", {}, "It does not work."),
        ("lab__add", {"a": "one"}, "validation"),
        ("lab__add", "[1, 2]", "JSON object"),
    ],
)
async def test_mcp_call_that_fails_is_reported_and_the_answer_goes_on(
    upstream: Upstream, lab: MCPLab, name: str, arguments: Any, words: str
) -> None:
    upstream.say(calling((name, arguments)))
    upstream.say(saying("It failed."))
    async with mcp_client(upstream, declared(lab)) as client:
        response = await respond(client)
    called = only(response, "mcp_call")
    assert (called["status"], called["output"], text(response)) == ("failed", None, "It failed.")
    assert called["error"]["type"] == "mcp_tool_execution_error" and words in json.dumps(called["error"])
    assert words in tool_results(upstream)[0]
    assert isinstance(json.loads(called["arguments"]), dict)


async def test_mcp_server_that_is_unavailable_is_reported_and_the_answer_goes_on(
    upstream: Upstream, lab: MCPLab
) -> None:
    upstream.say(saying("I cannot add."))
    servers = {"lab": {"url": lab.url}, "gone": {"url": "http://127.0.0.1:9/mcp"}}
    async with mcp_client(upstream, {"servers": servers}) as client:
        seen = await events(client, MCP, {**MCP, "server_label": "gone"})
    response = seen[-1]["response"]
    assert response["status"] == "completed"
    lists = {item["server_label"]: item for item in response["output"] if item["type"] == "mcp_list_tools"}
    assert lists["gone"]["error"] == "The MCP server cannot be reached." and lists["gone"]["tools"] == []
    assert "error" not in lists["lab"] and "lab__add" in offered(upstream)
    assert "response.mcp_list_tools.failed" in {event["type"] for event in seen}


async def test_mcp_functions_beyond_the_backends_limit_are_not_offered(upstream: Upstream) -> None:
    many = MCPLab(only="add")
    for number in range(140):
        many.server.add_tool(many.echo, name=f"tool_{number}")
    upstream.say(saying("So many."))
    async with many.serve(), mcp_client(upstream, declared(many)) as client:
        request = {"model": "m", "input": "Hi.", "tools": [MCP]}
        answer = await client.post("/responses", json=request)
    assert len(offered(upstream)) == 128
    assert "functions of hosted tools were left out" in answer.headers["x-antiphon-warning"]


SEARCH = {"type": "tool_search"}
DEFERRED = {**MCP, "defer_loading": True}


async def test_mcp_deferred_tools_are_searched_and_called(upstream: Upstream, lab: MCPLab) -> None:
    upstream.say(calling(("tool_search", {"query": "adding numbers", "limit": 1})))
    upstream.say(calling(("lab__add", SEVEN)))
    upstream.always(saying("It is 7."))
    async with mcp_client(upstream, declared(lab)) as client:
        first = await respond(client, DEFERRED, SEARCH)
        second = await respond(client, DEFERRED, SEARCH, previous_response_id=first["id"])
        third = await respond(client, DEFERRED)
    assert types(first) == ["mcp_list_tools", "tool_search_call", "tool_search_output", "mcp_call", "message"]
    search, found = only(first, "tool_search_call"), only(first, "tool_search_output")
    assert (search["execution"], search["arguments"]["query"]) == ("server", "adding numbers")
    assert (found["execution"], found["call_id"], found["status"]) == ("server", search["call_id"], "completed")
    assert [(space["name"], [tool["name"] for tool in space["tools"]]) for space in found["tools"]] == [
        ("lab", ["add"])
    ]
    assert offered(upstream, 0) == {"tool_search"}
    assert offered(upstream, 1) == offered(upstream, 2) == offered(upstream, 3) == {"tool_search", "lab__add"}
    assert "lab__add: Add two numbers." in tool_results(upstream, 1)[0]
    assert (text(first), text(second), lab.calls) == ("It is 7.", "It is 7.", [("add", SEVEN)])
    assert types(third)[-1] == "message" and {"lab__add", "lab__echo"} <= offered(upstream)  # nothing searches


async def test_mcp_search_that_can_find_nothing_is_not_offered(upstream: Upstream, lab: MCPLab) -> None:
    upstream.say(saying("Hello."))
    async with mcp_client(upstream, declared(lab, allowed_tools=["add"])) as client:
        await respond(client, MCP, SEARCH)
    assert offered(upstream) == {"lab__add"}


async def test_mcp_deferred_tools_are_found_by_the_clients_search(upstream: Upstream, lab: MCPLab) -> None:
    upstream.say(calling(("tool_search", {"query": "add"})))
    upstream.say(calling(("lab__add", SEVEN)))
    upstream.say(saying("It is 7."))
    tools = [DEFERRED, {**SEARCH, "execution": "client"}]
    async with mcp_client(upstream, declared(lab)) as client:
        first = await respond(client, *tools)
        search = only(first, "tool_search_call")
        declared_add = {"type": "function", "name": "add", "parameters": {}, "defer_loading": True}
        space = {"type": "namespace", "name": "lab", "description": "", "tools": [declared_add]}
        found = {"type": "tool_search_output", "call_id": search["call_id"], "execution": "client", "tools": [space]}
        second = await respond(client, *tools, input=[found], previous_response_id=first["id"])
    assert (types(first)[-1], text(second), lab.calls) == ("tool_search_call", "It is 7.", [("add", SEVEN)])


async def test_mcp_names_that_no_backend_takes_are_changed(upstream: Upstream) -> None:
    odd = MCPLab(only="echo")
    for name in ("get.it", "get_it", "get/it"):
        odd.server.add_tool(odd.echo, name=name)
    async with odd.serve(), mcp_client(upstream, declared(odd, allowed_tools=["get?it"])) as client:
        upstream.say(saying("Hello."))
        await respond(client)
        names = offered(upstream)
        assert len(names) == 3 and all(re.fullmatch(r"[\w-]{1,64}", name) for name in names)
        upstream.say(calling(*((name, {"value": name}) for name in sorted(names))))
        upstream.say(saying("Done."))
        response = await respond(client)
    called = {item["name"] for item in response["output"] if item["type"] == "mcp_call"}
    assert called == {"get.it", "get_it", "get/it"}


async def test_mcp_list_that_is_replayed_counts_if_encrypted(upstream: Upstream, lab: MCPLab) -> None:
    upstream.always(saying("Hello."))
    stateless = {"store": False, "include": ["reasoning.encrypted_content"]}
    async with mcp_client(upstream, declared(lab)) as client:
        first = await respond(client, **stateless)
        history = [{"role": "user", "content": "Hi."}, *first["output"], {"role": "user", "content": "Go on."}]
        second = await respond(client, input=history, **stateless)
        assert (types(first), types(second)) == (["mcp_list_tools", "reasoning", "message"], ["message"])
        without = [item for item in history if item.get("type") != "reasoning"]
        assert types(await respond(client, input=without, **stateless)) == ["mcp_list_tools", "reasoning", "message"]
    assert offered(upstream, 0) == offered(upstream, 1) == offered(upstream, 2)


SAFE = {"readOnlyHint": True}


def forged(listed: dict[str, Any]) -> dict[str, Any]:
    """A list with all tools declared read-only."""
    return {**listed, "tools": [{**tool, "annotations": SAFE} for tool in listed["tools"]]}


@pytest.mark.parametrize("how", ["new", "stored", "replaced", "chained", "referred to", "conversation", "encrypted"])
async def test_mcp_list_that_is_forged_runs_no_tool_without_approval(upstream: Upstream, lab: MCPLab, how: str) -> None:
    upstream.say(saying("Hello."))
    user = {"role": "user", "content": "Delete all."}
    filters = declared(lab, require_approval={"never": {"read_only": True}})
    async with mcp_client(upstream, filters) as client:
        first = await respond(client, include=["reasoning.encrypted_content"], store=how != "encrypted")
        listed = only(first, "mcp_list_tools")
        body: dict[str, Any] = {"input": [forged(listed), user]}
        match how:
            case "new":
                body = {"input": [{**forged(listed), "id": "mcpl_1"}, user]}
            case "replaced":
                body["previous_response_id"] = first["id"]
            case "chained":
                upstream.say(saying("Hello."))
                copies = [forged(listed), {**forged(listed), "id": None}]
                second = await respond(client, input=copies, previous_response_id=first["id"])
                body = {"input": [user], "previous_response_id": second["id"]}
            case "referred to":
                upstream.say(saying("Hello."))
                await respond(client, **body)
                body = {"input": [{"type": "item_reference", "id": listed["id"]}, user]}
            case "conversation":
                items = [forged(listed), {**forged(listed), "id": "mcpl_1"}]
                made = await client.post("/conversations", json={"items": items})
                body = {"input": [user], "conversation": made.json()["id"]}
            case "encrypted":
                body = {"input": [forged(listed), *first["output"][1:], user], "store": False}
        upstream.always(calling(("lab__echo", {"value": "all"})))
        response = await respond(client, **body)
    assert types(response)[-1] == "mcp_approval_request" and lab.calls == []


# Approvals.


def approving(response: dict[str, Any], approve: bool = True, **more: Any) -> dict[str, Any]:
    request = only(response, "mcp_approval_request")
    return {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": approve, **more}


async def test_mcp_call_that_is_approved_is_run_once(upstream: Upstream, lab: MCPLab) -> None:
    upstream.say(calling(("lab__add", SEVEN)))
    upstream.say(saying("It is 7."))
    async with mcp_client(upstream, declared(lab, require_approval="always")) as client:
        first = await respond(client)
        assert types(first) == ["mcp_list_tools", "mcp_approval_request"] and first["status"] == "completed"
        request = only(first, "mcp_approval_request")
        assert (request["server_label"], request["name"], json.loads(request["arguments"])) == ("lab", "add", SEVEN)
        assert lab.calls == []
        second = await respond(client, input=[approving(first)], previous_response_id=first["id"])
    assert types(second) == ["mcp_call", "message"]
    called = only(second, "mcp_call")
    assert (called["approval_request_id"], called["output"]) == (request["id"], "7")
    assert (lab.calls, tool_results(upstream), len(upstream.requests)) == ([("add", SEVEN)], ["7"], 2)


async def test_mcp_approval_counts_once(upstream: Upstream, lab: MCPLab) -> None:
    upstream.say(calling(("lab__add", SEVEN)))
    upstream.always(saying("It is 7."))
    async with mcp_client(upstream, declared(lab, require_approval="always")) as client:
        first = await respond(client)
        second = await respond(client, input=[approving(first)], previous_response_id=first["id"])
        third = await respond(client, input=[approving(first)], previous_response_id=second["id"])
        again = await respond(client, input=[approving(first)], previous_response_id=first["id"])
    assert types(third) == ["message"]  # the call stands in the conversation already
    assert only(again, "mcp_call")["output"] == "7"
    assert lab.calls == [("add", SEVEN)]


async def test_mcp_approved_call_is_run_as_stored(upstream: Upstream, lab: MCPLab) -> None:
    upstream.say(calling(("lab__add", SEVEN)))
    upstream.say(saying("Done."))
    async with mcp_client(upstream, declared(lab, require_approval="always")) as client:
        first = await respond(client)
        forged = {**only(first, "mcp_approval_request"), "arguments": '{"a": 100, "b": 100}'}
        await respond(client, input=[forged, approving(first)], previous_response_id=first["id"])
    assert lab.calls == [("add", SEVEN)]


async def test_mcp_call_that_is_denied_is_not_run_and_the_model_gets_the_reason(
    upstream: Upstream, lab: MCPLab
) -> None:
    upstream.say(calling(("lab__add", SEVEN)))
    upstream.say(saying("I did not add."))
    async with mcp_client(upstream, declared(lab, require_approval="always")) as client:
        first = await respond(client)
        decision = approving(first, approve=False, reason="Too dear.")
        second = await respond(client, input=[decision], previous_response_id=first["id"])
    assert types(second) == ["message"] and lab.calls == []
    assert "Too dear." in tool_results(upstream)[0]


@pytest.mark.parametrize("how", ["conversation", "replay", "reference"])
async def test_mcp_approvals_of_every_kind_of_client_work(upstream: Upstream, lab: MCPLab, how: str) -> None:
    upstream.say(calling(("lab__add", SEVEN)))
    upstream.say(saying("It is 7."))
    async with mcp_client(upstream, declared(lab, require_approval="always")) as client:
        more: dict[str, Any] = {}
        if how == "conversation":
            more = {"conversation": (await client.post("/conversations", json={})).json()["id"]}
        if how == "replay":
            more = {"store": False}
        first = await respond(client, **more)
        request = only(first, "mcp_approval_request")
        earlier_items: Sequence[dict[str, Any]] = {
            "conversation": [],
            "replay": [{"role": "user", "content": "Add."}, *first["output"]],
            "reference": [{"role": "user", "content": "Add."}, {"type": "item_reference", "id": request["id"]}],
        }[how]
        second = await respond(client, input=[*earlier_items, approving(first)], **more)
    assert only(second, "mcp_call")["output"] == "7" and lab.calls == [("add", SEVEN)]


async def test_mcp_approval_without_a_request_is_refused(upstream: Upstream, lab: MCPLab) -> None:
    decision = {"type": "mcp_approval_response", "approval_request_id": "mcpr_nothing", "approve": True}
    async with mcp_client(upstream, declared(lab)) as client:
        answer = await client.post("/responses", json={"model": "m", "input": [decision], "tools": [MCP]})
    assert answer.status_code == 400 and "mcpr_nothing" in answer.json()["error"]["message"]


async def test_mcp_approval_does_not_widen_what_is_allowed_now(upstream: Upstream, lab: MCPLab) -> None:
    upstream.say(calling(("lab__add", SEVEN)))
    upstream.say(saying("It is gone."))
    async with mcp_client(upstream, declared(lab, require_approval="always")) as client:
        first = await respond(client)
        narrowed = {**MCP, "allowed_tools": ["echo"]}
        second = await respond(client, narrowed, input=[approving(first)], previous_response_id=first["id"])
    assert only(second, "mcp_call")["status"] == "failed" and lab.calls == []


@pytest.mark.parametrize("whole", [True, False])
async def test_mcp_call_that_is_replayed_without_its_result_has_it(
    upstream: Upstream, lab: MCPLab, whole: bool
) -> None:
    upstream.say(calling(("lab__picture", {})))
    upstream.always(saying("A pixel."))
    async with mcp_client(upstream, declared(lab), key="mine", api_keys="mine,of-another") as client:
        output = (await respond(client))["output"]
        if not whole:
            output = [{name: value for name, value in item.items() if name != "output"} for item in output]
        turns = [{"role": "user", "content": "Draw."}, *output, {"role": "user", "content": "Again."}]
        await respond(client, input=turns)
        assert PIXEL in json.dumps(upstream.requests[-1].json["messages"])
        client.headers["Authorization"] = "Bearer of-another"
        await respond(client, input=turns)
        assert PIXEL not in json.dumps(upstream.requests[-1].json["messages"])


# The way out.


async def test_mcp_secrets_of_a_caller_are_nowhere(
    upstream: Upstream, lab: MCPLab, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    port = lab.url.split(":")[2].split("/")[0]
    table = {"allow_urls": [f"http://127.0.0.1:{port}/*"], "allow_private": True}
    tool = {
        "type": "mcp",
        "server_label": "mine",
        "server_url": f"{lab.url}?key=CANARY-of-the-url",
        "authorization": "CANARY-token-of-the-caller",
        "headers": {"X-Key": "CANARY-header-of-the-caller"},
        "require_approval": "never",
    }
    upstream.say(calling(("mine__tell_secret", {}), ("mine__fail", {})))
    upstream.say(saying("Done."))
    upstream.always(saying("Done."))
    store = f"sqlite:///{tmp_path / 'store.db'}"
    async with mcp_client(upstream, table, key="CANARY-key-of-ours", store_url=store, log_level="debug") as client:
        seen = await events(client, tool)
        response = seen[-1]["response"]
        stored = (await client.get(f"/responses/{response['id']}")).text
        items = (await client.get(f"/responses/{response['id']}/input_items")).text
        metrics = (await client.get(f"{str(client.base_url).removesuffix('/v1/')}/metrics")).text
        wrong = await client.post(
            "/responses",
            json={"model": "m", "input": "Hi.", "tools": [{**tool, "server_url": "https://CANARY.example/"}]},
        )
    assert response["tools"][0]["server_url"] == lab.url.removesuffix("/mcp")
    sent = [headers for headers in lab.headers if headers.get("x-key") == "CANARY-header-of-the-caller"]
    assert sent and {headers["authorization"] for headers in sent} == {"Bearer CANARY-token-of-the-caller"}
    assert not any("CANARY-key-of-ours" in str(headers) for headers in lab.headers)
    with contextlib.closing(apsw.Connection(str(tmp_path / "store.db"))) as database:
        rows = database.execute("SELECT record, entry FROM records UNION SELECT data, NULL FROM batches").fetchall()
    everything = [json.dumps(seen), stored, items, metrics, str(rows), all_text(caplog), wrong.text]
    everything += [request.body.decode() for request in upstream.requests]
    assert [text for text in everything if "CANARY" in text] == []


async def test_mcp_server_that_no_caller_may_name_is_refused(upstream: Upstream, lab: MCPLab) -> None:
    tool = {"type": "mcp", "server_label": "mine", "server_url": lab.url}
    async with mcp_client(upstream, declared(lab)) as client:
        answer = await client.post("/responses", json={"model": "m", "input": "Hi.", "tools": [tool]})
        # Where it is the operator's own server after all, it is asked.
    assert answer.status_code == 200 or answer.json()["error"]["param"] == "tools[0].server_url"
    async with mcp_client(upstream, {"allow_urls": ["https://*/*"]}) as client:
        request = {"model": "m", "input": "Hi.", "tools": [{**tool, "server_url": "https://169.254.169.254/latest"}]}
        answer = await client.post("/responses", json=request)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request", "tools[0].server_url")
    assert upstream.requests == []


@pytest.mark.parametrize("tools", [{}, {"demo": {}}, {"mcp": {}}, {"mcp": {"servers": {"time": "mcp-server-time"}}}])
@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({}, "server_label", "MCP server 'lab' not found"),
        ({"connector_id": "lab"}, "connector_id", "MCP server 'lab' not found"),
        ({"server_label": ""}, "server_label", "must have 1 to 128 characters"),
    ],
)
async def test_mcp_server_that_is_unknown_is_the_same_error_whatever_is_declared(
    upstream: Upstream, tools: dict[str, Any], fields: dict[str, Any], param: str, words: str
) -> None:
    async with antiphon(backend_url=upstream.url, tools=tools) as url, httpx.AsyncClient(base_url=url) as client:
        answer = await client.post("/v1/responses", json={"model": "m", "input": "Hi.", "tools": [{**MCP, **fields}]})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, f"tools[0].{param}") and words in error["message"]
    assert upstream.requests == []


async def test_mcp_connections_of_one_request_are_bounded(upstream: Upstream, lab: MCPLab) -> None:
    many = [{**MCP, "server_label": f"lab{n}", "connector_id": "lab"} for n in range(MAX_DECLARED + 1)]
    async with mcp_client(upstream, declared(lab)) as client:
        answer = await client.post("/responses", json={"model": "m", "input": "Hi.", "tools": many})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, f"tools[{MAX_DECLARED}]")
    assert (lab.headers, upstream.requests) == ([], [])


@pytest.mark.parametrize("tools", [{"mcp": {}}, {"mcp": {"servers": {"time": "mcp-server-time"}}}])
async def test_server_url_that_is_not_allowed_is_refused(upstream: Upstream, tools: dict[str, Any]) -> None:
    async with antiphon(backend_url=upstream.url, tools=tools) as url, httpx.AsyncClient(base_url=url) as client:
        tool = {**MCP, "server_url": "https://mcp.example.com/mcp"}
        answer = await client.post("/v1/responses", json={"model": "m", "input": "Hi.", "tools": [tool]})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "tools[0].server_url")
    assert "only calls MCP servers declared by its operator" in error["message"]
    assert upstream.requests == []


async def test_server_url_without_a_table_for_mcp_is_left_out_with_a_warning(upstream: Upstream) -> None:
    upstream.say(saying("Hello."))
    async with antiphon(backend_url=upstream.url) as url, httpx.AsyncClient(base_url=url) as client:
        tool = {**MCP, "server_url": "https://mcp.example.com/mcp"}
        answer = await client.post("/v1/responses", json={"model": "m", "input": "Hi.", "tools": [tool]})
    assert answer.status_code == 200 and "[tools.mcp]" in answer.headers["x-antiphon-warning"]
    (request,) = upstream.requests
    assert b"mcp.example.com" not in request.body


async def test_mcp_program_is_used_like_any_server(upstream: Upstream) -> None:
    upstream.say(calling(("time__get_current_time", {"timezone": "Europe/Lisbon"})))
    upstream.say(saying("It is late."))
    command = [sys.executable, "-m", "mcp_server_time"]
    table = {"servers": {"time": {"command": command, "require_approval": "never"}}}
    async with mcp_client(upstream, table) as client:
        called = only(await respond(client, {"type": "mcp", "server_label": "time"}), "mcp_call")
    assert "Europe/Lisbon" in called["output"]


async def test_mcp_calls_of_a_client_that_disconnects_are_cancelled(upstream: Upstream, lab: MCPLab) -> None:
    upstream.say(calling(("lab__sleep", {})))
    async with mcp_client(upstream, declared(lab)) as client:
        request = {"model": "m", "input": "Sleep.", "tools": [MCP], "stream": True}
        async with client.stream("POST", "/responses", json=request) as answer:
            assert answer.status_code == 200
            await lab.asleep.wait()
        async with asyncio.timeout(30):
            await lab.cancelled.wait()
