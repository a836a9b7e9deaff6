"""A request with its raw answer, readable as JSON, as events, and as `curl`."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from openresponses_verify.laws.law import TERMINAL_STATUS

_SHOWN = 2000  # characters of a request to print
_CACHE_SIZE = 64  # parsed answers in the cache


class ServerSentEvent(NamedTuple):
    name: str | None
    data: str
    id: str | None = None


@dataclass
class HTTPExchange:
    """A request and its answer. `error` is the reason for a missing or partial answer."""

    method: str
    url: str
    body: object = None  # bytes are sent unchanged, other values as JSON
    key: str | None = None  # name of the environment variable in `curl()`
    status: int = 0  # 0: no answer
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes = b""
    error: str = ""
    frames: list[dict[str, Any]] = field(default_factory=list)  # received on a WebSocket
    sent: list[object] = field(default_factory=list)  # sent on a WebSocket
    added: tuple[str, ...] = ()  # names of additional headers; their values may be secret

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300 and not self.error

    @property
    def json(self) -> Any:
        """The parsed body; None if invalid."""
        return _document(self.content)

    @property
    def object(self) -> dict[str, Any]:
        """The parsed body; {} unless it is a JSON object."""
        document = self.json
        return document if isinstance(document, dict) else {}

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def server_sent(self) -> list[ServerSentEvent]:
        return list(_server_sent(self.content))

    @property
    def events(self) -> list[dict[str, Any]]:
        """JSON objects received in an event stream or on a WebSocket."""
        if self.frames:
            return self.frames
        return list(_event_documents(self.content))

    @property
    def response(self) -> dict[str, Any]:
        """The body, or the response in the last event; {} if absent."""
        if not self.frames and (self.content_type == "application/json" or self.object):
            return self.object
        found = [event for event in self.events if isinstance(event.get("response"), dict)]
        ends = [event for event in found if str(event.get("type")) in TERMINAL_STATUS]
        return dict((ends or found)[-1]["response"]) if found else {}

    @property
    def output(self) -> list[dict[str, Any]]:
        items = self.response.get("output")
        return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []

    @property
    def usage(self) -> dict[str, Any]:
        usage = self.response.get("usage")
        return usage if isinstance(usage, dict) else {}

    @property
    def listed(self) -> list[dict[str, Any]]:
        data = self.object.get("data")
        return [one for one in data if isinstance(one, dict)] if isinstance(data, list) else []

    @property
    def listed_ids(self) -> list[Any]:
        return [one.get("id") for one in self.listed]

    @property
    def refusal(self) -> dict[str, Any]:
        """The error in the body, in a WebSocket frame, or in a failed response."""
        for document in (self.object, *self.frames[-1:], self.response):
            if isinstance(document.get("error"), dict):
                return dict(document["error"])
        detail = self.object.get("detail") or self.object.get("error") or self.object.get("message")
        return {"message": detail if isinstance(detail, str) else json.dumps(detail) if detail else ""}

    def curl(self) -> str:
        """Return the request as a shell command. Keys and added headers become environment variables."""
        if self.sent:
            lines = "\n".join(f"> {_shortened(json.dumps(frame, ensure_ascii=False))}" for frame in self.sent)
            return f"websocat {self.url}{self._authorization()}\n{lines}"
        words = ["curl", "-sN"] + (["-X", self.method] if self.method not in ("GET", "POST") else [])
        data = ""
        if self.body is not None:
            text = self.body.decode(errors="replace") if isinstance(self.body, bytes) else _written(self.body)
            data = f" -H 'Content-Type: application/json' -d {shlex.quote(_shortened(text))}"
        elif self.method == "POST":
            words += ["-X", "POST"]
        return f"{' '.join(words)} {shlex.quote(self.url)}{self._authorization()}{data}"

    def _authorization(self) -> str:
        names = [f"Authorization: Bearer ${self.key}"] if self.key else []
        names += [f"{name}: ${re.sub(r'[^A-Z0-9]', '_', name.upper())}" for name in self.added]
        return "".join(f' -H "{name}"' for name in names)

    def outcome(self) -> str:
        if self.error:
            return self.error
        message = str(self.refusal.get("message") or "")
        return f"HTTP {self.status}{f': {message[:200]}' if message else ''}"


def _written(body: object) -> str:
    """Serialize a body, escaping lone surrogates."""
    text = json.dumps(body, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(body)


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text):,} characters)"


def read_json(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def read_object(text: str | bytes) -> dict[str, Any]:
    document = read_json(text)
    return document if isinstance(document, dict) else {}


def read_events(content: bytes) -> Iterator[ServerSentEvent]:
    """Parse an event stream by the HTML standard. An unfinished event at the end is discarded."""
    text = content.decode("utf-8", errors="replace").removeprefix("\ufeff")
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    fields: dict[str, list[str]] = {}
    for line in lines[:-1]:
        if line == "":
            if "data" in fields:
                names, ids = fields.get("event"), fields.get("id")
                data = "\n".join(fields["data"])
                yield ServerSentEvent(names[-1] if names else None, data, ids[-1] if ids else None)
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            fields.setdefault(name, []).append(value.removeprefix(" "))


# Many checks parse the same answers. Callers must not modify the cached documents.


@lru_cache(_CACHE_SIZE)
def _document(content: bytes) -> Any:
    return read_json(content)


@lru_cache(_CACHE_SIZE)
def _server_sent(content: bytes) -> tuple[ServerSentEvent, ...]:
    return tuple(read_events(content))


@lru_cache(_CACHE_SIZE)
def _event_documents(content: bytes) -> tuple[dict[str, Any], ...]:
    documents = (read_json(event.data) for event in _server_sent(content))
    return tuple(document for document in documents if isinstance(document, dict))
