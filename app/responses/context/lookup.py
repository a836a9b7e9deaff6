from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

from app.core.history import turns as history
from app.core.history.approvals import APPROVAL_REQUEST, APPROVAL_RESPONSE
from app.core.history.images import references
from app.core.history.past import Past
from app.core.history.turns import Turn
from app.core.ids import partition_of
from app.core.items import type_of
from app.core.stream.event_builder import Upstream
from app.core.types import with_fields
from app.core.types.request import Item
from app.errors import InvalidRequest, NotFound, StoreUnavailable
from app.responses.context.cache import CachedPast, HistoryCache
from app.responses.images import StoredImages
from app.runtime.threads import read_records
from app.stores import LayeredStore

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
        known = cache.responses_of(self.owner) if cache else ()
        turns = await read_records(records.values(), history.path, records, response_id, known)
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
        match = await _found(await self._records(partition), item_id)
        if match is None:
            return None
        item, turn = match
        images = StoredImages(self.layers, self.owner, references(turn))
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
        return [await self._stored_request(item, known, upstream) or item for item in items]

    async def _stored_request(
        self, item: Item, known: Mapping[str, Item], upstream: dict[str, Upstream]
    ) -> Item | None:
        item_id = item.get("id")
        if (
            item["type"] != APPROVAL_REQUEST
            or not isinstance(item_id, str)
            or item_id in known
            or not (partition := partition_of(self.owner, item_id))
        ):
            return None
        match = await _found(await self._records(partition), item_id)
        if match is None:
            return None
        stored, turn = match
        upstream[item_id] = turn.upstream.get(item_id, {})
        return stored

    async def related(self, items: Sequence[Item]) -> list[Turn]:
        """All turns in the answered approval requests' chains, including siblings."""
        answered = (partition_of(self.owner, item_id) for item_id in _answered(items))
        partitions = dict.fromkeys(partition for partition in answered if partition)
        records = [record for partition in partitions for record in (await self._records(partition)).values()]
        return await read_records(records, lambda: [*map(Turn.of, records)])


def _answered(items: Sequence[Item]) -> list[str]:
    return [str(item.get("approval_request_id")) for item in items if item["type"] == APPROVAL_RESPONSE]


async def _found(records: Mapping[str, bytes], item_id: str) -> tuple[Item, Turn] | None:
    return await read_records(records.values(), history.find_item, records.values(), item_id)
