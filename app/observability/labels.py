from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVarTuple

from app.errors import APIError
from app.runtime.tasks import end

Ts = TypeVarTuple("Ts")

logger = logging.getLogger(__name__)

LISTING_INTERVAL = 60  # seconds
LAST_LISTING_TIMEOUT = 1.0  # seconds for a running model list request at shutdown


class BoundedLabels:
    """
    Limits the number of labels, because invented names would fill the collector's memory.

    The first `limit` confirmed names are labels; all others become `other`.
    """

    OTHER = "other"

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._labels: set[str] = set()

    def __call__(self, name: str, *, confirmed: bool = True) -> str:
        """A new name becomes a label only if `confirmed`."""
        if name in self._labels:
            return name
        if not confirmed or len(self._labels) >= self._limit:
            return self.OTHER
        self._labels.add(name)
        return name


class ModelLabels:
    """
    Labels for model names, never invented by callers.

    A label is a name that a backend lists or the settings contain, else the matching glob from the settings (`qwen*`),
    else `other`. `configured` returns a name's label in the settings. New names trigger `list_models`, at most every
    `LISTING_INTERVAL` seconds.
    """

    OTHER = "other"

    def __init__(
        self,
        list_models: Callable[[], Awaitable[Iterable[Mapping[str, object]]]] | None = None,
        configured: Callable[[str], str | None] = lambda name: None,
    ) -> None:
        self._list_models = list_models
        self._configured = configured
        self._listed: frozenset[str] = frozenset()
        self._listing: asyncio.Task[None] | None = None
        self._due = 0.0  # next permitted request, in loop time

    def expect(self, name: str) -> None:
        """Request the model list for an unlisted name."""
        if self._list_models is None or self._listing or name in self._listed:
            return
        loop = asyncio.get_running_loop()
        if loop.time() >= self._due:
            self._due = loop.time() + LISTING_INTERVAL
            self._listing = loop.create_task(self._list())

    def resolve(self, name: str, use: Callable[[str, *Ts], object], *args: *Ts) -> None:
        """Call `use` with the name's label and further arguments, after a running model list request."""
        if self._listing is None or name in self._listed:
            use(self._label(name), *args)
        else:
            self._listing.add_done_callback(lambda _: use(self._label(name), *args))

    async def wait(self, seconds: float) -> None:
        if self._listing:
            await asyncio.wait({self._listing}, timeout=seconds)

    async def aclose(self) -> None:
        """Wait briefly for a running model list request; without it, labels come from the settings."""
        await self.wait(LAST_LISTING_TIMEOUT)
        await end(self._listing)

    def _label(self, name: str) -> str:
        return name if name in self._listed else self._configured(name) or self.OTHER

    async def _list(self) -> None:
        assert self._list_models
        try:
            self._listed = frozenset(str(model["id"]) for model in await self._list_models())
        except APIError:
            pass  # labels come from the settings
        except Exception:
            logger.exception("model list request failed")
        finally:
            self._listing = None
