"""Vector stores as they are kept: what is known of them and their files, and the protocol of what keeps them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from app.tools.files import Page

FileStatus: TypeAlias = Literal["in_progress", "completed", "cancelled", "failed"]
ErrorCode: TypeAlias = Literal["server_error", "unsupported_file", "invalid_file"]
Attributes: TypeAlias = Mapping[str, str | float | bool]
DAY = 86400


@dataclass(frozen=True, slots=True)
class ChunkingStrategy:
    """How a file is cut: the size of a chunk and what it shares with the one before, in tokens as estimated here."""

    max_tokens: int = 800
    overlap: int = 400

    def resource(self) -> dict[str, object]:
        """Return the strategy as the API shows it."""
        sizes = {"max_chunk_size_tokens": self.max_tokens, "chunk_overlap_tokens": self.overlap}
        return {"type": "static", "static": sizes}


@dataclass(frozen=True, slots=True)
class FileCounts:
    """How many files of a store or a batch have which status."""

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
    """A collection of files that is searched."""

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
        """When it expires, as Unix time, if nobody uses it before."""
        return None if self.expires_days is None else self.last_active_at + self.expires_days * DAY

    def expired(self, now: float) -> bool:
        """Tell whether nobody has used it for too long."""
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
    """A file that is to be added to a vector store."""

    id: str
    attributes: Attributes | None = None
    strategy: ChunkingStrategy = field(default_factory=ChunkingStrategy)


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
    """A file that one process is reading into a vector store; the claim is the proof that no other one is."""

    row: int
    claim: str
    attempt: int  # from 1
    store_id: str
    file_id: str
    filename: str
    bytes: int
    strategy: ChunkingStrategy


@dataclass(frozen=True, slots=True)
class TextChunk:
    """A piece of a file's text, and its embedding as float32 in the machine's order, if there is one."""

    text: str
    vector: bytes | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A chunk that a search has found, with how well it fits: each from 0 to 1, or None where it was not looked at."""

    id: str
    file: StoreFile
    text: str
    text_score: float | None = None
    similarity: float | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """What is searched for: words, and the embedding of the same by the model named."""

    text: str
    vector: bytes | None = None
    model: str = ""


class UnknownFiles(Exception):
    """Files that are to be added are not there; `index` is that of the first."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


class VectorStoreRecords(Protocol):
    """
    Keeps vector stores of all owners. Every method raises `FilesUnavailable` where it does not answer.

    A file is in a search from the moment that it is `completed`, with all of its chunks, and never with some of them.
    """

    async def create(self, store: VectorStore, files: Sequence[NewStoreFile] = ()) -> None:
        """Keep a new store with its first files, which are to be read; raises `UnknownFiles`, and keeps none then."""
        ...

    async def get(self, owner: str, id: str) -> VectorStore | None: ...

    async def stores(self, owner: str, page: Page) -> tuple[list[VectorStore], bool]:
        """Return a page of stores and whether there are more; raises `UnknownCursor`."""
        ...

    async def update(self, owner: str, id: str, changes: Mapping[str, object]) -> bool:
        """Change `name`, `metadata`, `expires_days` or `last_active_at`; tell whether the store is there."""
        ...

    async def delete(self, owner: str, id: str) -> bool: ...

    async def add(self, store: VectorStore, files: Sequence[NewStoreFile], batch_id: str | None = None) -> None:
        """
        Add files, to be read; one that is there already is read anew. With `batch_id` they are a batch.

        Raises `UnknownFiles` if one of them is not the owner's, and then adds none.
        """
        ...

    async def file(self, store: VectorStore, file_id: str) -> StoreFile | None: ...

    async def files(
        self, store: VectorStore, page: Page, status: str | None = None, batch_id: str | None = None
    ) -> tuple[list[StoreFile], bool]:
        """Return a page of files and whether there are more; raises `UnknownCursor`."""
        ...

    async def set_attributes(self, store: VectorStore, file_id: str, attributes: Attributes) -> bool: ...

    async def remove(self, store: VectorStore, file_id: str) -> bool:
        """Take a file out of a store; the file itself stays."""
        ...

    async def text(self, store: VectorStore, file_id: str) -> list[str]:
        """Return the text of a file, in the chunks that are searched."""
        ...

    async def batch(self, store: VectorStore, id: str) -> FileBatch | None: ...

    async def cancel_batch(self, store: VectorStore, id: str) -> bool:
        """Cancel what has not been read yet; tell whether the batch is there."""
        ...

    async def search(
        self,
        stores: Sequence[VectorStore],
        wanted: Query,
        limit: int,
        matches: Callable[[Attributes], bool] | None = None,
    ) -> list[Candidate]:
        """Return the best `limit` chunks of each store by words, and by embedding, of files whose attributes match."""
        ...

    async def claim(self, lease: float) -> Job | None:
        """Return the next file to read, which no other process reads for `lease` seconds."""
        ...

    async def renew(self, job: Job, lease: float) -> bool:
        """Keep a claim; False if the file is not wanted any more, or somebody else's."""
        ...

    async def release(self, job: Job, delay: float = 0) -> None:
        """Leave a file for whoever comes next, after so many seconds."""
        ...

    async def complete(self, job: Job, chunks: Iterable[TextChunk], model: str = "") -> bool:
        """
        Keep what was read, all of it or nothing; False if the file is not wanted any more.

        `chunks` is iterated in another thread. `model` is whose embeddings they have.
        """
        ...

    async def fail(self, job: Job, code: ErrorCode, message: str) -> None:
        """Note that a file could not be read."""
        ...
