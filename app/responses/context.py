"""
What a request is about: the conversation so far, wherever it was kept, and what the request adds to it.

It may be kept in the store, in the memory of a connection, in a conversation, or by the client, sealed or in the open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from app.core.history import rewrites
from app.core.history import turns as history
from app.core.history.approvals import (
    APPROVAL_REQUEST,
    APPROVAL_RESPONSE,
    ApprovedCall,
    answers_approvals,
    find_approvals,
)
from app.core.history.turns import Turn
from app.core.stream.event_builder import Upstream
from app.core.types import with_fields
from app.core.types.ids import bucket_of, chain_key, new_key
from app.core.types.items import type_of
from app.core.types.request import TERMINAL, CreateResponse, Item
from app.errors import InvalidRequest, NotFound, PreviousResponseNotFound, StoreUnavailable, Warnings
from app.responses.compaction import is_compaction, without_compacted
from app.responses.conversations import Conversations, before
from app.responses.encryption import ContentCipher, decrypt_items
from app.stores import Store


@dataclass(frozen=True, slots=True)
class Context:
    """The conversation that a response is to continue."""

    key: str  # of the chain that the response will be in
    model: str | None  # that answered last
    items: list[Item]  # what the model is told, oldest first
    new: list[Item]  # what the request adds
    upstream: dict[str, Upstream]  # what the backend really said, by the id of the item
    brought: dict[str, Upstream]  # the part of it that came with the request, sealed
    compacts: bool  # is a summary wanted, in place of an answer?
    warnings: Warnings
    approvals: Sequence[ApprovedCall] = ()  # the calls that the request approves


class InputFileSource(Protocol):
    """The uploaded files that parts of items may name."""

    async def resolve(self, items: Sequence[Item], new: Sequence[Item], owner: str, warnings: Warnings) -> list[Item]:
        """Return `items` with the files in place of their names; raises `InvalidRequest` for those of `new` items."""
        ...


@dataclass(frozen=True, slots=True)
class ContextLoader:
    """The places where a conversation may have been kept, of all callers."""

    store: Store
    conversations: Conversations
    seals: ContentCipher
    files: InputFileSource | None = None

    async def context(self, request: CreateResponse, owner: str, memory: Store | None = None) -> Context:
        """
        Put together what a request is about; `memory` is what its connection remembers.

        Raises `InvalidRequest` and its kinds, with the field at fault, and `StoreUnavailable` if the store is needed
        and away.
        """
        search = _TurnLookup(self.store, memory, owner)
        turns = await self._turns(request, owner, search)
        upstream = {id: said for turn in turns for id, said in turn.upstream.items()}
        said = [item for turn in turns for item in turn.items]
        key = chain_key(request.conversation or request.previous_response_id or "") or new_key()
        known = {item["id"]: item for item in said if isinstance(item.get("id"), str)}
        new = await search.resolved(request.items(), known, upstream)
        warnings = Warnings()
        new, brought = decrypt_items(new, self.seals, owner, key=key, known=upstream, warnings=warnings)
        approvals: list[ApprovedCall] = []
        if answers_approvals(new):
            new = await search.with_stored_requests(new, known, upstream)
            approvals = find_approvals(said, new, upstream, await search.around(new))
        if request.conversation:
            new = [item for item in new if str(item.get("id")) not in known]
            if not request.store:
                warnings.add("This turn is not added to the conversation, since it is not to be stored.")
        if request.store and any(turn.response.get("store") is False for turn in turns):
            warnings.add("This response continues from one that is not stored: only this connection can go on.")
        if turns:
            history.check_outputs(said, new)
            new = rewrites.drop_repeated_prompt(said, new, warnings)
        context = await self._context(turns, new, upstream, brought, owner, key, warnings)
        return replace(context, approvals=approvals) if approvals else context

    async def stored(self, response_id: str, owner: str) -> tuple[list[Turn], Context]:
        """
        Return the turns up to a stored response, oldest first, and what its request was about.

        Raises `NotFound`, also where an earlier turn is not there any more.
        """
        turns = await _TurnLookup(self.store, None, owner).path(response_id)
        if turns is None:
            raise NotFound(f"Response with id '{response_id}' not found.", param="response_id")
        try:
            turns = [*await self._conversation_before(turns[0], owner, response_id), *turns]
        except PreviousResponseNotFound:
            message = f"The conversation that response '{response_id}' was made in is not there any more."
            raise NotFound(message, param="response_id") from None
        *earlier, turn = turns
        upstream = {id: said for each in turns for id, said in each.upstream.items()}
        key = chain_key(response_id) or ""
        return turns, await self._context(earlier, turn.input, upstream, {}, owner, key, Warnings())

    async def _context(
        self,
        turns: Sequence[Turn],
        new: list[Item],
        upstream: dict[str, Upstream],
        brought: dict[str, Upstream],
        owner: str,
        key: str,
        warnings: Warnings,
    ) -> Context:
        """Return the context of new items that continue some turns."""
        said = [item for turn in turns for item in turn.items]
        compacts = is_compaction(new)
        if compacts:
            new = new[:-1]
            if not said and not new:
                raise InvalidRequest("There is nothing to compact: send `input` or continue a response.", param="input")
        items = without_compacted(rewrites.rewrite_items([*said, *new], warnings))
        if self.files:
            items = await self.files.resolve(items, new, owner, warnings)
        return Context(
            key=key,
            model=next((turn.response["model"] for turn in reversed(turns) if "model" in turn.response), None),
            items=items,
            new=new,
            upstream=upstream | brought,
            brought=brought,
            compacts=compacts,
            warnings=warnings,
        )

    async def _turns(self, request: CreateResponse, owner: str, search: _TurnLookup) -> list[Turn]:
        """Return the turns that the request continues from, oldest first."""
        previous, conversation = request.previous_response_id, request.conversation
        if previous and conversation:
            raise InvalidRequest(
                "Mutually exclusive parameters: give either 'previous_response_id' or 'conversation', not both.",
                param="previous_response_id",
                code="mutually_exclusive_parameters",
            )
        if conversation:
            if not conversation.startswith("conv_"):
                message = f"Invalid 'conversation': '{conversation}'. Expected an ID that begins with 'conv_'."
                raise InvalidRequest(message, param="conversation", code="invalid_value")
            return await self.conversations.turns(conversation, owner, param="conversation")
        if request.store and (previous is None or search.memory is not None):
            await self.store.check()
        if previous is None:
            return []
        turns = await search.path(previous)
        if turns is None:
            raise PreviousResponseNotFound(previous)
        if turns[-1].response["status"] not in TERMINAL:
            message = f"Response '{previous}' has not ended yet. Continue from it when it has."
            raise InvalidRequest(message, param="previous_response_id")
        return [*await self._conversation_before(turns[0], owner, previous), *turns]

    async def _conversation_before(self, turn: Turn, owner: str, previous: str) -> list[Turn]:
        """Return what a turn was answered to, if it was in a conversation: the chain begins there."""
        if not (conversation := turn.response.get("conversation")):
            return []
        try:
            return before(await self.conversations.turns(conversation["id"], owner), turn.response["id"])
        except NotFound:
            raise PreviousResponseNotFound(previous) from None  # half of what was said would be a lie


class _TurnLookup:
    """Finds turns and items of one caller; what a connection remembers is found without a store."""

    def __init__(self, store: Store, memory: Store | None, owner: str) -> None:
        self.memory = memory
        self._store = store
        self._owner = owner

    async def path(self, response_id: str) -> list[Turn] | None:
        """Return the turns up to a response, oldest first, or None if not all of them are there."""
        if (bucket := bucket_of(self._owner, response_id)) is None:
            return None
        if self.memory is not None:
            turns = history.path(await self.memory.all(bucket), response_id)
            if turns is not None:
                return turns
        return history.path(await self._all(bucket), response_id)

    async def resolved(self, items: list[Item], known: Mapping[str, Item], upstream: dict[str, Upstream]) -> list[Item]:
        """Put the items that are meant in the place of references to them, and note what the backend said for them."""
        buckets: dict[str, Mapping[str, bytes]] = {}
        resolved = []
        for index, item in enumerate(items):
            if item["type"] == "item_reference" and item["id"] in known:
                item = known[item["id"]]
            elif item["type"] == "item_reference":
                found = await self._find(item["id"], buckets)
                if found is None:
                    raise NotFound(f"Item with id '{item['id']}' not found.", param=f"input[{index}].id")
                item, upstream[item["id"]] = found
            elif (row := type_of(item)) and row.hosted and isinstance(item.get("id"), str):
                item = await self._completed(item, upstream, buckets)
            resolved.append(item)
        return resolved

    async def _completed(
        self, item: Item, upstream: dict[str, Upstream], buckets: dict[str, Mapping[str, bytes]]
    ) -> Item:
        """
        Return an item of a hosted tool as it was stored, if it was, with what its client has sent of it.

        Clients leave results out, since OpenAI has them; and what the model was shown is in no item at all.
        """
        if item["id"] in upstream:
            return item
        with suppress(StoreUnavailable):
            found = await self._find(item["id"], buckets)
            if found and found[0]["type"] == item["type"]:
                stored, upstream[item["id"]] = found
                return with_fields(stored, {name: value for name, value in item.items() if value is not None})
        return item

    async def _find(self, id: str, buckets: dict[str, Mapping[str, bytes]]) -> tuple[Item, Upstream] | None:
        """Return a stored item, with what the backend said for it; `buckets` has what was read already."""
        if (bucket := bucket_of(self._owner, id)) is None:
            return None
        if bucket not in buckets:
            buckets[bucket] = await self._all(bucket)
        return history.find_item(buckets[bucket].values(), id)

    async def with_stored_requests(
        self, items: list[Item], known: Mapping[str, Item], upstream: dict[str, Upstream]
    ) -> list[Item]:
        """Put requests for approval as they were stored in the place of a client's copies of them."""
        return [found[0] if (found := await self._stored_request(item, known, upstream)) else item for item in items]

    async def _stored_request(
        self, item: Item, known: Mapping[str, Item], upstream: dict[str, Upstream]
    ) -> tuple[Item, Upstream] | None:
        id = item.get("id")
        if (
            item["type"] != APPROVAL_REQUEST
            or not isinstance(id, str)
            or id in known
            or not (bucket := bucket_of(self._owner, id))
        ):
            return None
        found = history.find_item((await self._all(bucket)).values(), str(id))
        if found:
            upstream[str(id)] = found[1]
        return found

    async def around(self, items: Sequence[Item]) -> list[Turn]:
        """Return all turns of the chains whose requests for approval the items answer, siblings too."""
        ids = [str(item.get("approval_request_id")) for item in items if item["type"] == APPROVAL_RESPONSE]
        buckets = dict.fromkeys(bucket for id in ids if (bucket := bucket_of(self._owner, id)))
        return [Turn.of(record) for bucket in buckets for record in (await self._all(bucket)).values()]

    async def _all(self, bucket: str) -> dict[str, bytes]:
        records = await self._store.all(bucket)
        return records if self.memory is None else {**records, **await self.memory.all(bucket)}
