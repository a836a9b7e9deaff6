"""
Load a request's conversation: earlier turns, referenced items and files.

Turns come from the store, a connection's memory or a conversation object; `app.core.history.context` converts them to
the model's input.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from app.core.bounded_json import size_of
from app.core.history import turns as history
from app.core.history.approvals import APPROVAL_REQUEST, APPROVAL_RESPONSE, find_decisions, has_approval_responses
from app.core.history.context import NewInput, Past, RequestContext, are_messages, continue_past, first_context, join
from app.core.history.turns import Turn, image_references
from app.core.ids import chain_key, new_key, partition_of
from app.core.items import type_of
from app.core.stream.event_builder import Upstream
from app.core.types import with_fields
from app.core.types.request import TERMINAL, CreateResponse, Item
from app.errors import InvalidRequest, NotFound, PreviousResponseNotFound, StoreUnavailable, Warnings
from app.responses.conversations import Conversations
from app.responses.encryption import ContentCipher, decrypt_items
from app.responses.images import StoredImages
from app.runtime.threads import add_to_request, read_records, run_in_thread_if_large
from app.stores import LayeredStore
from app.tools import InputFiles


@dataclass(frozen=True, slots=True)
class ContextLoader:
    conversations: Conversations
    cipher: ContentCipher
    cache: HistoryCache
    files: InputFiles | None = None

    async def context(self, request: CreateResponse, owner: str, layers: LayeredStore) -> RequestContext:
        """
        A request's conversation, with earlier turns from `layers`.

        Raises `InvalidRequest` with the field's name, and `StoreUnavailable`.
        """
        items = request.items()
        plain = are_messages(items)
        if plain and request.previous_response_id is None and not request.conversation:
            if request.store:
                await layers.store.check()
            context = first_context(items, new_key())
        else:
            lookup = TurnLookup(layers, owner)
            past = await self._past(request, lookup)
            key = chain_key(request.conversation or request.previous_response_id or "") or new_key()
            new_input = NewInput(items, past.upstream) if plain else await self._input(items, past, lookup, key)
            context = continue_past(past, new_input, request, key)
        return await _with_files(self.files, context, owner) if self.files else context

    async def cache_turn(self, owner: str, turn: Turn, record: bytes) -> None:
        """Cache a stored turn if its earlier turns are cached."""
        previous = turn.response["previous_response_id"]
        if previous and (base := self.cache.get(owner, previous)) and turn.response["status"] in TERMINAL:
            stored = await read_records([record], Turn.of, record)
            self.cache.put(owner, past_after([stored], base))

    async def stored(self, response_id: str, owner: str, layers: LayeredStore) -> tuple[list[Turn], RequestContext]:
        """
        The turns up to a stored response, oldest first, and its request's context.

        Raises `NotFound`, also for a missing earlier turn.
        """
        lookup = TurnLookup(layers, owner)
        turns, _ = await lookup.path(response_id)
        if turns is None:
            raise NotFound(f"Response with id '{response_id}' not found.", param="response_id")
        try:
            turns = [*await self._conversation_before(turns[0], owner, response_id), *turns]
        except PreviousResponseNotFound:
            message = f"Conversation of response '{response_id}' not found: it was deleted or has expired."
            raise NotFound(message, param="response_id") from None
        *earlier, turn = turns
        past = Past.of(earlier)
        context = join(past, NewInput(turn.input, past.upstream | turn.upstream), chain_key(response_id) or "")
        return turns, await _with_files(self.files, context, owner) if self.files else context

    async def _past(self, request: CreateResponse, lookup: TurnLookup) -> Past:
        previous, conversation, owner = request.previous_response_id, request.conversation, lookup.owner
        if previous and conversation:
            raise InvalidRequest(
                "Mutually exclusive parameters: send either 'previous_response_id' or 'conversation', not both.",
                param="previous_response_id",
                code="mutually_exclusive_parameters",
            )
        if conversation:
            if not conversation.startswith("conv_"):
                message = f"Invalid 'conversation': '{conversation}'. Expected an ID that begins with 'conv_'."
                raise InvalidRequest(message, param="conversation", code="invalid_value")
            earlier = await self.conversations.turns(conversation, owner, param="conversation")
            return Past.of(earlier)
        if request.store and (previous is None or lookup.layers.memory is not None):
            await lookup.layers.store.check()
        if previous is None:
            return Past()
        if cached := await self._cached_past(previous, lookup):
            add_to_request(cached.size)
            return cached.past
        turns, base = await lookup.path(previous, self.cache)
        if turns is None:
            raise PreviousResponseNotFound(previous)
        if turns[-1].response["status"] not in TERMINAL:
            message = f"Response '{previous}' is still in progress. Continue it when it is complete."
            raise InvalidRequest(message, param="previous_response_id")
        is_unstored = (turn.response.get("store") is False for turn in turns)
        if not base and (turns[0].response.get("conversation") or any(is_unstored)):
            turns = [*await self._conversation_before(turns[0], owner, previous), *turns]
            return Past.of(turns)
        loaded = past_after(turns, base)
        self.cache.put(owner, loaded)
        self.cache.supersede(owner, loaded)
        return loaded.past

    async def _cached_past(self, response_id: str, lookup: TurnLookup) -> CachedPast | None:
        """A response's cached past, if all of it is still stored."""
        partition = partition_of(lookup.owner, response_id)
        cached = self.cache.get(lookup.owner, response_id)
        if partition is None or cached is None:
            return None
        if not (await lookup.layers.store.names(partition)).issuperset(cached.past.response_ids):
            self.cache.remove(lookup.owner, response_id)
            return None
        self.cache.supersede(lookup.owner, cached)
        return cached

    async def _conversation_before(self, turn: Turn, owner: str, previous: str) -> list[Turn]:
        """A conversation's turns before a chain's first turn."""
        if not (conversation := turn.response.get("conversation")):
            return []
        try:
            turns = await self.conversations.turns(conversation["id"], owner)
        except NotFound:
            raise PreviousResponseNotFound(previous) from None  # histories are never partial
        return [*itertools.takewhile(lambda each: each.response["id"] != turn.response["id"], turns)]

    async def _input(self, items: list[Item], past: Past, lookup: TurnLookup, key: str) -> NewInput:
        warnings = Warnings()
        upstream = {**past.upstream}
        new = await lookup.resolved(items, past, upstream)
        new, decrypted = await run_in_thread_if_large(
            decrypt_items, new, self.cipher, lookup.owner, key=key, known=upstream, warnings=warnings
        )
        if not has_approval_responses(new):
            return NewInput(new, upstream, decrypted, warnings)
        new = await lookup.with_stored_requests(new, past, upstream)
        approved, denied = find_decisions(past.items, new, upstream, await lookup.related(new))
        return NewInput(new, upstream, decrypted, warnings, approved, denied)


