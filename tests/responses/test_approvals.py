"""Approval of hosted tool calls: each approved call runs once, as stored."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.core.history.approvals import MAX_APPROVED, MAX_DENIED
from app.responses.context import MAX_CHAINS
from app.responses.tool_loop.calls import ALREADY_USED
from app.stores.memory import MemoryStore
from app.stores.sqlite import SQLiteStore
from tests.responses.test_tool_loop import body, client, events_of, hello, made, shape, types
from tests.support import laws
from tests.support.build import call, finish
from tests.support.hosted_lab import FUNCTIONS, ScriptedTool
from tests.support.scripted import Scripted


@pytest.fixture
def lab() -> ScriptedTool:
    return ScriptedTool.reset()


def decision(request: Any, approve: bool = True, **more: Any) -> dict[str, Any]:
    return {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": approve, **more}


def user(text: str = "Hi") -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": text}


def all_bytes(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.iterdir())


ASKED = made(("lab__ask", {"what": "it"}))


async def test_call_that_needs_approval_ends_the_response_with_a_request(lab: ScriptedTool) -> None:
    async with client(Scripted(ASKED)) as http:
        events = await events_of(http)
    laws.check(events)
    names = [event["type"].removeprefix("response.") for event in events]
    assert names == ["created", "in_progress", "output_item.added", "output_item.done", "completed"]
    (request,) = events[-1]["response"]["output"]
    assert request == {
        "type": "mcp_approval_request",
        "id": request["id"],
        "server_label": "lab",
        "name": "ask",
        "arguments": '{"what": "it"}',
    }
    assert lab.calls == []


async def test_call_that_needs_approval_and_was_cut_off_is_no_request(lab: ScriptedTool) -> None:
    cut = [call(0, "c0", "lab__ask", '{"wh'), finish("length")]
    async with client(Scripted(cut)) as http:
        events = await events_of(http)
    laws.check(events)
    response = events[-1]["response"]
    assert (response["status"], response["output"]) == ("incomplete", [])


async def test_calls_without_approval_of_the_same_answer_are_run_first(lab: ScriptedTool) -> None:
    backend = Scripted(made(("lab__ask", {}), ("lab__echo", {"text": "a"})), hello())
    async with client(backend) as http:
        response = (await http.post("/responses", json=body())).json()
    assert sorted(types(response)) == ["mcp_approval_request", "mcp_call"]
    assert lab.calls == [("echo", {"text": "a"})]
    assert len(backend.received) == 1


async def test_approved_call_is_run_before_the_model_is_asked(lab: ScriptedTool) -> None:
    backend = Scripted(ASKED, hello())
    async with client(backend, MemoryStore(ttl=60)) as http:
        first = (await http.post("/responses", json=body())).json()
        (request,) = first["output"]
        events = await events_of(http, previous_response_id=first["id"], input=[decision(request)])
    laws.check(events)
    second = events[-1]["response"]
    assert types(second) == ["mcp_call", "message"]
    assert second["output"][0]["approval_request_id"] == request["id"]
    assert second["output"][0]["output"] == "It was done."
    assert lab.calls == [("ask", {"what": "it"})]
    assert shape(backend.received[1]) == ["user", ("assistant", 1), "tool"]
    assert backend.received[1]["messages"][1]["tool_calls"][0]["id"] == "c0"


@pytest.mark.parametrize("reason", [None, "Too dear."])
async def test_denied_call_is_reported_to_the_model(lab: ScriptedTool, reason: str | None) -> None:
    backend = Scripted(ASKED, hello())
    async with client(backend, MemoryStore(ttl=60)) as http:
        first = (await http.post("/responses", json=body())).json()
        denied = decision(first["output"][0], approve=False, reason=reason)
        second = (await http.post("/responses", json=body(previous_response_id=first["id"], input=[denied]))).json()
    assert (types(second), lab.calls) == (["message"], [])
    content = backend.received[1]["messages"][-1]["content"]
    assert content == "The user did not approve this call" + (f": {reason}" if reason else ".")


async def test_turn_without_a_decision_leaves_the_call_open(lab: ScriptedTool) -> None:
    backend = Scripted(ASKED, hello(), hello())
    async with client(backend, MemoryStore(ttl=60)) as http:
        first = (await http.post("/responses", json=body())).json()
        second = (await http.post("/responses", json=body(previous_response_id=first["id"], input="Wait."))).json()
        assert backend.received[1]["messages"][2]["content"] == "The user has not approved this call yet."
        late = body(previous_response_id=second["id"], input=[decision(first["output"][0])])
        third = (await http.post("/responses", json=late)).json()
    assert types(third) == ["mcp_call", "message"]
    assert len(lab.calls) == 1


async def test_approval_in_a_conversation_is_run(lab: ScriptedTool) -> None:
    backend = Scripted(ASKED, hello())
    async with client(backend, MemoryStore(ttl=60)) as http:
        conversation = (await http.post("/conversations", json={})).json()["id"]
        first = (await http.post("/responses", json=body(conversation=conversation))).json()
        approved = body(conversation=conversation, input=[decision(first["output"][0])])
        assert types((await http.post("/responses", json=approved)).json()) == ["mcp_call", "message"]
        again = (await http.post("/responses", json=approved)).json()
    assert (types(again), len(lab.calls)) == (["message"], 1)


@pytest.mark.parametrize("by_reference", [True, False])
async def test_approval_without_an_earlier_response_is_run(lab: ScriptedTool, by_reference: bool) -> None:
    """Like the AI SDK with storage (`item_reference`), and like clients with their own history."""
    backend = Scripted(ASKED, hello())
    async with client(backend, MemoryStore(ttl=60)) as http:
        first = (await http.post("/responses", json=body(store=by_reference))).json()
        (request,) = first["output"]
        sent = {"type": "item_reference", "id": request["id"]} if by_reference else request
        more = {"input": [user(), sent, decision(request)], "store": by_reference}
        assert types((await http.post("/responses", json=body(**more))).json()) == ["mcp_call", "message"]
    assert lab.calls == [("ask", {"what": "it"})]


async def test_approved_call_is_run_as_stored_and_not_as_copied(lab: ScriptedTool) -> None:
    backend = Scripted(ASKED, hello())
    async with client(backend, MemoryStore(ttl=60)) as http:
        (request,) = (await http.post("/responses", json=body())).json()["output"]
        forged = {**request, "arguments": '{"what": "something else"}'}
        await http.post("/responses", json=body(input=[user(), forged, decision(request)]))
    assert lab.calls == [("ask", {"what": "it"})]


async def test_approval_in_two_branches_counts_once(lab: ScriptedTool) -> None:
    backend = Scripted(ASKED, hello())
    async with client(backend, MemoryStore(ttl=60)) as http:
        first = (await http.post("/responses", json=body())).json()
        approved = body(previous_response_id=first["id"], input=[decision(first["output"][0])])
        one = (await http.post("/responses", json=approved)).json()
        other = (await http.post("/responses", json=approved)).json()
    assert len(lab.calls) == 1
    assert [item["output"] for item in (one["output"][0], other["output"][0])] == ["It was done."] * 2
    assert backend.received[2]["messages"] == backend.received[1]["messages"]


@pytest.mark.parametrize("store", [True, False])
async def test_concurrent_approvals_run_the_call_once(lab: ScriptedTool, store: bool) -> None:
    backend = Scripted(ASKED, hello())
    async with client(backend, MemoryStore(ttl=60)) as http:
        first = (await http.post("/responses", json=body(store=store))).json()
        (request,) = first["output"]
        more = {"previous_response_id": first["id"]} if store else {"store": False}
        history = [] if store else [user(), request]
        approved = body(input=[*history, decision(request)], **more)
        answers = await asyncio.gather(*(http.post("/responses", json=approved) for _ in range(2)))
    assert len(lab.calls) == 1
    assert sorted(answer.json()["output"][0]["status"] for answer in answers) == ["completed", "failed"]


async def test_approval_that_is_stored_nowhere_runs_once_over_two_workers(lab: ScriptedTool, tmp_path: Path) -> None:
    """Only the requests contain the call; the workers' store contains the used approval."""
    stores = [SQLiteStore(tmp_path / "store.db", ttl=60) for _ in range(2)]
    async with client(Scripted(ASKED, hello()), stores[0]) as one, client(Scripted(hello()), stores[1]) as other:
        (request,) = (await one.post("/responses", json=body(store=False))).json()["output"]
        foreign = {**request, "id": "mcpr_made_by_another_server"}
        for approval_request in (request, foreign):
            approved = body(input=[user(), approval_request, decision(approval_request)], store=False)
            answers = [(await worker.post("/responses", json=approved)).json() for worker in (one, other)]
            assert [answer["output"][0]["status"] for answer in answers] == ["completed", "failed"]
            assert answers[1]["output"][0]["error"]["content"][0]["text"] == ALREADY_USED
    for store in stores:
        await store.aclose()
    assert len(lab.calls) == 2
    assert request["id"].encode() not in all_bytes(tmp_path)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"approval_request_id": "mcpr_unknown"}, "input[1].approval_request_id"),
        ({"approval_request_id": None}, "input[1].approval_request_id"),
        ({"approve": "yes"}, "input[1].approve"),
    ],
)
async def test_approval_without_a_request_is_refused(lab: ScriptedTool, more: dict[str, Any], param: str) -> None:
    async with client(Scripted(hello())) as http:
        wrong = {**decision({"id": "mcpr_1"}), **more}
        answer = await http.post("/responses", json=body(input=[user(), wrong]))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_approved_tool_has_to_be_declared_again(lab: ScriptedTool) -> None:
    async with client(Scripted(ASKED, hello()), MemoryStore(ttl=60)) as http:
        first = (await http.post("/responses", json=body())).json()
        more = {"previous_response_id": first["id"], "input": [decision(first["output"][0])], "tools": []}
        answer = await http.post("/responses", json=body(**more))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")
    assert lab.calls == []


