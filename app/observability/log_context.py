"""
What the work at hand is about: the ids that every line of the log bears.

    about.begin(request_id="req_1")
    about.add(response_id="resp_1")
    about.ids()  # {"request_id": "req_1", "response_id": "resp_1"}

They go where the task goes, and into the tasks that it starts, so that nobody has to pass them on.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType

_IDS: ContextVar[Mapping[str, str]] = ContextVar("ids", default=MappingProxyType({}))


def reset(**ids: str) -> None:
    """Begin something new, which has nothing to do with what this task was about before."""
    _IDS.set(ids)


def bind(**ids: str) -> None:
    """Say more of what this task is about, from now on."""
    _IDS.set({**_IDS.get(), **ids})


def fields() -> Mapping[str, str]:
    """Return the ids by name."""
    return _IDS.get()
