"""
Object storage by obstore: a bucket in S3, Google Cloud Storage or Azure, or a folder.

    s3://bucket/prefix     gs://bucket/prefix     az://container/prefix     file:///absolute/folder

The query accepts `timeout`, per request, and `connect_timeout`, in seconds. Credentials come from the providers' usual
variables, never from the URL. Requires the extra `objects`.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit

from app.errors import APIError, StoreUnavailable
from app.storage import Outage, read_options, seconds

if TYPE_CHECKING:
    from obstore import AsyncWritableFile

PART = 5 * 1024 * 1024  # bytes; S3 requires at least 5 MiB, and accepts 10,000 parts
_PARALLEL_PARTS = 2  # with the part in the buffer, a writer uses up to 15 MiB
_RETRIES = 2
_RETRY_TIMEOUT = timedelta(seconds=5)
_OPTIONS: dict[str, Callable[[str], float]] = {"timeout": seconds, "connect_timeout": seconds}

# Variables in `.env`; from the environment, obstore itself reads more.
VARIABLES: dict[str, tuple[str, ...]] = {
    "s3": (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        "AWS_ENDPOINT_URL",
        "AWS_ROLE_ARN",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
    ),
    "gs": ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_APPLICATION_CREDENTIALS"),
    "az": (
        "AZURE_STORAGE_ACCOUNT_NAME",
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_SAS_TOKEN",
        "AZURE_STORAGE_ENDPOINT",
        "AZURE_CLIENT_ID",
        "AZURE_CLIENT_SECRET",
        "AZURE_TENANT_ID",
        "AZURE_FEDERATED_TOKEN_FILE",
    ),
    "file": (),
}

# Parts of obstore's messages without credentials and response bodies.
_CAUSES = re.compile(r"status code: (\d{3} [A-Za-z ]{2,40})|<Code>(\w{1,60})</Code>|(HTTP error: [a-z ]{1,60})")


class ObjectStorage:
    """Objects by name. Every method raises the outage's error."""

    def __init__(
        self, url: str, environment: Mapping[str, str], error: Callable[[], APIError] = StoreUnavailable
    ) -> None:
        """`error` creates the outage's error. Raises `ValueError`, without credentials in its message."""
        from obstore.exceptions import BaseError  # optional

        parts = read_object_url(url)
        self.name = parts._replace(query="").geturl()
        self._outage = Outage(f"the object storage {self.name}", error)
        self._errors = (BaseError, OSError, ValueError)
        self._folder = Path(unquote(parts.path)) if parts.scheme == "file" else None
        try:
            self._store = _open(parts, environment)
        except self._errors as failure:
            variables = f" Check {', '.join(names)}." if (names := VARIABLES[parts.scheme]) else ""
            raise ValueError(f"{self.name} cannot be opened: {_reason(failure)}.{variables}") from None

    def writer(self, name: str) -> ObjectWriter:
        """The object exists once the writer is closed."""
        import obstore

        file = obstore.open_writer_async(self._store, name, buffer_size=PART, max_concurrency=_PARALLEL_PARTS)
        return ObjectWriter(file, self._reporting)

    async def read(self, name: str, start: int, size: int) -> tuple[bytes, int] | None:
        """Up to `size` bytes and the object's total size; None if it does not exist."""
        import obstore

        with self._reporting():
            try:
                result = await obstore.get_async(self._store, name, options={"range": (start, start + size)})
            except FileNotFoundError:
                return None
            return bytes(await result.bytes_async()), result.meta["size"]

    async def delete(self, names: Sequence[str]) -> None:
        """Missing objects are ignored."""
        with self._reporting():
            await asyncio.gather(*map(self._delete, names))

    async def check(self) -> None:
        """Objects can be written, read and deleted."""
        name = f"check-{os.urandom(8).hex()}"
        writer = self.writer(name)
        await writer.write(b"x")
        await writer.close()
        found = await self.read(name, 0, 1)
        await self.delete([name])
        if found is None:
            raise self.unavailable("an object cannot be read after it was written")

    def unavailable(self, reason: str) -> APIError:
        """Log the reason; return the error to raise."""
        return self._outage.begins(reason)

    async def _delete(self, name: str) -> None:
        import obstore

        with suppress(FileNotFoundError):
            await obstore.delete_async(self._store, name)
        if self._folder:  # obstore's temporary file, if a process was killed
            await asyncio.to_thread((self._folder / f"{name}#1").unlink, missing_ok=True)

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Raise the outage's error: obstore's can quote a signed URL."""
        try:
            yield
        except self._errors as error:
            raise self._outage.begins(_reason(error)) from None
        self._outage.ends()


class ObjectWriter:
    """Writes an object in parts of `PART` bytes."""

    def __init__(self, file: AsyncWritableFile, reporting: Callable[[], Any]) -> None:
        self._file, self._reporting = file, reporting

    async def write(self, data: bytes) -> None:
        with self._reporting():
            await self._file.write(data)

    async def close(self) -> None:
        with self._reporting():
            await self._file.close()

    async def abort(self) -> None:
        """Delete the uploaded parts."""
        with self._reporting():
            await self._file.__aexit__(Exception, Exception(), None)


def read_object_url(url: str) -> SplitResult:
    """Raises `ValueError`, which quotes only option names."""
    try:
        parts = urlsplit(url)
        invalid = parts.username is not None or parts.password is not None or bool(parts.fragment)
    except ValueError:
        invalid = True
    if not invalid:
        whole = bool(parts.path.strip("/")) and not parts.netloc if parts.scheme == "file" else bool(parts.netloc)
        invalid = parts.scheme not in VARIABLES or not whole or ".." in parts.path.split("/")
    if invalid:
        raise ValueError(
            "must be s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///absolute/folder, "
            "without credentials"
        )
    read_options(parts.query, _OPTIONS)
    return parts


def _open(parts: SplitResult, environment: Mapping[str, str]) -> Any:
    from obstore.store import LocalStore, from_url

    if parts.scheme == "file":
        folder = Path(unquote(parts.path))
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return LocalStore(folder)
    open_store: Any = from_url  # typed for one provider at a time
    options = {"timeout": 30.0, "connect_timeout": 5.0, **read_options(parts.query, _OPTIONS)}
    return open_store(
        parts._replace(query="").geturl(),
        config={name: environment[name] for name in VARIABLES[parts.scheme] if name in environment},
        # The providers' own endpoints use TLS; only a configured endpoint can be plain HTTP.
        client_options={"allow_http": True, **{name: timedelta(seconds=value) for name, value in options.items()}},
        retry_config={"max_retries": _RETRIES, "retry_timeout": _RETRY_TIMEOUT},
    )


def _reason(error: Exception) -> str:
    """The cause, without URL, credentials and response body."""
    if isinstance(error, OSError) and error.strerror:
        return f"{type(error).__name__}: {error.strerror}"
    causes = [next(filter(None, cause)) for cause in _CAUSES.findall(str(error))]
    return ", ".join([type(error).__name__, *dict.fromkeys(causes)])
