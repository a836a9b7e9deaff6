"""Records for vector stores and their files, and the protocol for storing them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from app.tools.files import Page

FileStatus: TypeAlias = Literal["in_progress", "completed", "cancelled", "failed"]
ErrorCode: TypeAlias = Literal["server_error", "unsupported_file", "invalid_file"]
Attributes: TypeAlias = Mapping[str, str | float | bool]
DAY = 86400


@dataclass(frozen=True, slots=True)
class ChunkingStrategy:
    """Sizes are in estimated tokens."""

    max_tokens: int = 800
    overlap: int = 400

    def resource(self) -> dict[str, object]:
        sizes = {"max_chunk_size_tokens": self.max_tokens, "chunk_overlap_tokens": self.overlap}
        return {"type": "static", "static": sizes}


@dataclass(frozen=True, slots=True)
class FileCounts:
    in_progress: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0

    def resource(self) -> dict[str, int]:
        counts = {name: getattr(self, name) for name in ("in_progress", "completed", "failed", "cancelled")}
        return {**counts, "total": sum(counts.values())}


@dataclass(frozen=True, slots=True)
class VectorStore:
    id: str
    owner: str
    name: str
    description: str | None
    metadata: Mapping[str, str] | None
    expires_days: int | None  # after `last_active_at`
    created_at: int
    last_active_at: int
    counts: FileCounts = field(default_factory=FileCounts)
    usage_bytes: int = 0

    @property
    def expires_at(self) -> int | None:
        """Unix time; None means never."""
        return None if self.expires_days is None else self.last_active_at + self.expires_days * DAY

    def expired(self, now: float) -> bool:
        return self.expires_at is not None and self.expires_at <= now

    def resource(self, now: float) -> dict[str, object]:
        status = "expired" if self.expired(now) else "in_progress" if self.counts.in_progress else "completed"
        after = None if self.expires_days is None else {"anchor": "last_active_at", "days": self.expires_days}
        return {
            "id": self.id,
            "object": "vector_store",
            "created_at": self.created_at,
            "name": self.name,
            "description": self.description,
            "usage_bytes": self.usage_bytes,
            "file_counts": self.counts.resource(),
            "status": status,
            "expires_after": after,
            "expires_at": self.expires_at,
            "last_active_at": self.last_active_at,
            "metadata": self.metadata,
        }


@dataclass(frozen=True, slots=True)
class StoreFile:
    id: str
    store_id: str
    filename: str
    created_at: int
    status: FileStatus
    error: tuple[ErrorCode, str] | None
    usage_bytes: int
    attributes: Attributes | None
    strategy: ChunkingStrategy

    def resource(self) -> dict[str, object]:
        return {
            "id": self.id,
            "object": "vector_store.file",
            "usage_bytes": self.usage_bytes,
            "created_at": self.created_at,
            "vector_store_id": self.store_id,
            "status": self.status,
            "last_error": self.error and {"code": self.error[0], "message": self.error[1]},
            "chunking_strategy": self.strategy.resource(),
            "attributes": self.attributes or {},
        }


@dataclass(frozen=True, slots=True)
class NewStoreFile:
    id: str
    attributes: Attributes | None = None
    strategy: ChunkingStrategy = field(default_factory=ChunkingStrategy)
    key: str = ""  # key name, charged for embeddings


@dataclass(frozen=True, slots=True)
class FileBatch:
    id: str
    store_id: str
    created_at: int
    cancelled: bool
    counts: FileCounts

    def resource(self) -> dict[str, object]:
        status = "in_progress" if self.counts.in_progress else "cancelled" if self.cancelled else "completed"
        return {
            "id": self.id,
            "object": "vector_store.files_batch",
            "created_at": self.created_at,
            "vector_store_id": self.store_id,
            "status": status,
            "file_counts": self.counts.resource(),
        }


@dataclass(frozen=True, slots=True)
class Job:
    """A file being indexed into a vector store, under a claim that excludes other processes."""

    row: int
    claim: str
    attempt: int  # from 1
    owner: str
    key: str  # key name, charged for embeddings
    store_id: str
    file_id: str
    filename: str
    bytes: int
    strategy: ChunkingStrategy


@dataclass(frozen=True, slots=True)
class TextChunk:
    """The embedding, if any, is float32 in native byte order."""

    text: str
    vector: bytes | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A chunk that matches a search, with scores from 0 to 1, or None if not computed."""

    id: str
    file: StoreFile
    text: str
    text_score: float | None = None
    similarity: float | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """The embedding, if any, is by `model`."""

    text: str
    vector: bytes | None = None
    model: str = ""


