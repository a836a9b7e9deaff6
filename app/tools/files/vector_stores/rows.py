"""The rows of vector stores, their files and batches, as the SQL databases return them."""

from __future__ import annotations

import json
from collections.abc import Mapping

from app.core.types import JSONObject
from app.storage.tables import Row
from app.tools.files.vector_stores.records import ChunkingStrategy, FileBatch, FileCounts, StoreFile, VectorStore


def encode_fields(value: Mapping[str, object] | None) -> str | None:
    """Return a column's value for metadata or attributes."""
    return None if value is None else json.dumps(dict(value))


def decode_fields(value: str | None) -> JSONObject | None:
    """Return metadata or attributes from a column's value."""
    return None if value is None else json.loads(value)


def store_of(row: Row) -> VectorStore:
    """Return a vector store from its columns, the counts of its files by status, and its size."""
    store_id, owner, name, description, metadata, days, created_at, last_active_at, *counts, usage = row
    counted = FileCounts(*counts)
    fields = decode_fields(metadata)
    return VectorStore(store_id, owner, name, description, fields, days, created_at, last_active_at, counted, usage)


def file_batch_of(row: Row) -> FileBatch:
    """Return a batch from its columns and the counts of its files by status."""
    batch_id, store, created_at, cancelled, *counts = row
    return FileBatch(batch_id, store, created_at, bool(cancelled), FileCounts(*counts))


def store_file_of(row: Row) -> StoreFile:
    """Return a file of a vector store from its columns; the last one is the row's own number."""
    file_id, store, filename, created_at, status, code, message, usage, attributes, max_tokens, overlap, _ = row
    error = (code, message) if code else None
    strategy = ChunkingStrategy(max_tokens, overlap)
    return StoreFile(file_id, store, filename, created_at, status, error, usage, decode_fields(attributes), strategy)
