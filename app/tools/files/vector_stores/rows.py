from __future__ import annotations

import json
from collections.abc import Mapping

from app.core.types import JSONObject
from app.storage.tables import Row
from app.tools.files.vector_stores.records import ChunkingStrategy, FileBatch, FileCounts, StoreFile, VectorStore


def encode_fields(value: Mapping[str, object] | None) -> str | None:
    return None if value is None else json.dumps(dict(value))


def decode_fields(value: str | None) -> JSONObject | None:
    return None if value is None else json.loads(value)


def store_of(row: Row) -> VectorStore:
    """Columns: the store's own, its file counts by status, and its size."""
    store_id, owner, name, description, metadata, days, created_at, last_active_at, *counts, usage = row
    counted = FileCounts(*counts)
    fields = decode_fields(metadata)
    return VectorStore(store_id, owner, name, description, fields, days, created_at, last_active_at, counted, usage)


def file_batch_of(row: Row) -> FileBatch:
    """Columns: the batch's own, and its file counts by status."""
    batch_id, store, created_at, cancelled, *counts = row
    return FileBatch(batch_id, store, created_at, bool(cancelled), FileCounts(*counts))


def store_file_of(row: Row) -> StoreFile:
    """The last column, the row number, is ignored."""
    file_id, store, filename, created_at, status, code, message, usage, attributes, max_tokens, overlap, _ = row
    error = (code, message) if code else None
    strategy = ChunkingStrategy(max_tokens, overlap)
    return StoreFile(file_id, store, filename, created_at, status, error, usage, decode_fields(attributes), strategy)
