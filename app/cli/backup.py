"""`antiphon backup`: backs up a server's SQLite files, while it runs."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from urllib.parse import unquote, urlsplit

import apsw

from app.cli.options import CommandError
from app.settings import Settings
from app.settings.loading import environment
from app.tools.files.settings import FileSearchSettings

ADVICE = {
    "memory": "memory:// keeps nothing that could be backed up.",
    "redis": "Back up Redis with its own tools: redis-cli --rdb backup.rdb",
    "postgresql": "Back up PostgreSQL with its own tools: pg_dump --format=custom DATABASE > backup.dump",
}
ADVICE |= {"rediss": ADVICE["redis"], "redis+cluster": ADVICE["redis"], "postgres": ADVICE["postgresql"]}


def back_up(settings: Settings, target: Path) -> list[Path]:
    """
    Copy the store's SQLite file to `target`, and the store of `[tools.file_search]` to `target` plus `-files`.

    Vector store indexes go to `TARGET-files.indexes`. Each copy is consistent, also while the server writes. Returns
    the paths written; raises `CommandError`.
    """
    scheme = settings.store_url.partition(":")[0]
    if scheme != "sqlite":
        raise CommandError(ADVICE.get(scheme, f"The store {scheme}:// must be backed up with its own tools."))
    copies = [(_path(settings.store_url), target)]
    if (url := _files_url(settings)).startswith("sqlite:"):
        files, copied = _path(url), target.with_name(f"{target.name}-files")
        indexes = sorted(files.with_name(f"{files.name}.indexes").glob("*.db"))
        copies.append((files, copied))
        copies += [(index, copied.with_name(f"{copied.name}.indexes") / index.name) for index in indexes]
    copies = [(source, copy) for source, copy in copies if source.exists()]
    if not copies:
        raise CommandError(f"File not found: {_path(settings.store_url)}")
    if existing := [str(copy) for _, copy in copies if copy.exists()]:
        raise CommandError(f"File exists: {', '.join(existing)}")
    for source, copy in copies:
        _copy(source, copy)
    return [copy for _, copy in copies]


def _files_url(settings: Settings) -> str:
    if (table := settings.tool_tables().get("file_search")) is None:
        return ""
    if name := table.get("store_url_env"):
        return environment().get(str(name), "")
    return str(table.get("store_url", FileSearchSettings.model_fields["store_url"].default))


def _path(url: str) -> Path:
    return Path(unquote(urlsplit(url).path)[1:]).expanduser()


def _copy(source: Path, target: Path) -> None:
    """Use SQLite's online backup, with access only for this user; leave no partial file."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.partial")
    try:
        os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
        with _open(source) as original, _open(partial) as copy:
            original.set_busy_timeout(10_000)
            original.pragma("schema_version")  # fails here, with a clear message, if the file is not a database
            with copy.backup("main", original, "main") as backup:
                backup.step(-1)  # in one read transaction, during which the server can write
        partial.rename(target)
    except (OSError, apsw.Error) as error:
        raise CommandError(f"{source}: {error}") from error
    finally:
        partial.unlink(missing_ok=True)


def _open(path: Path) -> closing[apsw.Connection]:
    return closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE))
