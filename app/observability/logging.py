"""
Log formatting: a line per entry, as text or JSON, with the request and response ids.

    logger.info("response completed", extra={"response": id, "seconds": 1.2})
    2026-11-20T15:30:00.123Z info app.responses response completed response=resp_5f37... seconds=1.2
    {"time": "2026-11-20T15:30:00.123Z", "level": "info", "logger": "app.responses", "message": ...}

Lines and tracebacks are redacted: configured keys, bearer tokens, strings that look like API keys, passwords in URLs.
Only the logger `app.content`, with its own setting, logs prompts and answers; other tracebacks of requests omit
exception messages, which can quote them. Nothing is logged per token.
"""

from __future__ import annotations

import json
import logging
import logging.config
import re
import traceback
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from urllib.parse import urlsplit

from app.backends import PASSTHROUGH
from app.core.redaction import Redactor
from app.observability import log_context
from app.settings import Settings

# Attributes of every record; others come from `extra`.
_RECORD_ATTRIBUTES = {
    *logging.LogRecord("", 0, "", 0, "", (), None).__dict__,
    "message",
    "asctime",
    "taskName",
    "color_message",
}


def printable(text: str, keep: str = "") -> str:
    """Escape non-printable characters as in JSON, except characters in `keep`."""
    if text.isprintable():
        return text
    characters = []
    for character in text:
        if not character.isprintable() and character not in keep:
            escaped = json.dumps(character)[1:-1]
            # JSON does not escape DEL.
            character = escaped if escaped != character else f"\\u{ord(character):04x}"
        characters.append(character)
    return "".join(characters)


@lru_cache(maxsize=1)
def _second(timestamp: int) -> str:
    return datetime.fromtimestamp(timestamp, UTC).strftime("%Y-%m-%dT%H:%M:%S")


_to_json = json.JSONEncoder(ensure_ascii=False, default=str).encode
_QUOTED = re.compile(r'[ "\r\n]|\A\Z')  # strings to quote


def _format_value(value: object) -> str:
    if type(value) is int:
        return str(value)
    if isinstance(value, str) and not _QUOTED.search(value):
        return value
    return _to_json(value)


def _without_messages(error: BaseException) -> str:
    """A traceback without messages, which can quote a prompt or an answer."""
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:
        causes.insert(0, cause)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return "\n".join(
        f"Traceback (most recent call last):\n{''.join(traceback.format_tb(cause.__traceback__))}"
        f"{type(cause).__qualname__}"
        for cause in causes
    )


class Formatter(logging.Formatter):
    """
    Formats a text line `time level logger message name=value ...`, then a traceback; with `as_json`, a JSON object.

    The object has `time`, `level`, `logger`, `message`, ids, `extra` fields, and `exception`.
    """

    def __init__(self, secrets: Iterable[str] = (), *, as_json: bool = False, content: bool = False) -> None:
        """With `content`, tracebacks include exception messages."""
        super().__init__()
        self._redact = Redactor(secrets)
        self._as_json = as_json
        self._content = content

    def format(self, record: logging.LogRecord) -> str:
        """Escapes prevent forged lines and terminal control sequences."""
        time = f"{_second(int(record.created))}.{int(record.created * 1000) % 1000:03d}Z"
        level, message, trace = record.levelname.lower(), record.getMessage(), ""
        if (info := record.exc_info) and info[1]:
            quotes = self._content or not log_context.fields()
            trace = self.formatException(info) if quotes else _without_messages(info[1])
        extra: dict[str, object] = {**log_context.fields()}
        extra |= {name: value for name, value in record.__dict__.items() if name not in _RECORD_ATTRIBUTES}
        if self._as_json:
            fields = {"time": time, "level": level, "logger": record.name, "message": message, **extra}
            return printable(self._redact(_to_json({**fields, "exception": trace} if trace else fields)))
        shown = "".join(f" {name}={_format_value(value)}" for name, value in extra.items())
        line = printable(self._redact(f"{time} {level} {record.name} {message}{shown}"))
        return f"{line}\n{printable(self._redact(trace), keep=chr(10))}" if trace else line


def secrets_of(settings: Settings) -> list[str]:
    backends = settings.served().values()
    keys = [*settings.api_keys, *settings.secret_key, *(backend.key for backend in backends if backend.key)]
    keys += [secret for key in settings.keys.values() for secret in key.secrets]
    passwords = [
        urlsplit(url).password
        for url in (settings.store_url, settings.limit_store_url, *(backend.url for backend in backends))
    ]
    secrets = [key.get_secret_value() for key in keys]
    secrets += [webhook.signing_secret for webhook in settings.webhooks.values()]
    secrets += [*(password for password in passwords if password), *settings.tool_secrets()]
    return [secret for secret in secrets if secret != PASSTHROUGH]


def config(settings: Settings) -> dict[str, object]:
    """The argument of `logging.config.dictConfig`, which uvicorn applies in every worker."""
    level = settings.log_level.upper()
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "line": {
                "()": Formatter,
                "as_json": settings.log_format == "json",
                "secrets": secrets_of(settings),
                "content": settings.log_content,
            }
        },
        "handlers": {"stderr": {"class": "logging.StreamHandler", "stream": "ext://sys.stderr", "formatter": "line"}},
        "root": {"level": "WARNING", "handlers": ["stderr"]},
        "loggers": {
            "app": {"level": level},
            "app.content": {"level": level if settings.log_content else "CRITICAL"},
            # At debug level, uvicorn logs WebSocket frames and headers, including keys and prompts.
            "uvicorn": {"level": "INFO" if level == "DEBUG" else level, "handlers": [], "propagate": True},
            # `app.access` logs requests instead.
            "uvicorn.access": {"handlers": [], "propagate": False},
        },
    }


def configure(settings: Settings) -> None:
    logging.config.dictConfig(config(settings))