async def _with_files(files: InputFiles, context: RequestContext, owner: str) -> RequestContext:
    items = await files.resolve(context.items, context.new, owner, context.warnings)
    return replace(context, items=items)


_ITEMS = 1000  # input items before other requests are served
MAX_CHAINS = 256  # chains with approval requests, per request


class TurnLookup:
    """Finds a caller's turns and items, first in memory; reads each chain once per request."""

    def __init__(self, layers: LayeredStore, owner: str) -> None:
        self.layers = layers
        self.owner = owner
        self._partitions: dict[str, Mapping[str, bytes]] = {}

    async def path(
        self, response_id: str, cache: HistoryCache | None = None
    ) -> tuple[list[Turn] | None, CachedPast | None]:
        """
        The turns up to a response, oldest first, or None if a turn is missing.

        With a `cache`, the turns can continue a cached entry, which is also returned.
        """
        if (partition := partition_of(self.owner, response_id)) is None:
            return None, None
        records = await self.layers.all_in_memory(partition)
        if turns := await read_records(records.values(), history.path, records, response_id):
            return turns, None
        records = await self.layers.all(partition)
        is_cached = partial(cache.has, self.owner) if cache else None
        turns = await read_records(records.values(), history.path, records, response_id, is_cached)
        if turns is None:
            return None, None
        parent = turns[0].response["previous_response_id"] if turns else None
        base = cache.get(self.owner, parent) if cache and parent else None
        if base and records.keys() >= {*base.past.response_ids}:
            return turns, base
        if turns and not parent:
            return turns, None
        return await read_records(records.values(), history.path, records, response_id), None

    async def resolved(self, items: list[Item], past: Past, upstream: dict[str, Upstream]) -> list[Item]:
        """
        Replace references by their items; complete hosted tools' items.

        Adds the backend's fields to `upstream`. Raises `NotFound` with the field's name.
        """
        known = past.items_by_id() if any(item["type"] == "item_reference" for item in items) else {}
        resolved = []
        for index, item in enumerate(items):
            if index % _ITEMS == _ITEMS - 1:
                await asyncio.sleep(0)  # serves other requests
            if item["type"] == "item_reference" and item["id"] in known:
                item = await StoredImages(self.layers, self.owner, past.images).add_to(known[item["id"]])
            elif item["type"] == "item_reference":
                match = await self._find(item["id"])
                if match is None:
                    raise NotFound(f"Item with id '{item['id']}' not found.", param=f"input[{index}].id")
                item, upstream[item["id"]] = match
            elif (row := type_of(item)) and (row.hosted or row.has_notes) and isinstance(item.get("id"), str):
                item = await self._completed(item, upstream)
            resolved.append(item)
        return resolved

    async def _completed(self, item: Item, upstream: dict[str, Upstream]) -> Item:
        """
        A hosted tool's stored item, updated with the client's fields.

        Clients omit results, because OpenAI stores them; no item contains the model's version of a result.
        """
        if item["id"] in upstream:
            return item
        with suppress(StoreUnavailable):
            match = await self._find(item["id"])
            if match and match[0]["type"] == item["type"]:
                stored, upstream[item["id"]] = match
                return with_fields(stored, {name: value for name, value in item.items() if value is not None})
        return item

    async def _records(self, partition: str) -> Mapping[str, bytes]:
        if partition not in self._partitions:
            self._partitions[partition] = await self.layers.all(partition)
        return self._partitions[partition]

    async def _find(self, item_id: str) -> tuple[Item, Upstream] | None:
        if (partition := partition_of(self.owner, item_id)) is None:
            return None
        records = (await self._records(partition)).values()
        match = await read_records(records, history.find_item, records, item_id)
        if match is None:
            return None
        item, turn = match
        images = StoredImages(self.layers, self.owner, image_references(turn))
        return await images.add_to(item), turn.upstream.get(item_id, {})

    async def with_stored_requests(self, items: list[Item], past: Past, upstream: dict[str, Upstream]) -> list[Item]:
        """
        Replace a client's copies of approval requests by the stored requests.

        Raises `InvalidRequest` for more than `MAX_CHAINS` chains.
        """
        sent = (str(item.get("id")) for item in items if item["type"] == APPROVAL_REQUEST)
        if len({partition_of(self.owner, item_id) for item_id in (*sent, *_answered(items))}) > MAX_CHAINS:
            message = f"Invalid 'input': must contain approval requests from at most {MAX_CHAINS} conversations."
            raise InvalidRequest(message, param="input")
        known = past.items_by_id()
        resolved = []
        for item in items:
            item_id = str(item.get("id"))
            is_copy = item["type"] == APPROVAL_REQUEST and item_id not in known
            if is_copy and (match := await self._find(item_id)):
                item, upstream[item_id] = match
            resolved.append(item)
        return resolved

    async def related(self, items: Sequence[Item]) -> list[Turn]:
        """All turns in the answered approval requests' chains, including siblings."""
        answered = (partition_of(self.owner, item_id) for item_id in _answered(items))
        partitions = dict.fromkeys(partition for partition in answered if partition)
        records = [record for partition in partitions for record in (await self._records(partition)).values()]
        return await read_records(records, lambda: [*map(Turn.of, records)])