async def test_approval_of_another_callers_request_is_refused(lab: ScriptedTool) -> None:
    async with client(Scripted(ASKED, hello()), MemoryStore(ttl=60), api_keys=["ada", "bob"]) as http:
        ada, bob = ({"Authorization": f"Bearer {key}"} for key in ("ada", "bob"))
        first = (await http.post("/responses", json=body(), headers=ada)).json()
        (request,) = first["output"]
        stolen = body(input=[user(), {"type": "item_reference", "id": request["id"]}, decision(request)])
        assert (await http.post("/responses", json=stolen, headers=bob)).status_code == 404
        bare = body(input=[user(), decision(request)])
        assert (await http.post("/responses", json=bare, headers=bob)).status_code == 400
    assert lab.calls == []


async def test_backend_refusal_after_an_approved_call_keeps_its_result(lab: ScriptedTool) -> None:
    from app.errors import BackendError

    backend = Scripted(ASKED, [BackendError("Away.", status=503)], hello())
    async with client(backend, MemoryStore(ttl=60)) as http:
        first = (await http.post("/responses", json=body())).json()
        approved = body(previous_response_id=first["id"], input=[decision(first["output"][0])])
        failed = (await http.post("/responses", json=approved)).json()
        assert (failed["status"], types(failed)) == ("failed", ["mcp_call"])
        again = (await http.post("/responses", json=approved)).json()
    assert (again["status"], again["output"][0]["output"], len(lab.calls)) == ("completed", "It was done.", 1)


