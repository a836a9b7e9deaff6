"""The records of vector stores and their files, and the protocol of the store that holds them."""

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
    """The size of a chunk and its overlap with the previous one, in estimated tokens."""

    max_tokens: int = 800
    overlap: int = 400

    def resource(self) -> dict[str, object]:
        """Return the strategy as the API shows it."""
        sizes = {"max_chunk_size_tokens": self.max_tokens, "chunk_overlap_tokens": self.overlap}
        return {"type": "static", "static": sizes}


@dataclass(frozen=True, slots=True)
class FileCounts:
    """The number of files of a store or a batch by status."""

    in_progress: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0

    def resource(self) -> dict[str, int]:
        """Return the counts as the API shows them."""
        counts = {name: getattr(self, name) for name in ("in_progress", "completed", "failed", "cancelled")}
        return {**counts, "total": sum(counts.values())}


@dataclass(frozen=True, slots=True)
class VectorStore:
    """A searchable collection of files."""

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
        """The Unix time at which the store expires if it is not used before; None if it does not."""
        return None if self.expires_days is None else self.last_active_at + self.expires_days * DAY

    def expired(self, now: float) -> bool:
        """Return whether the store has expired."""
        return self.expires_at is not None and self.expires_at <= now

    def resource(self, now: float) -> dict[str, object]:
        """Return the store as the API shows it."""
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
    """A file in a vector store."""

    id: str  # of the file
    store_id: str
    filename: str
    created_at: int
    status: FileStatus
    error: tuple[ErrorCode, str] | None
    usage_bytes: int
    attributes: Attributes | None
    strategy: ChunkingStrategy

    def resource(self) -> dict[str, object]:
        """Return the file as the API shows it."""
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
    """A file to be added to a vector store."""

    id: str
    attributes: Attributes | None = None
    strategy: ChunkingStrategy = field(default_factory=ChunkingStrategy)
    key: str = ""  # the name of the key that adds it


@dataclass(frozen=True, slots=True)
class FileBatch:
    """Files that were added to a vector store together."""

    id: str
    store_id: str
    created_at: int
    cancelled: bool
    counts: FileCounts

    def resource(self) -> dict[str, object]:
        """Return the batch as the API shows it."""
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
    """A file that a process is indexing into a vector store, under a claim that excludes other processes."""

    row: int
    claim: str
    attempt: int  # from 1
    owner: str
    key: str  # the name of the key that has added it
    store_id: str
    file_id: str
    filename: str
    bytes: int
    strategy: ChunkingStrategy


@dataclass(frozen=True, slots=True)
class TextChunk:
    """A piece of a file's text, with its embedding as float32 in native byte order, if there is one."""

    text: str
    vector: bytes | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A chunk that matches a search, with its scores: from 0 to 1, or None if not computed."""

    id: str
    file: StoreFile
    text: str
    text_score: float | None = None
    similarity: float | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """A search query: its text, and its embedding by `model`, if there is one."""

    text: str
    vector: bytes | None = None
    model: str = ""


class UnknownFiles(Exception):
    """Some files to be added do not exist; `index` is the position of the first."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


class VectorStoreRecords(Protocol):
    """
    Stores the vector stores of all owners. Every method raises `FilesUnavailable` if the store cannot be reached.

    A file is searchable once it is `completed`, with all of its chunks; never with only some of them.
    """

    async def create(self, store: VectorStore, files: Sequence[NewStoreFile] = ()) -> None:
        """Insert a store and queue its first files for indexing; raises `UnknownFiles`, and inserts nothing then."""
        ...

    async def get(self, owner: str, store_id: str) -> VectorStore | None: ...

    async def stores(self, owner: str | None, page: Page) -> tuple[list[VectorStore], bool]:
        """Return a page of an owner's stores, or of all (None), and whether more follow; raises `UnknownCursor`."""
        ...

    async def update(self, owner: str, store_id: str, changes: Mapping[str, object]) -> bool:
        """Change `name`, `metadata`, `expires_days` or `last_active_at`; return whether the store exists."""
        ...

    async def delete(self, owner: str, store_id: str) -> bool: ...

    async def add(self, store: VectorStore, files: Sequence[NewStoreFile], batch_id: str | None = None) -> None:
        """
        Add files, as a batch if there is a `batch_id`, and queue them for indexing.

        A file that is already in the store is indexed again. Raises `UnknownFiles`, adding none, if the owner does not
        have one of them.
        """
        ...

    async def file(self, store: VectorStore, file_id: str) -> StoreFile | None: ...

    async def files(
        self, store: VectorStore, page: Page, status: str | None = None, batch_id: str | None = None
    ) -> tuple[list[StoreFile], bool]:
        """Return a page of files, and whether more follow; raises `UnknownCursor`."""
        ...

    async def set_attributes(self, store: VectorStore, file_id: str, attributes: Attributes) -> bool: ...

    async def remove(self, store: VectorStore, file_id: str) -> bool:
        """Remove a file from a store without deleting it; return whether it was in the store."""
        ...

    async def text(self, store: VectorStore, file_id: str) -> list[str]:
        """Return the chunks of a file's text, in order; [] if the file has not been indexed."""
        ...

    async def batch(self, store: VectorStore, batch_id: str) -> FileBatch | None: ...

    async def cancel_batch(self, store: VectorStore, batch_id: str) -> bool:
        """Cancel the files of a batch that are not indexed yet; return whether the batch exists."""
        ...

    async def search(
        self,
        store: VectorStore,
        search_query: Query,
        limit: int,
        matches: Callable[[Attributes], bool] | None = None,
    ) -> list[Candidate]:
        """
        Return a store's best `limit` chunks by words, and the best by embedding.

        With `matches`, only files are searched whose attributes it accepts.
        """
        ...

    async def claim(self, lease: float, excluded: Collection[str] = ()) -> Job | None:
        """
        Claim the next file to index for `lease` seconds; None if there is none.

        It is the oldest file of the owner whose last turn was longest ago; files of `excluded` owners are left.
        """
        ...

    async def renew(self, job: Job, lease: float) -> bool:
        """Extend a claim; return False if it was lost because the file was removed, cancelled or claimed again."""
        ...

    async def release(self, job: Job, delay: float = 0, *, failed: bool = False) -> None:
        """Give up a claim; the file can be claimed again after `delay` seconds. Attempts that `failed` are counted."""
        ...

    async def complete(self, job: Job, chunks: Iterable[TextChunk], model: str = "") -> bool:
        """
        Store the chunks of a file and mark it as completed; return False, storing none, if the claim was lost.

        `chunks` is iterated in another thread. `model` is the model of their embeddings.
        """
        ...

    async def fail(self, job: Job, code: ErrorCode, message: str) -> None:
        """Mark a file as failed."""
        ...
