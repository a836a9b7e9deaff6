"""Conversations: made, read, changed and forgotten with OpenAI's client, and continued by responses."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
from openai.types.conversations import Conversation, ConversationDeletedResource, ConversationItem, ConversationItemList
from pydantic import TypeAdapter

from app.core.history.turns import Turn
from app.core.types.request import CreateResponse
from app.errors import BackendError
from app.responses.conversations import Conversations
from app.responses.encryption import ContentCipher
from app.responses.quota import StorageQuota
from app.stores.memory import MemoryStore
from tests.support.build import call, delta, finish
from tests.support.scripted import Scripted
from tests.support.serving import antiphon
from tests.support.sockets import ask, dial, listening

HELLO = [delta(content="Hello.")]
ITEM: TypeAdapter[Any] = TypeAdapter(ConversationItem)


def user(text: str, **fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": text, **fields}


@contextlib.asynccontextmanager
async def talking(backend: Any = None, **values: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    async with antiphon(backend, **values) as url, client_of(url) as client:
        yield client


def client_of(url: str, key: str = "alice") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


async def texts(client: openai.AsyncOpenAI, id: str) -> list[str]:
    """The texts in a conversation, oldest first, from all pages."""
    return [item.content[0].text async for item in client.conversations.items.list(id, order="asc")]  # type: ignore


def model_texts(backend: Scripted) -> list[str]:
    return [message["content"] for message in backend.received[-1]["messages"]]


# The resource.


async def test_conversation_is_created_read_updated_and_deleted() -> None:
    async with talking() as client:
        made = await client.conversations.create(metadata={"topic": "demo"})
        read = await client.conversations.retrieve(made.id)
        changed = await client.conversations.update(made.id, metadata={"topic": "changed"})
        again = await client.conversations.retrieve(made.id)
        deleted = await client.conversations.delete(made.id)
        with pytest.raises(openai.NotFoundError) as gone:
            await client.conversations.retrieve(made.id)

    assert made.id.startswith("conv_") and made.object == "conversation" and made.metadata == {"topic": "demo"}
    assert read == made
    assert changed == again and again.metadata == {"topic": "changed"} and again.created_at == made.created_at
    assert (deleted.id, deleted.deleted) == (made.id, True)
    Conversation.model_validate(made.model_dump(), strict=True)
    ConversationDeletedResource.model_validate(deleted.model_dump(), strict=True)
    assert gone.value.body["type"] == "not_found"  # type: ignore[index,call-overload]


async def test_metadata_set_to_null_is_removed() -> None:
    async with talking() as client:
        made = await client.conversations.create(metadata={"topic": "demo"})
        changed = await client.conversations.update(made.id, metadata=None)

    assert changed.metadata == {}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/conversations", {"items": [user("hi")] * 21}, "items"),
        ("/conversations", {"items": [{"type": "message"}]}, "items[0].role"),
        ("/conversations", {"metadata": {"a": "b" * 513}}, "metadata.a"),
        ("/conversations/{id}", {}, "metadata"),
        ("/conversations/{id}/items", {}, "items"),
        ("/conversations/{id}/items", {"items": [user("hi", id="rs_1")]}, "items[0].id"),
        ("/conversations/{id}/items", {"items": [user("hi", id="msg_1"), user("ho", id="msg_1")]}, "items"),
    ],
)
async def test_invalid_field_of_a_conversation_is_named(path: str, body: dict[str, Any], param: str) -> None:
    async with antiphon() as url, httpx.AsyncClient(base_url=f"{url}/v1", timeout=60, trust_env=False) as http:
        id = (await http.post("/conversations", json={})).json()["id"]
        refused = await http.post(path.format(id=id), json=body)

    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


async def test_compaction_of_another_server_in_a_conversation_is_kept() -> None:
    async with antiphon() as url, httpx.AsyncClient(base_url=f"{url}/v1", timeout=60, trust_env=False) as http:
        conversation_id = (await http.post("/conversations", json={})).json()["id"]
        items = [{"type": "compaction", "encrypted_content": "not ours"}]
        added = await http.post(f"/conversations/{conversation_id}/items", json={"items": items})

    assert added.status_code == 200
    assert [item["encrypted_content"] for item in added.json()["data"]] == ["not ours"]


async def test_item_id_has_the_prefix_of_its_type() -> None:
    async with talking() as client:
        with pytest.raises(openai.BadRequestError, match="Expected an ID that begins with 'msg'"):
            await client.conversations.create(items=[user("Hi.", id="rs_1")])
        with pytest.raises(openai.BadRequestError, match="Expected an ID that begins with 'fc'"):
            arguments: Any = {"type": "function_call", "id": "call_1", "call_id": "c", "name": "f", "arguments": "{}"}
            await client.conversations.create(items=[arguments])


async def test_item_added_twice_is_in_the_conversation_once() -> None:
    async with talking() as client:
        id = (await client.conversations.create(items=[user("One.", id="msg_1")])).id
        with pytest.raises(openai.BadRequestError) as refused:
            await client.conversations.items.create(id, items=[user("Two.", id="msg_1")])
        assert (refused.value.code, refused.value.param) == ("item_already_in_conversation", "items")
        assert await texts(client, id) == ["One."]

        await client.conversations.items.delete("msg_1", conversation_id=id)
        added = await client.conversations.items.create(id, items=[user("Two.", id="msg_1")])
        assert await texts(client, id) == ["Two."]
        assert added.data[0].id != "msg_1"  # only the deletion is known


async def test_item_stored_elsewhere_is_added_as_stored() -> None:
    backend = Scripted(HELLO)
    async with antiphon(backend, api_keys="alice,bob") as url, client_of(url) as client, client_of(url, "bob") as bob:
        first = (await client.conversations.create(items=[user("One.")])).id
        [one] = (await client.conversations.items.list(first)).data
        response = await client.responses.create(model="m", input="Hi.")
        hello = response.output[0]
        reference: Any = {"type": "item_reference", "id": hello.id}
        other = (await client.conversations.create(items=[user("Not this.", id=one.id), reference])).id
        assert await texts(client, other) == ["One.", "Hello."]

        kept = await bob.conversations.create(items=[user("Mine.", id=one.id)])
        assert await texts(bob, kept.id) == ["Mine."]
        with pytest.raises(openai.NotFoundError) as refused:
            await bob.conversations.items.create(kept.id, items=[reference])
        assert refused.value.param == "items[0].id"


async def test_page_after_a_deleted_item_is_refused() -> None:
    async with talking() as client:
        id = (await client.conversations.create(items=[user("One.")])).id
        with pytest.raises(openai.NotFoundError) as refused:
            await client.conversations.items.list(id, after="msg_gone")
    assert refused.value.param == "after"


# Its items.


async def test_items_are_added_listed_read_and_deleted() -> None:
    async with talking() as client:
        conversation = await client.conversations.create(items=[user("One.")])
        added = await client.conversations.items.create(
            conversation.id, items=[{"type": "message", "role": "assistant", "content": "Two."}, user("Three.")]
        )
        listed = await client.conversations.items.list(conversation.id, order="asc")
        second = await client.conversations.items.retrieve(listed.data[1].id or "", conversation_id=conversation.id)
        after = await client.conversations.items.delete(second.id or "", conversation_id=conversation.id)
        left = await texts(client, conversation.id)
        with pytest.raises(openai.NotFoundError):
            await client.conversations.items.retrieve(second.id or "", conversation_id=conversation.id)

    ConversationItemList.model_validate(added.model_dump(), strict=True)
    assert [item.type for item in added.data] == ["message", "message"]
    assert [item.id for item in listed.data][1:] == [item.id for item in added.data]
    assert second == listed.data[1]
    assert second.model_dump(exclude_unset=True) == {
        "id": second.id,
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "Two.", "annotations": []}],
    }
    assert after == conversation
    assert left == ["One.", "Three."]


async def test_items_are_listed_in_pages_of_either_order() -> None:
    async with talking() as client:
        id = (await client.conversations.create()).id
        for first in range(0, 120, 20):
            await client.conversations.items.create(id, items=[user(str(n)) for n in range(first, first + 20)])
        newest = await client.conversations.items.list(id, limit=3)
        next_page = await newest.get_next_page()
        many = await client.conversations.items.list(id, order="asc", limit=500)
        everything = await texts(client, id)

    assert [item.content[0].text for item in newest.data] == ["119", "118", "117"]  # type: ignore[union-attr]
    assert newest.has_more is True and newest.last_id == newest.data[-1].id
    assert [item.content[0].text for item in next_page.data] == ["116", "115", "114"]  # type: ignore[union-attr]
    assert len(many.data) == 100 and many.has_more is True
    assert everything == [str(n) for n in range(120)]


async def test_list_without_items_is_valid() -> None:
    async with talking() as client:
        id = (await client.conversations.create(items=[])).id
        listed = await client.conversations.items.with_raw_response.list(id)

    body = listed.http_response.json()
    ConversationItemList.model_validate(body, strict=True)
    assert body["data"] == [] and body["has_more"] is False


async def test_id_that_is_no_string_is_refused() -> None:
    backend = Scripted(HELLO)
    async with talking(backend) as client:
        odd: Any = [{"type": "vendor:thing", "id": ["odd"], "encrypted_content": 5}, user("Hi.")]
        id = (await client.conversations.create(items=odd)).id
        await client.responses.create(model="m", input=odd, conversation=id)
        await client.conversations.items.create(id, items=odd)
        assert all([isinstance(item.id, str) async for item in client.conversations.items.list(id)])
        first = await client.responses.create(model="m", input=odd)
        await client.responses.create(model="m", input=odd, previous_response_id=first.id)

    assert model_texts(backend) == ["Hi.", "Hello.", "Hi."]


async def test_agents_session_pops_its_last_item_and_begins_anew() -> None:
    async with talking() as client:
        id = (await client.conversations.create(items=[user("One."), user("Two.")])).id
        newest = await client.conversations.items.list(id, limit=1, order="desc")
        await client.conversations.items.delete(newest.data[0].id or "", conversation_id=id)
        await client.conversations.items.create(id, items=[user("Three.")])

        assert await texts(client, id) == ["One.", "Three."]


# Responses in it.


async def test_response_with_conversation_reads_it_and_adds_to_it() -> None:
    backend = Scripted(HELLO)
    async with talking(backend) as client:
        id = (await client.conversations.create(items=[user("My name is Ada.")])).id
        first = await client.responses.create(model="m", input="Who am I?", conversation=id)
        second = await client.responses.create(model="m", input="Really?", conversation={"id": id})
        items = await client.conversations.items.list(id, order="asc")

        assert model_texts(backend) == ["My name is Ada.", "Who am I?", "Hello.", "Really?"]
        assert first.conversation and second.conversation and first.conversation.id == second.conversation.id == id
        assert await texts(client, id) == ["My name is Ada.", "Who am I?", "Hello.", "Really?", "Hello."]
        assert first.output[0].id == items.data[2].id
        for item in items.data:
            ITEM.validate_python(item.model_dump())


async def test_streamed_response_is_in_the_conversation_at_its_terminal_event() -> None:
    async with talking(Scripted(HELLO)) as client:
        id = (await client.conversations.create()).id
        async with client.responses.stream(model="m", input="Hi.", conversation=id) as stream:
            at_the_end = [
                (await texts(client, id), event.response.conversation)
                async for event in stream
                if event.type == "response.completed"
            ]
    ((stored_texts, conversation),) = at_the_end
    assert stored_texts == ["Hi.", "Hello."]
    assert conversation and conversation.id == id


async def test_background_response_is_in_the_conversation_when_it_has_ended() -> None:
    async with talking(Scripted(HELLO)) as client:
        id = (await client.conversations.create()).id
        response = await client.responses.create(model="m", input="Hi.", conversation=id, background=True)
        while response.status not in ("completed", "failed"):
            await asyncio.sleep(0.02)
            response = await client.responses.retrieve(response.id)

        assert await texts(client, id) == ["Hi.", "Hello."]


async def test_websocket_response_is_in_the_conversation() -> None:
    async with listening(Scripted(HELLO)) as url, client_of(url) as client:
        id = (await client.conversations.create()).id
        async with dial(url, additional_headers={"authorization": "Bearer alice"}) as socket:
            events = await ask(socket, input="Hi.", conversation=id)

        assert events[-1]["response"]["conversation"] == {"id": id}
        assert await texts(client, id) == ["Hi.", "Hello."]


async def test_call_and_its_output_of_two_turns_are_joined() -> None:
    backend = Scripted([call(0, "c1", "look", "{}"), finish("tool_calls")], HELLO)
    tools: Any = [{"type": "function", "name": "look", "parameters": {}}]
    async with talking(backend) as client:
        id = (await client.conversations.create()).id
        await client.responses.create(model="m", input="Look.", conversation=id, tools=tools)
        output: Any = [{"type": "function_call_output", "call_id": "c1", "output": "A cat."}]
        await client.responses.create(model="m", input=output, conversation=id, tools=tools)
        types = [item.type async for item in client.conversations.items.list(id, order="asc")]

    assert [message["role"] for message in backend.received[-1]["messages"]] == ["user", "assistant", "tool"]
    assert types == ["message", "function_call", "function_call_output", "message"]


async def test_turns_at_the_same_time_lose_no_item() -> None:
    async with talking() as client:
        id = (await client.conversations.create()).id
        await asyncio.gather(
            *(client.responses.create(model="demo", input=f"Say {n}.", conversation=id) for n in range(8)),
            *(client.conversations.items.create(id, items=[user(f"Note {n}.")]) for n in range(8)),
        )
        everything = await texts(client, id)

    assert {f"Say {n}." for n in range(8)} | {f"Note {n}." for n in range(8)} <= set(everything)
    assert len(everything) == 8 * 2 + 8
    for n in range(8):  # a turn's two items stay together
        assert everything[everything.index(f"Say {n}.") + 1] not in {f"Note {n}." for n in range(8)}


async def test_failed_response_adds_nothing_and_incomplete_one_is_added() -> None:
    backend = Scripted([BackendError("No.", status=503)], [delta(content="Hel"), finish("length")])
    async with talking(backend) as client:
        id = (await client.conversations.create()).id
        with pytest.raises(openai.InternalServerError):
            await client.responses.create(model="m", input="Hi.", conversation=id)
        assert await texts(client, id) == []
        cut = await client.responses.create(model="m", input="Hi again.", conversation=id)

        assert cut.status == "incomplete"
        assert await texts(client, id) == ["Hi again.", "Hel"]


async def test_response_with_store_false_is_not_added_with_a_warning() -> None:
    backend = Scripted(HELLO)
    async with talking(backend) as client:
        id = (await client.conversations.create(items=[user("One.")])).id
        raw = await client.responses.with_raw_response.create(model="m", input="Two.", conversation=id, store=False)

        assert model_texts(backend) == ["One.", "Two."]
        assert "not added to the conversation" in raw.headers["x-antiphon-warning"]
        assert await texts(client, id) == ["One."]


async def test_item_of_the_conversation_in_the_input_is_not_sent_twice() -> None:
    backend = Scripted(HELLO)
    async with talking(backend) as client:
        made = await client.conversations.create(items=[user("One.")])
        [one] = (await client.conversations.items.list(made.id)).data
        again: Any = [one.model_dump(exclude_unset=True), user("Two.")]
        await client.responses.create(model="m", input=again, conversation=made.id)

        assert model_texts(backend) == ["One.", "Two."]
        assert await texts(client, made.id) == ["One.", "Two.", "Hello."]


async def test_item_of_the_conversation_can_be_referenced() -> None:
    backend = Scripted(HELLO)
    async with talking(backend) as client:
        made = await client.conversations.create(items=[user("One.")])
        [one] = (await client.conversations.items.list(made.id)).data
        reference: Any = [{"type": "item_reference", "id": one.id}, user("Two.")]
        await client.responses.create(model="m", input=reference, conversation=made.id)

        assert model_texts(backend) == ["One.", "Two."]


async def test_item_that_was_deleted_is_not_sent_to_the_model() -> None:
    backend = Scripted(HELLO)
    async with talking(backend) as client:
        id = (await client.conversations.create(items=[user("A secret."), user("No secret.")])).id
        [secret, _] = (await client.conversations.items.list(id, order="asc")).data
        await client.conversations.items.delete(secret.id or "", conversation_id=id)
        await client.responses.create(model="m", input="Hi.", conversation=id)

    assert model_texts(backend) == ["No secret.", "Hi."]


async def test_response_of_a_conversation_can_be_continued_by_its_id() -> None:
    backend = Scripted(HELLO)
    async with talking(backend) as client:
        id = (await client.conversations.create(items=[user("One.")])).id
        first = await client.responses.create(model="m", input="Two.", conversation=id)
        await client.responses.create(model="m", input="Three.", conversation=id)
        fork = await client.responses.create(model="m", input="Four.", previous_response_id=first.id)

        assert model_texts(backend) == ["One.", "Two.", "Hello.", "Four."]
        assert await texts(client, id) == ["One.", "Two.", "Hello.", "Three.", "Hello."]
        assert fork.conversation is None

        await client.conversations.delete(id)
        with pytest.raises(openai.BadRequestError) as lost:
            await client.responses.create(model="m", input="Five.", previous_response_id=fork.id)
        assert lost.value.code == "previous_response_not_found"


async def test_response_without_model_has_that_of_the_conversation() -> None:
    backend = Scripted(HELLO)
    async with talking(backend) as client:
        id = (await client.conversations.create()).id
        await client.responses.create(model="first", input="Hi.", conversation=id)
        second = await client.responses.create(input="And?", conversation=id)

    assert second.model == "first"


async def test_conversation_with_previous_response_id_is_refused() -> None:
    async with talking(Scripted(HELLO)) as client:
        id = (await client.conversations.create()).id
        first = await client.responses.create(model="m", input="Hi.")
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(model="m", input="Hi.", conversation=id, previous_response_id=first.id)

    assert refused.value.code == "mutually_exclusive_parameters"
    assert "Mutually exclusive parameters" in refused.value.message


# Ownership.


async def test_conversation_of_another_owner_is_not_found() -> None:
    served = antiphon(Scripted(HELLO), api_keys="alice,bob")
    async with served as url, client_of(url) as alice, client_of(url, "bob") as bob:
        id = (await alice.conversations.create(items=[user("Mine.")])).id
        [item] = (await alice.conversations.items.list(id)).data
        unknown = f"conv_{'0' * 40}"

        async def refusals(id: str) -> list[str]:
            found = []
            for attempt in (
                bob.conversations.retrieve(id),
                bob.conversations.update(id, metadata={}),
                bob.conversations.delete(id),
                bob.conversations.items.create(id, items=[user("Yours.")]),
                bob.conversations.items.list(id),
                bob.conversations.items.retrieve(item.id or "", conversation_id=id),
                bob.conversations.items.delete(item.id or "", conversation_id=id),
                bob.responses.create(model="m", input="Hi.", conversation=id),
            ):
                with pytest.raises(openai.NotFoundError) as refused:
                    await attempt
                found.append(str(refused.value).replace(id, "ID"))
            return found

        assert await refusals(id) == await refusals(unknown)
        assert set(await refusals("conv_nonsense")) == set(await refusals(id))
        assert await texts(alice, id) == ["Mine."]


async def test_conversation_id_as_response_id_is_not_found() -> None:
    async with talking(Scripted(HELLO)) as client:
        id = (await client.conversations.create(items=[user("One.")])).id
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(id)
        with pytest.raises(openai.BadRequestError):
            await client.responses.create(model="m", input="Hi.", previous_response_id=id)


async def test_conversations_are_in_the_store_of_responses(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    async with talking(Scripted(HELLO), store_url=url) as client:
        id = (await client.conversations.create(items=[user("One.")])).id
        await client.responses.create(model="m", input="Two.", conversation=id)
    async with talking(Scripted(HELLO), store_url=url) as client:
        assert await texts(client, id) == ["One.", "Two.", "Hello."]


async def test_store_that_is_full_fails_the_turn() -> None:
    store = MemoryStore(ttl=60, max_records=4)
    async with antiphon(Scripted(HELLO), store) as url, client_of(url) as client:
        id = (await client.conversations.create(items=[user("One.")])).id
        await client.conversations.items.create(id, items=[user("Two.")])
        await client.conversations.items.create(id, items=[user("Three.")])
        with pytest.raises(openai.InternalServerError):
            await client.conversations.items.create(id, items=[user("Four.")])


async def test_stream_that_breaks_off_adds_nothing_to_the_conversation() -> None:
    backend = Scripted([delta(content="Hel"), BackendError("Gone.", status=502)], HELLO)
    async with talking(backend) as client:
        id = (await client.conversations.create()).id
        broken = await client.responses.create(model="m", input="Hi.", conversation=id)
        assert broken.status == "failed"
        await client.responses.create(model="m", input="Hi again.", conversation=id)

        assert model_texts(backend) == ["Hi again."]
        assert await texts(client, id) == ["Hi again.", "Hello."]


async def test_items_added_while_the_clock_goes_back_stay_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    backwards = itertools.count(time.time_ns(), -1)
    monkeypatch.setattr(time, "time_ns", lambda: next(backwards))
    async with talking() as client:
        id = (await client.conversations.create(items=[user("1")])).id
        for number in "2345":
            await client.conversations.items.create(id, items=[user(number)])

        assert await texts(client, id) == [*"12345"]


async def test_response_that_was_stored_twice_is_listed_once() -> None:
    """A client without confirmation stores again."""
    store = MemoryStore(ttl=60)
    conversations = Conversations(store, ContentCipher(["a secret"]), StorageQuota(store))
    id = (await conversations.create("alice"))["id"]
    item = {"type": "message", "id": "msg_1", "role": "user", "content": []}
    turn = Turn({"id": "resp_1", "model": "m", "status": "completed", "output": []}, [item], {})
    for _ in range(2):
        request = CreateResponse(model="m", input="Hi.", conversation=id)
        assert await store.apply(*conversations.addition(request, "alice", turn))

    assert (await conversations.items(id, "alice"))[0] == [item]