async def test_approval_while_the_tool_is_unavailable_is_not_used_up(lab: ScriptedTool) -> None:
    backend = Scripted(ASKED, hello())
    async with client(backend, MemoryStore(ttl=60)) as http:
        first = (await http.post("/responses", json=body())).json()
        (request,) = first["output"]
        lab.away = True
        approved = body(previous_response_id=first["id"], input=[decision(request)])
        failed = (await http.post("/responses", json=approved)).json()
        assert (failed["output"][0]["status"], lab.calls) == ("failed", [])
        assert backend.received[-1]["messages"][-1]["content"] == "The lab is away."

        lab.away = False
        again = body(previous_response_id=failed["id"], input=[decision(request)])
        events = await events_of(http, **again)
        laws.check(events)
        call = events[-1]["response"]["output"][0]
        assert (call["output"], call["approval_request_id"]) == ("It was done.", request["id"])
        sent = backend.received[-1]["messages"]
        assert [message["role"] for message in sent] == ["user", "assistant", "tool", "assistant", "tool"]
        assert sent[1]["tool_calls"][0]["id"] != sent[3]["tool_calls"][0]["id"]

        # It is used now, in this branch and the first branch.
        last = body(previous_response_id=events[-1]["response"]["id"], input=[decision(request)])
        for used in (again, approved, last):
            await http.post("/responses", json=used)
    assert lab.calls == [("ask", {"what": "it"})]


