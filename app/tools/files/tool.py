"""Files, vector stores and the tool `file_search`, built from the table `[tools.file_search]`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from app.tools.files import FILE_STORES, FileStore
from app.tools.files.inputs import InputFiles
from app.tools.files.settings import FileSearchSettings
from app.tools.files.uploads import Files


class FileSearch:
    """What `[tools.file_search]` stands for: the uploaded files, and what searches in them."""

    def __init__(self, store: FileStore, settings: FileSearchSettings) -> None:
        self._store = store
        self.files = Files(store, max_bytes=settings.max_file_bytes)
        self.inputs = InputFiles(store)

    @classmethod
    def from_settings(cls, table: Mapping[str, Any]) -> FileSearch:
        """Build it from its table; raises `ValueError` for a table that is wrong."""
        settings = FileSearchSettings.from_table(table)
        return cls(_store(settings.store_url), settings)

    async def aclose(self) -> None:
        """Close the store."""
        await self._store.aclose()


def _store(url: str) -> FileStore:
    path = FILE_STORES.get(url.partition("://")[0], url)
    module, _, attribute = path.partition(":")
    store: FileStore = getattr(importlib.import_module(module), attribute).from_url(url)
    return store
