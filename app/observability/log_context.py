"""
The ids that are added to every line of the log.

    log_context.reset(request_id="req_1")
    log_context.bind(response_id="resp_1")
    log_context.fields()  # {"request_id": "req_1", "response_id": "resp_1"}

They are context variables, so a task and the tasks that it starts share them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType

_IDS: ContextVar[Mapping[str, str]] = ContextVar("ids", default=MappingProxyType({}))


def reset(**ids: str) -> None:
    """Replace the ids of this task."""
    _IDS.set(ids)


def bind(**ids: str) -> None:
    """Add ids to those of this task."""
    _IDS.set({**_IDS.get(), **ids})


def fields() -> Mapping[str, str]:
    """Return the ids by name."""
    return _IDS.get()