async def test_approval_may_be_repeated_by_a_client_with_its_own_history(lab: ScriptedTool) -> None:
    """The failed call in its history does not count, and the earlier approval does not run it later."""
    backend = Scripted(ASKED, hello())
    async with client(backend, MemoryStore(ttl=60)) as http:
        lab.away = True
        (request,) = (await http.post("/responses", json=body(store=False))).json()["output"]
        history = [user(), request, decision(request)]
        history += (await http.post("/responses", json=body(store=False, input=history))).json()["output"]
        lab.away = False
        history += (await http.post("/responses", json=body(store=False, input=[*history, user()]))).json()["output"]
        assert lab.calls == []
        again = body(store=False, input=[*history, decision(request)])
        statuses = [(await http.post("/responses", json=again)).json()["output"][0]["status"] for _ in range(2)]
    assert (statuses, len(lab.calls)) == (["completed", "failed"], 1)


async def test_approval_of_a_tool_that_is_gone_is_not_used_up(lab: ScriptedTool) -> None:
    """An unreachable server may list no functions."""
    backend = Scripted(ASKED, hello())
    async with client(backend, MemoryStore(ttl=60)) as http:
        first = (await http.post("/responses", json=body())).json()
        approved = body(previous_response_id=first["id"], input=[decision(first["output"][0])])
        lab.functions = ()
        failed = (await http.post("/responses", json=approved)).json()
        lab.functions = FUNCTIONS
        done = (await http.post("/responses", json=approved)).json()
    assert [answer["output"][0]["status"] for answer in (failed, done)] == ["failed", "completed"]
    assert len(lab.calls) == 1


async def test_approval_may_be_tried_again_by_one_of_two_workers(lab: ScriptedTool, tmp_path: Path) -> None:
    stores = [SQLiteStore(tmp_path / "store.db", ttl=60) for _ in range(2)]
    async with client(Scripted(ASKED, hello()), stores[0]) as one, client(Scripted(hello()), stores[1]) as other:
        (request,) = (await one.post("/responses", json=body(store=False))).json()["output"]
        approved = body(input=[user(), request, decision(request)], store=False)
        outputs = []
        for worker, away in ((one, True), (other, True), (other, False), (one, False)):
            lab.away = away
            outputs.append((await worker.post("/responses", json=approved)).json()["output"][0]["output"])
    for store in stores:
        await store.aclose()
    assert (outputs, len(lab.calls)) == ([None, None, "It was done.", None], 1)


# Answered is answered, once.


def refused(answer: httpx.Response, param: str) -> bool:
    error = answer.json().get("error") or {}
    return (answer.status_code, error.get("code"), error.get("param")) == (400, "already_answered", param)


@pytest.mark.parametrize("way", ["next turn", "sibling", "conversation", "reference", "replay", "bare replay"])
async def test_denied_call_cannot_be_approved_later(lab: ScriptedTool, way: str) -> None:
    backend = Scripted(ASKED, hello())
    async with client(backend, MemoryStore(ttl=60)) as http:
        more: dict[str, Any] = {"store": "replay" not in way}
        if way == "conversation":
            more["conversation"] = (await http.post("/conversations", json={})).json()["id"]
        first = (await http.post("/responses", json=body(**more))).json()
        (request,) = first["output"]
        history = [user(), request] if "replay" in way else []
        before = {} if history or way == "conversation" else {"previous_response_id": first["id"]}
        denied = body(input=[*history, decision(request, approve=False)], **before, **more)
        second = (await http.post("/responses", json=denied)).json()
        assert second["status"] == "completed"
        match way:
            case "next turn":
                before = {"previous_response_id": second["id"]}
            case "reference":
                history, before = [{"type": "item_reference", "id": request["id"]}], {}
            case "replay":
                history += [decision(request, approve=False), *second["output"]]
        late = body(input=[*history, decision(request)], **before, **more)
        assert refused(await http.post("/responses", json=late), f"input[{len(history)}].approve")
        assert (await http.post("/responses", json=denied)).status_code == 200  # repeating a denial is allowed
    assert lab.calls == []