def _answered(items: Sequence[Item]) -> list[str]:
    return [str(item.get("approval_request_id")) for item in items if item["type"] == APPROVAL_RESPONSE]


HISTORY_CACHE = 64 * 1024 * 1024  # bytes

_TURN = 500  # estimated bytes per turn, without its items
MAX_AGE = 600.0  # seconds since the last use
_SHARE = 4  # an entry is at most 1/4 of the cache


@dataclass(slots=True)
class CachedPast:
    past: Past
    size: int  # bytes
    base: str | None = None  # response id of the extended entry
    used: float = 0.0


def past_after(turns: Sequence[Turn], base: CachedPast | None = None) -> CachedPast:
    """The last turn's entry, after `base`. The turns must not be modified later."""
    size = sum(_TURN + size_of([turn.input, turn.response["output"], turn.upstream]) for turn in turns)
    if base is None:
        return CachedPast(Past.of(turns), size)
    return CachedPast(base.past.extended(turns), base.size + size, base.past.response_ids[-1])


class HistoryCache:
    """
    Pasts by owner and response id, evicted by least recent use.

    `max_bytes` limits the measurable memory; 0 disables the cache.
    """

    def __init__(self, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.max_bytes = max_bytes
        self._clock = clock
        self._entries: OrderedDict[tuple[str, str], CachedPast] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def has(self, owner: str, response_id: str) -> bool:
        return (owner, response_id) in self._entries

    def get(self, owner: str, response_id: str) -> CachedPast | None:
        """The caller must check that `past.response_ids` are still stored."""
        if entry := self._entries.get((owner, response_id)):
            self._entries.move_to_end((owner, response_id))
            entry.used = self._clock()
        return entry

    def put(self, owner: str, entry: CachedPast) -> None:
        response_id = entry.past.response_ids[-1]
        self.remove(owner, response_id)
        if entry.size * _SHARE <= self.max_bytes:
            self._entries[owner, response_id] = entry
            entry.used = self._clock()
            self.bytes += entry.size
            while self.bytes > self.max_bytes:
                self.remove(*next(iter(self._entries)))

    def supersede(self, owner: str, entry: CachedPast) -> None:
        """Remove the entries that `entry` extends: the conversation continues from it."""
        base, entry.base = entry.base, None
        while base and (earlier := self._entries.get((owner, base))):
            self.remove(owner, base)
            base = earlier.base

    def remove(self, owner: str, response_id: str) -> None:
        if entry := self._entries.pop((owner, response_id), None):
            self.bytes -= entry.size

    def remove_with(self, owner: str, response_id: str) -> None:
        for key, entry in [*self._entries.items()]:
            if key[0] == owner and response_id in entry.past.response_ids:
                self.remove(*key)

    def delete_expired(self) -> None:
        """Remove entries unused for `MAX_AGE`, including those deleted by other processes."""
        oldest = self._clock() - MAX_AGE
        while self._entries and next(iter(self._entries.values())).used < oldest:
            self.remove(*next(iter(self._entries)))
