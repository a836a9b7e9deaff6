"""The settings table `[tools.file_search]`."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ByteSize, Field, ValidationInfo, field_validator

from app.loading import require_packages
from app.storage.object_storage import read_object_url
from app.tools import SettingsTable
from app.tools.files import FILE_STORES
from app.tools.validation import read_table


class EmbeddingsSettings(SettingsTable):
    backend: str = "default"
    """Name of the backend with the `/embeddings` endpoint."""
    model: str
    dimensions: int | None = Field(None, ge=1)
    """For models that support shorter vectors."""
    document_prefix: str = ""
    """A prefix for each stored text, such as `search_document: ` for nomic-embed-text."""
    query_prefix: str = ""
    """A prefix for each query, such as `search_query: `."""


class FileSearchSettings(SettingsTable):
    store_url: str = "sqlite:///files.db"
    """Store for files and vector stores: `sqlite:///files.db`, `postgresql://user@host/database`, or an import path
    `package.module:Class`."""
    store_url_env: str | None = None
    """Environment variable with this URL, since it may contain a password."""
    content_url: str | None = None
    """Object storage for the content of new files, generated images and copies of container files, in place of the
    databases: `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix` or `file:///folder`."""
    max_file_bytes: ByteSize = Field(ByteSize(512 * 1024 * 1024), gt=0)
    """Maximum file size, in bytes or with a unit, such as `512MiB`."""
    max_upload_bytes: ByteSize = Field(ByteSize(8 * 1024 * 1024 * 1024), gt=0)
    """Maximum file size for multipart uploads with `/v1/uploads`."""
    max_key_bytes: ByteSize = Field(ByteSize(0), ge=0)
    """Maximum total size of files per API key; 0 means no limit."""
    embeddings: EmbeddingsSettings | None = None
    """Embeddings model for hybrid search. Default: keyword search only."""
    lease: float = Field(15, gt=0)
    """Seconds until another process takes over a file whose process died."""
    parse_timeout: float = Field(300, gt=0)
    """Time limit for extracting a file's text, in seconds."""
    index_timeout: float = Field(3600, gt=0)
    """Time limit for indexing a file, including embeddings, in seconds."""

    @field_validator("store_url")
    @classmethod
    def _is_known(cls, url: str) -> str:
        scheme, separator, _ = url.partition("://")
        if separator and scheme not in FILE_STORES:
            raise ValueError(f"must begin with {', '.join(f'{name}://' for name in FILE_STORES)}")
        if not separator and ":" not in url:
            raise ValueError("must be a store URL, such as sqlite:///files.db")
        if scheme in {"postgresql", "postgres"}:
            require_packages(["asyncpg"], "files", "postgres")
        return url

    @field_validator("content_url")
    @classmethod
    def _is_object_storage(cls, url: str | None, info: ValidationInfo) -> str | None:
        if url is None:
            return None
        read_object_url(url)
        require_packages(["obstore"], "objects")
        if "://" not in info.data.get("store_url", "://"):
            raise ValueError("requires a store_url of SQLite or PostgreSQL")
        return url

    @classmethod
    def from_table(cls, table: Mapping[str, object], environment: Mapping[str, str]) -> FileSearchSettings:
        """
        Raises `ValueError` with the invalid keys, never their values.

        Reads `store_url` from the environment variable named by `store_url_env`.
        """
        require_packages(["sqlite_vec", "pypdf", "docx"], "files")
        if not isinstance(name := table.get("store_url_env"), str):
            return read_table(cls, table)
        if "store_url" in table:
            raise ValueError("store_url_env: must be left out if store_url is set")
        if not (url := environment.get(name)):
            raise ValueError(f"store_url_env: the variable {name} is not set")
        return read_table(cls, {**table, "store_url": url})