async def test_call_denied_and_approved_in_one_request_is_refused(lab: ScriptedTool) -> None:
    async with client(Scripted(ASKED, hello()), MemoryStore(ttl=60)) as http:
        first = (await http.post("/responses", json=body())).json()
        (request,) = first["output"]
        both = [decision(request, approve=False), decision(request)]
        more = {"previous_response_id": first["id"]}
        assert refused(await http.post("/responses", json=body(input=both, **more)), "input[1].approve")
        last = await http.post("/responses", json=body(input=both[::-1], **more))  # the last answer counts
        assert (last.status_code, types(last.json())) == (200, ["message"])
    assert lab.calls == []


async def test_call_that_was_run_cannot_be_denied(lab: ScriptedTool) -> None:
    async with client(Scripted(ASKED, hello()), MemoryStore(ttl=60)) as http:
        first = (await http.post("/responses", json=body())).json()
        (request,) = first["output"]
        more = {"previous_response_id": first["id"]}
        approved = (await http.post("/responses", json=body(input=[decision(request)], **more))).json()
        for previous in (first, approved):
            denied = body(input=[decision(request, approve=False)], previous_response_id=previous["id"])
            assert refused(await http.post("/responses", json=denied), "input[0].approve")
    assert len(lab.calls) == 1


async def test_call_that_could_not_begin_can_be_denied_and_then_not_approved(lab: ScriptedTool) -> None:
    async with client(Scripted(ASKED, hello()), MemoryStore(ttl=60)) as http:
        first = (await http.post("/responses", json=body())).json()
        (request,) = first["output"]
        lab.away = True
        previous = first["id"]
        for approve in (True, False):
            answer = body(input=[decision(request, approve=approve)], previous_response_id=previous)
            previous = (await http.post("/responses", json=answer)).json()["id"]
        lab.away = False
        late = body(input=[decision(request)], previous_response_id=first["id"])
        assert refused(await http.post("/responses", json=late), "input[0].approve")
    assert lab.calls == []


async def test_denial_and_approval_at_the_same_time_count_as_one(lab: ScriptedTool) -> None:
    for _ in range(5):
        lab.calls.clear()
        async with client(Scripted(ASKED, hello()), MemoryStore(ttl=60)) as http:
            first = (await http.post("/responses", json=body())).json()
            (request,) = first["output"]
            answers = [
                body(input=[decision(request, approve=approve)], previous_response_id=first["id"])
                for approve in (True, False)
            ]
            both = await asyncio.gather(*(http.post("/responses", json=answer) for answer in answers))
        approved, denied = both
        if denied.status_code == 200:
            assert lab.calls == []
            assert approved.status_code == 400 or approved.json()["output"][0]["status"] == "failed"
        else:
            assert refused(denied, "input[0].approve") and len(lab.calls) == 1


async def test_denial_counts_in_every_worker_with_nothing_else_stored(lab: ScriptedTool, tmp_path: Path) -> None:
    stores = [SQLiteStore(tmp_path / "store.db", ttl=60) for _ in range(2)]
    async with client(Scripted(ASKED, hello()), stores[0]) as one, client(Scripted(hello()), stores[1]) as other:
        (request,) = (await one.post("/responses", json=body(store=False))).json()["output"]
        denied = body(input=[user(), request, decision(request, approve=False)], store=False, tools=[])
        assert (await one.post("/responses", json=denied)).status_code == 200
        approved = body(input=[user(), request, decision(request)], store=False)
        assert refused(await other.post("/responses", json=approved), "input[2].approve")
    for store in stores:
        await store.aclose()
    assert lab.calls == [] and request["id"].encode() not in all_bytes(tmp_path)


