"""
One line for each event in the life of a server or a response: text for eyes, JSON for machines. Each has the ids of
the request and the response that it is about.

    logger.info("response completed", extra={"response": id, "seconds": 1.2})

    2026-11-20T15:30:00.123Z info app.responses response completed response=resp_5f37... seconds=1.2
    {"time": "2026-11-20T15:30:00.123Z", "level": "info", "logger": "app.responses", "message": ...}

Configured keys, bearer tokens, whatever looks like an API key, and passwords in URLs are redacted in the finished line,
tracebacks included. Prompts and answers are not logged: a traceback about a request has no messages, since they may
quote it, and the log of content (`app.content`) has a setting of its own. What is not printable is escaped. Nothing is
logged per token.
"""

from __future__ import annotations

import json
import logging
import logging.config
import traceback
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from app.backends import PASSTHROUGH
from app.core.redaction import Redactor
from app.observability import log_context
from app.settings import Settings

# What every record has; anything else was given as `extra`.
_OWN = {*logging.LogRecord("", 0, "", 0, "", (), None).__dict__, "message", "asctime", "taskName", "color_message"}


def printable(text: str, keep: str = "") -> str:
    """Return a text in which whatever is not printable is escaped as in JSON, but for the characters of `keep`."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character in keep else _escaped(character) for character in text
    )


def _escaped(character: str) -> str:
    escaped = json.dumps(character)[1:-1]
    return escaped if escaped != character else f"\\u{ord(character):04x}"  # DEL, which JSON takes as it is


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    """Return what the line says beside its message: the ids of what it is about, and what was given with it."""
    return {**log_context.fields(), **{name: value for name, value in record.__dict__.items() if name not in _OWN}}


def _word(value: object) -> str:
    """Write a value so that its end can be seen."""
    if isinstance(value, str) and value and not any(character in value for character in ' "\r\n'):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the errors that led to this one, the first of them first, and itself."""
    errors: list[BaseException] = []
    while error is not None and error not in errors:
        errors.append(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return reversed(errors)


def _without_messages(error: BaseException) -> str:
    """Write a traceback with the kinds of the errors alone: what they say may quote what a caller or a model said."""
    return "\n".join(
        f"Traceback (most recent call last):\n{''.join(traceback.format_tb(one.__traceback__))}{type(one).__qualname__}"
        for one in _chain(error)
    )


class _Formatter(logging.Formatter):
    """What our formatters have in common; with `content`, prompts and answers may be in a traceback."""

    def __init__(self, secrets: Iterable[str] = (), content: bool = False) -> None:
        super().__init__()
        self._redact = Redactor(secrets)
        self._content = content

    def _traceback(self, record: logging.LogRecord) -> str:
        """Return the record's traceback; "" if it has none."""
        info = record.exc_info
        if not info or info[1] is None:
            return ""
        return self.formatException(info) if self._content or not log_context.fields() else _without_messages(info[1])


class TextFormatter(_Formatter):
    """`time level logger message name=value ...`, a traceback below it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; nothing in it can pass for another event, or be a command to a terminal."""
        extra = "".join(f" {name}={_word(value)}" for name, value in _extra(record).items())
        line = f"{_time(record)} {record.levelname.lower()} {record.name} {record.getMessage()}{extra}"
        line = printable(self._redact(line))
        if trace := self._traceback(record):
            line = f"{line}\n{printable(self._redact(trace), keep=chr(10))}"
        return line


class JSONFormatter(_Formatter):
    """One JSON object: `time`, `level`, `logger`, `message`, ids, what was given as `extra`, and `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        fields = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extra(record),
        }
        if trace := self._traceback(record):
            fields["exception"] = trace
        return printable(self._redact(json.dumps(fields, ensure_ascii=False, default=str)))


FORMATTERS = {"text": TextFormatter, "json": JSONFormatter}


def secrets_of(settings: Settings) -> list[str]:
    """Return every secret that is configured."""
    backends = settings.served().values()
    keys = [*settings.api_keys, *settings.secret_key, *(backend.key for backend in backends if backend.key)]
    passwords = [
        urlsplit(url).password
        for url in (settings.store_url, settings.limit_store_url, *(backend.url for backend in backends))
    ]
    known = [key.get_secret_value() for key in keys]
    known += [*(password for password in passwords if password), *settings.tool_secrets()]
    return [secret for secret in known if secret != PASSTHROUGH]


def config(settings: Settings) -> dict[str, Any]:
    """Return the configuration for `logging.config.dictConfig`: also for uvicorn, which applies it in every worker."""
    level = settings.log_level.upper()
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "line": {
                "()": FORMATTERS[settings.log_format],
                "secrets": secrets_of(settings),
                "content": settings.log_content,
            }
        },
        "handlers": {"stderr": {"class": "logging.StreamHandler", "stream": "ext://sys.stderr", "formatter": "line"}},
        "root": {"level": "WARNING", "handlers": ["stderr"]},
        "loggers": {
            "app": {"level": level},
            "app.content": {"level": level if settings.log_content else "CRITICAL"},
            # At debug it would log the frames and the headers of WebSockets, keys and prompts included.
            "uvicorn": {"level": "INFO" if level == "DEBUG" else level, "handlers": [], "propagate": True},
            # It would say again, and in its own way, what `app.access` says of each request.
            "uvicorn.access": {"handlers": [], "propagate": False},
        },
    }


def configure(settings: Settings) -> None:
    """Make the standard library's logging write our lines to stderr."""
    logging.config.dictConfig(config(settings))
