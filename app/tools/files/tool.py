"""Files, vector stores and the tool `file_search`, built from the table `[tools.file_search]`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from app.tools import ToolHost
from app.tools.files import FILE_STORES, FileStore, FilesUnavailable
from app.tools.files.embeddings import Embeddings
from app.tools.files.ingestion.worker import Ingestion
from app.tools.files.inputs import InputFiles
from app.tools.files.settings import EmbeddingsSettings, FileSearchSettings
from app.tools.files.uploads import Files
from app.tools.files.vector_stores import VectorStores


class FileSearch:
    """What `[tools.file_search]` stands for: the uploaded files, the vector stores, and what searches in them."""

    def __init__(self, store: FileStore, settings: FileSearchSettings, embeddings: Embeddings | None = None) -> None:
        self._store, self._embeddings = store, embeddings
        self._ingestion = Ingestion(
            store, store.vector_stores, embeddings, lease=settings.lease, timeout=settings.parse_timeout
        )
        self.files = Files(store, max_bytes=settings.max_file_bytes)
        self.inputs = InputFiles(store)
        self.vector_stores = VectorStores(store.vector_stores, self._ingestion.wake, embeddings)

    @classmethod
    def from_settings(cls, table: Mapping[str, Any], host: ToolHost) -> FileSearch:
        """Build it from its table; raises `ValueError` for a table that is wrong."""
        settings = FileSearchSettings.from_table(table)
        embeddings = _embeddings(settings.embeddings, host) if settings.embeddings else None
        return cls(_store(settings.store_url), settings, embeddings)

    def start(self) -> None:
        """Begin to read files into vector stores."""
        self._ingestion.start()

    async def check(self) -> dict[str, str | None]:
        """Say what is wrong with the store and the embeddings; None where they work."""
        problems: dict[str, str | None] = {"store": None}
        try:
            await self._store.check()
        except FilesUnavailable as error:
            problems["store"] = error.message
        if self._embeddings:
            problems["embeddings"] = await self._embeddings.check()
        return problems

    async def aclose(self) -> None:
        """Stop reading files, and close the store."""
        await self._ingestion.aclose()
        if self._embeddings:
            await self._embeddings.aclose()
        await self._store.aclose()


def _store(url: str) -> FileStore:
    path = FILE_STORES.get(url.partition("://")[0], url)
    module, _, attribute = path.partition(":")
    store: FileStore = getattr(importlib.import_module(module), attribute).from_url(url)
    return store


def _embeddings(settings: EmbeddingsSettings, host: ToolHost) -> Embeddings:
    backend = host.backends.get(settings.backend)
    if backend is None:
        raise ValueError(f"embeddings.backend: there is no backend {settings.backend!r}")
    if not backend.url:
        raise ValueError(f"embeddings.backend: {settings.backend!r} has no URL, and so no embeddings")
    if backend.passes_keys:
        raise ValueError(f"embeddings.backend: {settings.backend!r} takes the callers' keys, which files do not have")
    return Embeddings(
        backend.url,
        settings.model,
        api_key=backend.key.get_secret_value() if backend.key else None,
        dimensions=settings.dimensions,
        document_prefix=settings.document_prefix,
        query_prefix=settings.query_prefix,
    )
