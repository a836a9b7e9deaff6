"""Labels of metrics and spans, limited in number."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping

from app.errors import APIError
from app.runtime.tasks import end

logger = logging.getLogger(__name__)

LISTING_INTERVAL = 60  # seconds
LAST_LISTING_TIMEOUT = 1.0  # seconds that a listing in progress gets at shutdown


class BoundedLabels:
    """
    Limits the number of labels: names that callers or backends invent would otherwise fill the collector's memory.

    The first `limit` confirmed names are labels; all others are `other`.
    """

    OTHER = "other"

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._labels: set[str] = set()

    def __call__(self, name: str, *, confirmed: bool = True) -> str:
        """Return the label of a name; a new name only becomes a label if it is `confirmed`."""
        if name in self._labels:
            return name
        if not confirmed or len(self._labels) >= self._limit:
            return self.OTHER
        self._labels.add(name)
        return name


class ModelLabels:
    """
    The labels of model names: the name itself if a backend lists it or the settings have it; else the glob that serves
    it, such as `qwen*`; else `other`. A name that a caller invents never becomes a label.

    `list_models` returns the backends' models, and `configured` the label of a name in the settings, or None. The
    models are listed when a new name is used, at most every `LISTING_INTERVAL` seconds.
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
        self._due = 0.0  # when the models may be listed again, in loop time

    def expect(self, name: str) -> None:
        """List the models, if a label will be needed for a name that is not among them."""
        if self._list_models is None or self._listing or name in self._listed:
            return
        loop = asyncio.get_running_loop()
        if loop.time() >= self._due:
            self._due = loop.time() + LISTING_INTERVAL
            self._listing = loop.create_task(self._list())

    def resolve(self, name: str, use: Callable[[str], object]) -> None:
        """Call `use` with the label of a name: at once, or when a listing in progress has ended."""
        if self._listing is None or name in self._listed:
            use(self._label(name))
        else:
            self._listing.add_done_callback(lambda _: use(self._label(name)))

    async def wait(self, seconds: float) -> None:
        """Wait up to `seconds` until all resolved names have their labels."""
        if self._listing:
            await asyncio.wait({self._listing}, timeout=seconds)

    async def aclose(self) -> None:
        """Wait for a listing in progress; if it takes long, names that wait for it have the labels without it."""
        await self.wait(LAST_LISTING_TIMEOUT)
        await end(self._listing)

    def _label(self, name: str) -> str:
        return name if name in self._listed else self._configured(name) or self.OTHER

    async def _list(self) -> None:
        assert self._list_models
        try:
            self._listed = frozenset(str(model["id"]) for model in await self._list_models())
        except APIError:
            pass  # the backend is unavailable or lists no models: the settings still provide labels
        except Exception:
            logger.exception("the models could not be listed")
        finally:
            self._listing = None
