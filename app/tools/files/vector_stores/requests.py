"""Request bodies for vector stores, and filters on file attributes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Discriminator, Field, StringConstraints, Tag, model_validator

from app.core.types.content import tag_of
from app.core.types.request import WITHOUT_NUL, Metadata, RequestBody
from app.tools.files.vector_stores.ranking import MAX_RESULTS, RankingOptions
from app.tools.files.vector_stores.records import Sizes

Value: TypeAlias = str | float | bool
Predicate: TypeAlias = Callable[[Mapping[str, object]], bool]

MAX_FILTERS = 100  # per compound filter


class ComparisonFilter(BaseModel):
    """If the attribute is missing, or cannot be ordered with the value, only `ne` and `nin` are true."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"]
    key: Annotated[str, Field(max_length=64)]
    value: Value | Annotated[list[Value], Field(max_length=1000)]


class CompoundFilter(BaseModel):
    """`{"type": "and", "filters": [{"type": "eq", "key": "year", "value": 2024}, ...]}`"""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["and", "or"]
    filters: Annotated[list[AttributeFilter], Field(max_length=MAX_FILTERS)]


AttributeFilter: TypeAlias = Annotated[
    Annotated[ComparisonFilter, Tag("<comparison>")] | Annotated[CompoundFilter, Tag("<compound>")],
    Discriminator(
        lambda value: "<compound>" if isinstance(value, dict) and value.get("type") in ("and", "or") else "<comparison>"
    ),
]
CompoundFilter.model_rebuild()


def predicate(condition: ComparisonFilter | CompoundFilter) -> Predicate:
    if isinstance(condition, CompoundFilter):
        inner = [predicate(nested) for nested in condition.filters]
        join = all if condition.type == "and" else any
        return lambda attributes: join(matches(attributes) for matches in inner)
    compare, key, value = _COMPARISONS[condition.type], condition.key, condition.value
    return lambda attributes: compare(attributes.get(key), value)


def _equal(left: object, right: object) -> bool:
    # True equals 1 in Python, but not here.
    return isinstance(left, bool) is isinstance(right, bool) and left == right


def _in(attribute: object, values: object) -> bool:
    return any(_equal(attribute, value) for value in (values if isinstance(values, list) else [values]))


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[object, object], bool]:
    def compare_ordered(left: object, right: object) -> bool:
        numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (left, right))
        texts = isinstance(left, str) and isinstance(right, str)
        return (numbers or texts) and compare(left, right)

    return compare_ordered


_COMPARISONS: dict[str, Callable[[object, object], bool]] = {
    "eq": _equal,
    "ne": lambda left, right: not _equal(left, right),
    "gt": _ordered(operator.gt),
    "gte": _ordered(operator.ge),
    "lt": _ordered(operator.lt),
    "lte": _ordered(operator.le),
    "in": _in,
    "nin": lambda left, right: not _in(left, right),
}


MAX_BATCH_FILES = 2000
MAX_INITIAL_FILES = 500  # in the request that creates a store

FileId: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=128), WITHOUT_NUL]
Name: TypeAlias = Annotated[str, StringConstraints(max_length=256), WITHOUT_NUL]
AttributeValue: TypeAlias = Annotated[str, StringConstraints(max_length=512), WITHOUT_NUL] | bool | float
AttributeValues: TypeAlias = Annotated[
    dict[Annotated[str, StringConstraints(min_length=1, max_length=64), WITHOUT_NUL], AttributeValue],
    Field(max_length=16),
]


class ExpiresAfter(RequestBody):
    """After the store's last use."""

    anchor: Literal["last_active_at"] = "last_active_at"
    days: Annotated[int, Field(ge=1, le=365)]


class AutoChunking(RequestBody):
    type: Literal["auto"] = "auto"
    static: ClassVar[Sizes] = Sizes()  # the defaults


class StaticChunking(RequestBody):
    type: Literal["static"]
    static: Sizes


Chunking: TypeAlias = Annotated[
    Annotated[StaticChunking, Tag("<static>")] | Annotated[AutoChunking, Tag("<unknown>")],
    Discriminator(lambda value: tag_of(value, frozenset({"static"}))),
]


class CreateVectorStore(RequestBody):
    """`POST /vector_stores`."""

    name: Name = ""
    description: Annotated[str, StringConstraints(max_length=512), WITHOUT_NUL] | None = None
    file_ids: Annotated[list[FileId], Field(max_length=MAX_INITIAL_FILES)] = Field(default_factory=list)
    chunking_strategy: Chunking = AutoChunking()
    expires_after: ExpiresAfter | None = None
    metadata: Metadata | None = None


class UpdateVectorStore(BaseModel):
    """`POST /vector_stores/{id}`. Null removes the expiry or metadata; absent fields are unchanged."""

    model_config = ConfigDict(extra="allow")

    name: Name | None = None
    expires_after: ExpiresAfter | None = None
    metadata: Metadata | None = None


class AddFile(RequestBody):
    """`POST /vector_stores/{id}/files`, and an entry in a batch."""

    file_id: FileId
    attributes: AttributeValues | None = None
    chunking_strategy: Chunking = AutoChunking()


class UpdateFile(BaseModel):
    """`POST /vector_stores/{id}/files/{file_id}`."""

    model_config = ConfigDict(extra="allow")

    attributes: AttributeValues | None


class CreateBatch(RequestBody):
    """`POST /vector_stores/{id}/file_batches`: `file_ids`, or `files` with their own attributes and strategies."""

    file_ids: Annotated[list[FileId], Field(min_length=1, max_length=MAX_BATCH_FILES)] | None = None
    files: Annotated[list[AddFile], Field(min_length=1, max_length=MAX_BATCH_FILES)] | None = None
    attributes: AttributeValues | None = None
    chunking_strategy: Chunking = AutoChunking()

    @model_validator(mode="after")
    def _has_files(self) -> CreateBatch:
        if (self.file_ids is None) is (self.files is None):
            raise ValueError("must contain either 'file_ids' or 'files'")
        return self

    def entries(self) -> list[AddFile]:
        if self.files is not None:
            return self.files
        return [
            AddFile.model_construct(
                file_id=file_id, attributes=self.attributes, chunking_strategy=self.chunking_strategy
            )
            for file_id in self.file_ids or ()
        ]


SearchText: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=4096)]


class SearchVectorStore(RequestBody):
    """`POST /vector_stores/{id}/search`."""

    query: SearchText | Annotated[list[SearchText], Field(min_length=1, max_length=16)]
    filters: AttributeFilter | None = None
    max_num_results: Annotated[int, Field(ge=1, le=MAX_RESULTS)] = 10
    ranking_options: RankingOptions = Field(default_factory=RankingOptions)
    rewrite_query: bool = False  # accepted, but queries are never rewritten

    def queries(self) -> list[str]:
        return [self.query] if isinstance(self.query, str) else self.query