class UnknownFiles(Exception):
    """`index` is the position of the first file that does not exist."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


class VectorStoreRecords(Protocol):
    """
    Stores all owners' vector stores. A file is searchable once it is `completed`, with all its chunks.

    Methods for a job return False, without changes, if its claim was lost: the file was removed, cancelled or claimed
    again.
    """

    async def create(self, store: VectorStore, files: Sequence[NewStoreFile] = ()) -> None:
        """Insert a store and queue its first files for indexing; raises `UnknownFiles`, without changes."""
        ...

    async def get(self, owner: str, store_id: str) -> VectorStore | None: ...

    async def stores(self, owner: str | None, page: Page) -> tuple[list[VectorStore], bool]:
        """Return an owner's (None: all owners') stores, and whether more exist."""
        ...

    async def update(self, owner: str, store_id: str, changes: Mapping[str, object]) -> bool:
        """Update `name`, `metadata`, `expires_days` or `last_active_at`; return whether the store exists."""
        ...

    async def delete(self, owner: str, store_id: str) -> bool: ...

    async def add(self, store: VectorStore, files: Sequence[NewStoreFile], batch_id: str | None = None) -> None:
        """
        Add files, as a batch if `batch_id` is set, and queue them for indexing.

        A file already in the store is indexed again. Raises `UnknownFiles`, without changes, if the owner does not have
        all the files.
        """
        ...

    async def file(self, store: VectorStore, file_id: str) -> StoreFile | None: ...

    async def files(
        self, store: VectorStore, page: Page, status: str | None = None, batch_id: str | None = None
    ) -> tuple[list[StoreFile], bool]:
        """Also return whether more files exist."""
        ...

    async def set_attributes(self, store: VectorStore, file_id: str, attributes: Attributes) -> bool: ...

    async def remove(self, store: VectorStore, file_id: str) -> bool:
        """Remove a file without deleting it; return whether it was in the store."""
        ...

    async def text(self, store: VectorStore, file_id: str) -> list[str]:
        """Return a file's chunks, in order; [] if the file is not indexed."""
        ...

    async def batch(self, store: VectorStore, batch_id: str) -> FileBatch | None: ...

    async def cancel_batch(self, store: VectorStore, batch_id: str) -> bool:
        """Cancel a batch's files that are not indexed yet; return whether the batch exists."""
        ...

    async def search(
        self,
        store: VectorStore,
        search_query: Query,
        limit: int,
        matches: Callable[[Attributes], bool] | None = None,
    ) -> list[Candidate]:
        """
        Return the best `limit` chunks by keywords, and the best by embedding.

        With `matches`, only files whose attributes match are searched.
        """
        ...

    async def claim(self, lease: float, excluded: Collection[str] = ()) -> Job | None:
        """
        Claim the oldest file of the owner served least recently, for `lease` seconds; None if the queues are empty.

        Owners in `excluded` are skipped.
        """
        ...

    async def renew(self, job: Job, lease: float) -> bool: ...

    async def release(self, job: Job, delay: float = 0, *, failed: bool = False) -> None:
        """The file can be claimed again after `delay` seconds. Only attempts that `failed` count."""
        ...

    async def complete(self, job: Job, chunks: Iterable[TextChunk], model: str = "") -> bool:
        """
        Store a file's chunks and mark it as completed.

        `chunks` is iterated in another thread. `model` is the embeddings model.
        """
        ...

    async def fail(self, job: Job, code: ErrorCode, message: str) -> None: ...
