"""
The ids that are added to every line of the log, and the line with which a request ends.

    log_context.reset(request_id="req_1")
    log_context.bind(response_id="resp_1")
    log_context.fields()  # {"request_id": "req_1", "response_id": "resp_1"}

They are context variables, so a task and the tasks that it starts share them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType


class RequestLine:
    """The line that is logged when an HTTP request ends: a response that it creates adds its own end to it."""

    __slots__ = ("fields", "level", "logged", "message")

    def __init__(self) -> None:
        self.message = "request"
        self.level = logging.INFO
        self.fields: dict[str, object] = {}
        self.logged = False  # whether it is too late to add anything


_LINE: ContextVar[RequestLine | None] = ContextVar("line", default=None)
_IDS: ContextVar[Mapping[str, str]] = ContextVar("ids", default=MappingProxyType({}))


def reset(line: RequestLine | None = None, /, **ids: str) -> None:
    """Replace the ids of this task, and its line."""
    _IDS.set(ids)
    _LINE.set(line)


def bind(**ids: str | None) -> None:
    """Add ids to those of this task; None removes one."""
    _IDS.set({name: value for name, value in {**_IDS.get(), **ids}.items() if value is not None})


def fields() -> Mapping[str, str]:
    """Return the ids by name."""
    return _IDS.get()


def request_id() -> str:
    """Return the id of the request that this task belongs to; "" if there is none."""
    return _IDS.get().get("request_id", "")


def request_line() -> RequestLine | None:
    """Return the line of the HTTP request that this task belongs to; None if there is none, or it has been logged."""
    line = _LINE.get()
    return None if line is None or line.logged else line
