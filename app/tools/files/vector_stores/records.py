"""Records for vector stores and their files, and the protocol for storing them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple, TypeAlias

from pydantic import Field, model_validator

from app.core.types.request import RequestBody

ErrorCode: TypeAlias = Literal["server_error", "unsupported_file", "invalid_file"]
Attributes: TypeAlias = Mapping[str, str | float | bool]
DAY = 86400


class Sizes(RequestBody):
    """A file's chunking, in estimated tokens."""

    max_chunk_size_tokens: Annotated[int, Field(ge=100, le=4096)] = 800
    chunk_overlap_tokens: Annotated[int, Field(ge=0, le=2048)] = 400

    @model_validator(mode="after")
    def _overlap_fits(self) -> Sizes:
        if self.chunk_overlap_tokens * 2 > self.max_chunk_size_tokens:
            raise ValueError("chunk_overlap_tokens must not exceed half of max_chunk_size_tokens")
        return self


class FileCounts(NamedTuple):
    """By status."""

    in_progress: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0

    def resource(self) -> dict[str, int]:
        return {**self._asdict(), "total": sum(self)}


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
    status: str  # a field of `FileCounts`
    usage_bytes: int
    error: tuple[ErrorCode, str] | None
    attributes: Attributes | None
    max_tokens: int  # per chunk
    overlap: int

    def resource(self) -> dict[str, object]:
        sizes = {"max_chunk_size_tokens": self.max_tokens, "chunk_overlap_tokens": self.overlap}
        return {
            "id": self.id,
            "object": "vector_store.file",
            "usage_bytes": self.usage_bytes,
            "created_at": self.created_at,
            "vector_store_id": self.store_id,
            "status": self.status,
            "last_error": self.error and {"code": self.error[0], "message": self.error[1]},
            "chunking_strategy": {"type": "static", "static": sizes},
            "attributes": self.attributes or {},
        }


@dataclass(frozen=True, slots=True)
class NewStoreFile:
    id: str
    attributes: Attributes | None = None
    sizes: Sizes = field(default_factory=Sizes)
    key: str = ""  # key name, charged for embeddings
    param: str = "file_id"  # JSON path of the id, for errors


@dataclass(frozen=True, slots=True)
class Job:
    """A file being indexed into a vector store, under a claim that excludes other processes."""

    claim: str
    row: int
    attempt: int  # from 1
    owner: str
    key: str  # key name, charged for embeddings
    store_id: str
    file_id: str
    filename: str
    max_tokens: int  # per chunk
    overlap: int


@dataclass(frozen=True, slots=True)
class EmbeddedText:
    """A chunk or a query. The embedding, if any, is float32 in native byte order."""

    text: str
    vector: bytes | None = None
    model: str = ""  # of the embedding

    @property
    def space(self) -> str | None:
        """The model and number of dimensions. Only vectors in one space are comparable."""
        return None if self.vector is None else f"{self.model} {len(self.vector) // 4}"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A chunk that matches a search. Scores are from 0 to 1, or None if not computed."""

    id: str
    file: StoreFile
    text: str
    text_score: float | None = None
    similarity: float | None = None
    score: float = 0.0  # set by `rank`

    def resource(self) -> dict[str, object]:
        """Without the text."""
        return {
            "file_id": self.file.id,
            "filename": self.file.filename,
            "score": self.score,
            "attributes": self.file.attributes or {},
        }
