"""Vector stores: create, fill and search. Results have OpenAI's shapes."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from app.core.access import UNRESTRICTED, KeyAccess
from app.errors import InvalidRequest
from app.tools import Account
from app.tools.files import EmbeddingsUnavailable, Page, file_not_found, list_page
from app.tools.files.vector_stores.ranking import RankingOptions, rank
from app.tools.files.vector_stores.records import (
    Candidate,
    EmbeddedText,
    FileCounts,
    NewStoreFile,
    VectorStore,
)
from app.tools.files.vector_stores.requests import (
    AddFile,
    ComparisonFilter,
    CompoundFilter,
    CreateBatch,
    CreateVectorStore,
    SearchVectorStore,
    UpdateFile,
    UpdateVectorStore,
    predicate,
)
from app.tools.files.vector_stores.sql import VectorStoreRecords, store_not_found

if TYPE_CHECKING:
    from app.tools.files.embeddings import Embeddings  # imports httpx

logger = logging.getLogger(__name__)

_ACTIVE_WITHIN = 60  # seconds between updates to `last_active_at`, since not every search should write
_CANDIDATES = 4  # per requested result


class VectorStores:
    """Methods that add files or search raise `PermissionDenied` if the key may not use the embeddings model."""

    def __init__(
        self,
        records: VectorStoreRecords,
        wake: Callable[[], None],
        embeddings: Embeddings | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`wake` is called when files were queued for indexing."""
        self._records, self._wake, self._embeddings, self._clock = records, wake, embeddings, clock

    async def create(self, owner: str, body: CreateVectorStore, access: KeyAccess = UNRESTRICTED) -> dict[str, object]:
        """Create a store, and queue its first files for indexing, charged to the key."""
        if body.file_ids:
            self._check_model(access, "file_ids")
        now = int(self._clock())
        days = body.expires_after.days if body.expires_after else None
        store = VectorStore(_new_id("vs"), owner, body.name, body.description, body.metadata or {}, days, now, now)
        sizes = body.chunking_strategy.static
        files = [
            NewStoreFile(file_id, None, sizes, access.name, f"file_ids[{body.file_ids.index(file_id)}]")
            for file_id in dict.fromkeys(body.file_ids)
        ]
        await self._records.create(store, files)
        self._wake()
        return await self.retrieve(owner, store.id)

    async def list(self, owner: str, page: Page) -> dict[str, object]:
        stores, more = await self._records.stores(owner, page)
        return list_page([store.resource(self._clock()) for store in stores], more)

    async def summaries(self, owner: str | None, limit: int) -> Sequence[dict[str, object]]:
        """Return an owner's (None: all owners') newest stores."""
        stores, _ = await self._records.stores(owner, Page(limit))
        return [
            {
                "id": store.id,
                "owner": store.owner,
                "created_at": store.created_at,
                "last_active_at": store.last_active_at,
                "files": store.counts.resource()["total"],
                "in_progress": store.counts.in_progress,
                "failed": store.counts.failed,
                "bytes": store.usage_bytes,
            }
            for store in stores
        ]

    async def retrieve(self, owner: str, store_id: str) -> dict[str, object]:
        return (await self._records.get(owner, store_id)).resource(self._clock())

    async def update(self, owner: str, store_id: str, body: UpdateVectorStore) -> dict[str, object]:
        """Update only the fields in the request."""
        changes: dict[str, object] = {}
        if body.name is not None:
            changes["name"] = body.name
        if "metadata" in body.model_fields_set:
            changes["metadata"] = body.metadata or {}
        if "expires_after" in body.model_fields_set:
            changes["expires_days"] = body.expires_after.days if body.expires_after else None
        if not await self._records.update(owner, store_id, changes):
            raise store_not_found(store_id)
        return await self.retrieve(owner, store_id)

    async def delete(self, owner: str, store_id: str) -> dict[str, object]:
        """Delete a store, but not its files."""
        if not await self._records.delete(owner, store_id):
            raise store_not_found(store_id)
        return {"id": store_id, "object": "vector_store.deleted", "deleted": True}

    async def search(
        self,
        owner: str,
        store_id: str,
        body: SearchVectorStore,
        access: KeyAccess = UNRESTRICTED,
        account: Account | None = None,
    ) -> dict[str, object]:
        self._check_model(access, "query")
        store = await self.searchable(owner, store_id)
        results = await self.find(
            [store], body.queries(), body.max_num_results, account, filters=body.filters, ranking=body.ranking_options
        )
        return {
            "object": "vector_store.search_results.page",
            "search_query": body.queries(),
            "data": [{**result.resource(), "content": [{"type": "text", "text": result.text}]} for result in results],
            "has_more": False,
            "next_page": None,
        }

    async def find(
        self,
        stores: Sequence[VectorStore],
        queries: Sequence[str],
        limit: int,
        account: Account | None = None,
        *,
        filters: ComparisonFilter | CompoundFilter | None = None,
        ranking: RankingOptions | None = None,
    ) -> Sequence[Candidate]:
        """
        Return the best `limit` chunks in these stores for any query, best first.

        Query embeddings are charged to the account. Raises `TooManyRequests` if its limit is exceeded.
        """
        matches = None if filters is None else predicate(filters)
        per_search = max(50, limit * _CANDIDATES)
        texts = await self._embedded([*dict.fromkeys(queries)], account)
        searches = [self._records.search(store, text, per_search, matches) for text in texts for store in stores]
        candidates = [candidate for results in await asyncio.gather(*searches) for candidate in results]
        return rank(candidates, ranking or RankingOptions(), limit)

    async def add_file(
        self, owner: str, store_id: str, body: AddFile, access: KeyAccess = UNRESTRICTED
    ) -> dict[str, object]:
        self._check_model(access, "file_id")
        store = await self._records.get(owner, store_id)
        file = NewStoreFile(body.file_id, body.attributes, body.chunking_strategy.static, access.name, "file_id")
        await self._records.add(store, [file])
        self._wake()
        return (await self._records.file(store, body.file_id)).resource()

    async def files(
        self, owner: str, store_id: str, page: Page, status: str | None, batch_id: str | None = None
    ) -> dict[str, object]:
        store = await self._records.get(owner, store_id)
        if status is not None and status not in FileCounts._fields:
            raise InvalidRequest(f"Invalid 'filter': must be one of {', '.join(FileCounts._fields)}.", param="filter")
        if batch_id is not None:
            await self._records.batch(store, batch_id)  # raises `NotFound`
        files, more = await self._records.files(store, page, status, batch_id)
        return list_page([file.resource() for file in files], more)

    async def file(self, owner: str, store_id: str, file_id: str) -> dict[str, object]:
        return (await self._records.file(await self._records.get(owner, store_id), file_id)).resource()

    async def update_file(self, owner: str, store_id: str, file_id: str, body: UpdateFile) -> dict[str, object]:
        store = await self._records.get(owner, store_id)
        if not await self._records.set_attributes(store, file_id, body.attributes or {}):
            raise file_not_found(file_id)
        return (await self._records.file(store, file_id)).resource()

    async def remove_file(self, owner: str, store_id: str, file_id: str) -> dict[str, object]:
        """Remove a file from a store without deleting it."""
        if not await self._records.remove(await self._records.get(owner, store_id), file_id):
            raise file_not_found(file_id)
        return {"id": file_id, "object": "vector_store.file.deleted", "deleted": True}

    async def file_content(self, owner: str, store_id: str, file_id: str) -> dict[str, object]:
        store = await self._records.get(owner, store_id)
        await self._records.file(store, file_id)
        texts = await self._records.text(store, file_id)
        return {
            "object": "vector_store.file_content.page",
            "data": [{"type": "text", "text": text} for text in texts],
            "has_more": False,
            "next_page": None,
        }

    async def add_batch(
        self, owner: str, store_id: str, body: CreateBatch, access: KeyAccess = UNRESTRICTED
    ) -> dict[str, object]:
        self._check_model(access, "files" if body.files is not None else "file_ids")
        store = await self._records.get(owner, store_id)
        batch_id = _new_id("vsfb")
        field = "files[{}].file_id" if body.files is not None else "file_ids[{}]"
        files: dict[str, NewStoreFile] = {}
        for index, entry in enumerate(body.entries()):
            sizes, param = entry.chunking_strategy.static, field.format(index)
            files[entry.file_id] = NewStoreFile(entry.file_id, entry.attributes, sizes, access.name, param)
        await self._records.add(store, [*files.values()], batch_id)
        self._wake()
        return await self.batch(owner, store_id, batch_id)

    async def batch(self, owner: str, store_id: str, batch_id: str) -> dict[str, object]:
        return await self._batch(await self._records.get(owner, store_id), batch_id)

    async def cancel_batch(self, owner: str, store_id: str, batch_id: str) -> dict[str, object]:
        """Cancel a batch's files that are not indexed yet."""
        store = await self._records.get(owner, store_id)
        await self._records.cancel_batch(store, batch_id)
        return await self._batch(store, batch_id)

    async def searchable(self, owner: str, store_id: str) -> VectorStore:
        """Return a store for a search, which counts as activity; raises `InvalidRequest` if expired."""
        store = await self._records.get(owner, store_id)
        now = int(self._clock())
        if store.expired(now):
            raise InvalidRequest(f"The vector store '{store_id}' has expired.", param="vector_store_id")
        if now - store.last_active_at > _ACTIVE_WITHIN:
            await self._records.update(owner, store_id, {"last_active_at": now})
        return store

    async def _batch(self, store: VectorStore, batch_id: str) -> dict[str, object]:
        created_at, cancelled, counts = await self._records.batch(store, batch_id)
        return {
            "id": batch_id,
            "object": "vector_store.files_batch",
            "created_at": created_at,
            "vector_store_id": store.id,
            "status": "in_progress" if counts.in_progress else "cancelled" if cancelled else "completed",
            "file_counts": counts.resource(),
        }

    async def _embedded(self, texts: Sequence[str], account: Account | None) -> Sequence[EmbeddedText]:
        """If embeddings are off or unavailable, the queries have no vector."""
        if self._embeddings is None:
            return [EmbeddedText(text) for text in texts]
        if account:
            await account.check_limits()
        try:
            vectors = await self._embeddings.queries(texts, account)
        except EmbeddingsUnavailable as error:
            logger.warning("embeddings unavailable; searched by keywords", extra={"reason": error.message})
            return [EmbeddedText(text) for text in texts]
        return [EmbeddedText(text, vector, self._embeddings.model) for text, vector in zip(texts, vectors, strict=True)]

    def _check_model(self, access: KeyAccess, param: str) -> None:
        if self._embeddings:
            access.check_model(self._embeddings.name, param)


def _new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(16)}"
