"""
Conversations: stored item lists that responses read and extend.

A partition has a record for the conversation object, a record per addition, named in sort order, and a tombstone per
deleted item. Additions never overwrite each other, so concurrent turns lose nothing. They require the conversation
object: after its deletion, a turn stores nothing.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence

import orjson

from app.core.access import UNRESTRICTED, KeyAccess
from app.core.history.turns import Turn, find_item, image_references, input_item, without_images
from app.core.ids import chain_key, new_id, new_key, partition_of
from app.core.items import ITEM_TYPES
from app.core.redaction import ToolSecrets
from app.core.stream.event_builder import Upstream
from app.core.types.request import CreateResponse, Item, Response
from app.errors import InvalidRequest, NotFound, Warnings
from app.responses.encryption import ContentCipher, decrypt_items
from app.responses.images import StoredImages, turn_changes
from app.responses.quota import StorageQuota
from app.runtime.threads import read_records, run_in_thread_if_large
from app.stores import Change, Store, images_partition

_CONVERSATION = "conversation"
_ADDED = "added_"
_DELETED = "deleted_"


class Conversations:
    """Conversations are visible only to their owner. Unknown ids raise `NotFound`."""

    def __init__(self, store: Store, cipher: ContentCipher, quota: StorageQuota) -> None:
        self._store = store
        self._quota = quota
        self._cipher = cipher
        self._latest = 0

    async def create(
        self,
        owner: str,
        items: Sequence[Item] = (),
        metadata: Mapping[str, str] | None = None,
        access: KeyAccess = UNRESTRICTED,
    ) -> dict[str, object]:
        conversation_id = new_id("conv", new_key())
        conversation = {
            "id": conversation_id,
            "object": "conversation",
            "created_at": int(time.time()),
            "metadata": dict(metadata or {}),
        }
        turn = await self._new_turn(conversation_id, owner, items, {})
        changes = [Change(_partition(conversation_id, owner), {_CONVERSATION: orjson.dumps(conversation)})]
        if turn.input:
            addition, *images = self._added(changes[0].partition, turn)
            changes = [addition._replace(put={**changes[0].put, **addition.put}, requires=None), *images]
        await self._quota.apply(access, *changes)
        return conversation

    async def retrieve(self, conversation_id: str, owner: str) -> dict[str, object]:
        record = await self._store.get(_partition(conversation_id, owner), _CONVERSATION)
        if record is None:
            raise _not_found(conversation_id)
        conversation: dict[str, object] = orjson.loads(record)
        return conversation

    async def update(self, conversation_id: str, owner: str, metadata: Mapping[str, str]) -> dict[str, object]:
        changed = {**await self.retrieve(conversation_id, owner), "metadata": dict(metadata)}
        await self._put(conversation_id, owner, _CONVERSATION, orjson.dumps(changed))
        return changed

    async def delete(self, conversation_id: str, owner: str) -> None:
        """Also deletes its items; responses stay."""
        partition = _partition(conversation_id, owner)
        dropped = await self._store.delete_partition(partition)
        await self._store.delete_partition(images_partition(partition))  # no addition can follow now
        if not dropped:
            raise _not_found(conversation_id)

    async def turns(self, conversation_id: str, owner: str, *, param: str | None = None) -> list[Turn]:
        """The additions, oldest first, without images; items are in `input` or `response["output"]`."""
        records = await self._store.all(_partition(conversation_id, owner, param))
        if _CONVERSATION not in records:
            raise _not_found(conversation_id, param)
        return await _turns(records)

    async def items(self, conversation_id: str, owner: str) -> tuple[list[Item], StoredImages]:
        """The items, oldest first, without images, and the images separately."""
        turns = await self.turns(conversation_id, owner)
        images = {item_id: image for turn in turns for item_id, image in image_references(turn).items()}
        return [item for turn in turns for item in turn.items], StoredImages(self._store, owner, images)

    async def item(self, conversation_id: str, item_id: str, owner: str) -> Item:
        for turn in await self.turns(conversation_id, owner):
            for item in turn.items:
                if item["id"] == item_id:
                    return await StoredImages(self._store, owner, image_references(turn)).add_to(item)
        raise NotFound(f"Item with id '{item_id}' not found in conversation '{conversation_id}'.", param="item_id")

    async def add(
        self, conversation_id: str, owner: str, items: Sequence[Item], access: KeyAccess = UNRESTRICTED
    ) -> list[Item]:
        """
        Append items; return them in the API's list form.

        An id stored elsewhere inserts that item. Raises `InvalidRequest`, also for items already in the conversation,
        and `TooManyRequests`.
        """
        records = await self._store.all(_partition(conversation_id, owner))
        if _CONVERSATION not in records:
            raise _not_found(conversation_id)
        turn = await self._new_turn(conversation_id, owner, items, records)
        if turn.input and not await self._quota.apply(access, *self._added(_partition(conversation_id, owner), turn)):
            raise _not_found(conversation_id)
        return turn.input

    def addition(self, request: CreateResponse, owner: str, turn: Turn) -> list[Change]:
        """
        The changes that add a response to its conversation, if any.

        Only stored, `completed` or `incomplete` responses are added, and only to an existing conversation.
        """
        response = turn.response
        if not (request.conversation and request.store and response["status"] in ("completed", "incomplete")):
            return []
        shortened: Response = {"id": response["id"], "model": response["model"], "output": response["output"]}
        return self._added(_partition(request.conversation, owner), turn._replace(response=shortened))

    async def delete_item(self, conversation_id: str, item_id: str, owner: str) -> dict[str, object]:
        conversation = await self.retrieve(conversation_id, owner)
        await self.item(conversation_id, item_id, owner)
        partition = _partition(conversation_id, owner)
        await self._put(conversation_id, owner, f"{_DELETED}{item_id}", b"1")
        rewriting = True
        while rewriting:  # repeat after another process's rewrite
            records = await self._store.all(partition)
            changes = [await self._rewritten(partition, name, record, item_id) for name, record in records.items()]
            rewriting = not all([await self._store.apply(*change) for change in changes if change])
        return conversation

    async def _new_turn(
        self, conversation_id: str, owner: str, items: Sequence[Item], records: Mapping[str, bytes]
    ) -> Turn:
        key = chain_key(conversation_id) or ""
        present = {item["id"] for turn in await _turns(records) for item in turn.items}
        deleted = {name.removeprefix(_DELETED) for name in records if name.startswith(_DELETED)}
        new: list[Item] = []
        upstream: dict[str, Upstream] = {}
        for index, item in enumerate(ToolSecrets().redact_items(items)):
            check_id(item, f"items[{index}].id")
            if item.get("id") in present:
                message = f"Item with id '{item['id']}' is already in the conversation."
                raise InvalidRequest(message, param="items", code="item_already_in_conversation")
            if match := await self._stored(item, owner):
                item, upstream[item["id"]] = match
            elif item["type"] == "item_reference":
                raise NotFound(f"Item with id '{item['id']}' not found.", param=f"items[{index}].id")
            elif item.get("id") in deleted:  # a tombstone would hide the item
                item = {**item, "id": None}
            new.append(input_item(item, key))
            present.add(new[-1]["id"])
        warnings = Warnings()
        new, decrypted = await run_in_thread_if_large(
            decrypt_items, new, self._cipher, owner, key=key, known=upstream, warnings=warnings, field="items"
        )
        return Turn({"id": new_id("added", key), "output": []}, new, upstream | decrypted)

    async def _stored(self, item: Item, owner: str) -> tuple[Item, Upstream] | None:
        """The owner's stored item with the same id, if any."""
        if (item_id := item.get("id")) is None or (key := chain_key(item_id)) is None:
            return None
        turns = await _turns(await self._store.all(f"{owner}:{key}:conversation"))
        found = next(((item, turn) for turn in turns for item in turn.items if item["id"] == item_id), None)
        if found is None:
            records = (await self._store.all(f"{owner}:{key}")).values()
            found = await read_records(records, find_item, records, item_id)
        if found is None:
            return None
        stored, turn = found
        images = StoredImages(self._store, owner, image_references(turn))
        return await images.add_to(stored), turn.upstream.get(item_id, {})

    def _added(self, partition: str, turn: Turn) -> list[Change]:
        # Clocks can stop or go back; this process's additions stay in order.
        self._latest = max(time.time_ns(), self._latest + 1)
        name = f"{_ADDED}{self._latest:016x}_{secrets.token_hex(4)}"
        return turn_changes(partition, turn, name=name, requires=_CONVERSATION, listed=False)

    async def _rewritten(self, partition: str, name: str, record: bytes, item_id: str) -> list[Change]:
        """
        The changes that remove an item from its record.

        The new record keeps its position under a new name: of concurrent rewrites, only the first applies.
        """
        if not name.startswith(_ADDED) or item_id.encode() not in record:
            return []
        turn = await read_records([record], Turn.of, record)
        remaining = _without(turn, {item_id})
        if remaining == turn:
            return []  # the record only mentions the id
        rewritten = f"{name.rpartition('_')[0]}_{secrets.token_hex(4)}"
        put = {rewritten: remaining.record()} if remaining.items else {}
        changes = [Change(partition, put, delete=[name], requires=name)]
        if item_id in (turn.images or {}):
            images, response_id = images_partition(partition), turn.response["id"]
            kept = without_images(await self._store.get(images, response_id), {item_id})
            changes.append(Change(images, {response_id: kept} if kept else {}, delete=[] if kept else [response_id]))
        return changes

    async def _put(self, conversation_id: str, owner: str, name: str, record: bytes) -> None:
        """Raises `NotFound` if the conversation was deleted meanwhile."""
        if not await self._store.apply(
            Change(_partition(conversation_id, owner), {name: record}, requires=_CONVERSATION)
        ):
            raise _not_found(conversation_id)


