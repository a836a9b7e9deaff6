"""
The ids on every log line, and the current request's access log line.

    log_context.reset(request_id="req_1")
    log_context.bind(response_id="resp_1")
    log_context.fields()  # {"request_id": "req_1", "response_id": "resp_1"}

They are context variables, shared by a task and the tasks it starts.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType

access = logging.getLogger("app.access")


class RequestLine:
    """The line logged after an HTTP request. A response created by the request adds its fields."""

    __slots__ = ("fields", "level", "logged", "message")

    def __init__(self) -> None:
        self.message = "request"
        self.level = logging.INFO
        self.fields: dict[str, object] = {}
        self.logged = False  # whether it is too late to add fields


_LINE: ContextVar[RequestLine | None] = ContextVar("line", default=None)
_IDS: ContextVar[Mapping[str, str | None]] = ContextVar("ids", default=MappingProxyType({}))


def reset(line: RequestLine | None = None, /, **ids: str) -> None:
    """Replace this task's ids and line."""
    _IDS.set(ids)
    _LINE.set(line)


def bind(**ids: str | None) -> None:
    """Add ids to this task; None removes an id."""
    _IDS.set({**_IDS.get(), **ids})


def fields() -> dict[str, str]:
    return {name: value for name, value in _IDS.get().items() if value is not None}


def request_id() -> str:
    return _IDS.get().get("request_id") or ""


def request_line() -> RequestLine | None:
    """The line of this task's HTTP request; None once it was logged."""
    line = _LINE.get()
    return None if line is None or line.logged else line