@pytest.mark.parametrize("way", ["chained", "stored", "referred to", "conversation"])
async def test_forged_copy_that_was_stored_is_not_run(lab: ScriptedTool, way: str) -> None:
    """A turn's input is stored, too, with the client's id."""
    backend = Scripted(ASKED, hello())
    async with client(backend, MemoryStore(ttl=60)) as http:
        more: dict[str, Any] = {}
        if way == "conversation":
            more["conversation"] = (await http.post("/conversations", json={})).json()["id"]
        first = (await http.post("/responses", json=body(**more))).json()
        (request,) = first["output"]
        forged = {**request, "arguments": '{"what": "something else"}'}
        if way != "conversation":
            more["previous_response_id"] = first["id"]
        second = (await http.post("/responses", json=body(input=[forged, user()], **more))).json()
        sent: list[Any] = []
        match way:
            case "chained":
                more["previous_response_id"] = second["id"]
            case "stored":
                more, sent = {}, [user(), forged]
            case "referred to":
                more, sent = {}, [user(), {"type": "item_reference", "id": request["id"]}]
        await http.post("/responses", json=body(input=[*sent, decision(request)], **more))
    assert lab.calls == [("ask", {"what": "it"})]


async def test_approvals_of_one_request_are_bounded(lab: ScriptedTool) -> None:
    """Without storage, only the caller claims that a model made them."""
    requests = [
        {"type": "mcp_approval_request", "id": f"mcpr_{n}", "server_label": "lab", "name": "ask", "arguments": "{}"}
        for n in range(MAX_APPROVED + 1)
    ]
    async with client(Scripted(hello()), MemoryStore(ttl=60)) as http:
        for count, status in ((MAX_APPROVED + 1, 400), (MAX_APPROVED, 200)):
            decided = [item for request in requests[:count] for item in (request, decision(request))]
            answer = await http.post("/responses", json=body(input=[user(), *decided], store=False))
            assert answer.status_code == status
            assert len(lab.calls) == (MAX_APPROVED if status == 200 else 0)


class CountingStore(MemoryStore):
    """A store with a write counter."""

    added = 0

    async def add(self, bucket: str, name: str, record: bytes) -> bool:
        self.added += 1
        return await super().add(bucket, name, record)


async def test_denials_of_a_history_are_stored_up_to_a_bound(lab: ScriptedTool) -> None:
    """Earlier denials were stored when they were new; each needs a store request."""
    requests = [
        {"type": "mcp_approval_request", "id": f"mcpr_{n}", "server_label": "lab", "name": "ask", "arguments": "{}"}
        for n in range(MAX_DENIED + 100)
    ]
    store = CountingStore(ttl=60)
    denials = [item for request in requests for item in (request, decision(request, approve=False))]
    async with client(Scripted(hello()), store) as http:
        assert (await http.post("/responses", json=body(input=denials, store=False))).status_code == 200
        assert store.added == MAX_DENIED
        late = body(input=[user(), requests[-1], decision(requests[-1])], store=False)
        assert refused(await http.post("/responses", json=late), "input[2].approve")


class ReadCountingStore(MemoryStore):
    """Counts reads of whole buckets."""

    reads = 0

    async def all(self, bucket: str) -> dict[str, bytes]:
        self.reads += 1
        return await super().all(bucket)


@pytest.mark.parametrize("copies", [1, 20])
async def test_chain_of_approval_requests_is_read_once_for_a_request(lab: ScriptedTool, copies: int) -> None:
    store = ReadCountingStore(ttl=60)
    async with client(Scripted(ASKED, hello()), store) as http:
        (request,) = (await http.post("/responses", json=body())).json()["output"]
        store.reads = 0
        sent = [user(), *[request] * copies, decision(request)]
        response = (await http.post("/responses", json=body(input=sent))).json()
    assert (types(response), store.reads) == (["mcp_call", "message"], 1)


@pytest.mark.parametrize("answered", [False, True], ids=["sent", "answered"])
async def test_approval_requests_of_too_many_chains_are_refused(lab: ScriptedTool, answered: bool) -> None:
    store = ReadCountingStore(ttl=60)
    async with client(Scripted(ASKED, hello()), store) as http:
        (request,) = (await http.post("/responses", json=body())).json()["output"]
        store.reads = 0
        chains = [{**request, "id": f"{request['id'][:-4]}{number:04x}"} for number in range(MAX_CHAINS)]
        others = map(decision, chains) if answered else chains
        refused = await http.post("/responses", json=body(input=[user(), *others, request, decision(request)]))
    assert (refused.status_code, refused.json()["error"]["param"], store.reads) == (400, "input", 0)