async def _turns(records: Mapping[str, bytes]) -> list[Turn]:
    return await read_records(records.values(), lambda: [*_remaining_turns(records)])


def _remaining_turns(records: Mapping[str, bytes]) -> Iterator[Turn]:
    deleted = {name.removeprefix(_DELETED) for name in records if name.startswith(_DELETED)}
    seen = set()
    for name in sorted(name for name in records if name.startswith(_ADDED)):
        turn = Turn.of(records[name])
        if turn.response["id"] not in seen:  # a retry can store a response twice
            yield _without(turn, deleted)
        seen.add(turn.response["id"])


def _without(turn: Turn, deleted: set[str]) -> Turn:
    if not deleted:
        return turn
    output = [item for item in turn.response["output"] if item["id"] not in deleted]
    return Turn(
        {**turn.response, "output": output},
        [item for item in turn.input if item["id"] not in deleted],
        {item_id: fields for item_id, fields in turn.upstream.items() if item_id not in deleted},
        images=turn.images and {item_id: part for item_id, part in turn.images.items() if item_id not in deleted},
    )


def check_id(item: Item, param: str) -> None:
    """Raise `InvalidRequest` for an id with a wrong prefix."""
    type_ = ITEM_TYPES.get(item["type"])
    if (item_id := item.get("id")) and type_ and type_.role != "output" and not item_id.startswith(type_.prefix):
        message = f"Invalid '{param}': '{item_id}'. Expected an ID that begins with '{type_.prefix}'."
        raise InvalidRequest(message, param=param, code="invalid_value")


def _partition(conversation_id: str, owner: str, param: str | None = None) -> str:
    partition = partition_of(owner, conversation_id, "conversation") if conversation_id.startswith("conv_") else None
    if partition is None:
        raise _not_found(conversation_id, param)
    return partition


def _not_found(conversation_id: str, param: str | None = None) -> NotFound:
    return NotFound(f"Conversation with id '{conversation_id}' not found.", param=param or "conversation_id")
