"""Labels of metrics and spans, kept few."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from app.errors import APIError

logger = logging.getLogger(__name__)

LISTING_INTERVAL = 60  # seconds


class BoundedLabels:
    """
    Keeps labels few. What callers or backends can name at will would otherwise fill the memory of whoever collects.

    The first `most` names that prove themselves are labels; every other is `other`.
    """

    OTHER = "other"

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def __call__(self, name: str, *, confirmed: bool = True) -> str:
        """Return the label of a name; one that is new and not `proven` does not take a place."""
        if name in self._known:
            return name
        if not confirmed or len(self._known) >= self._most:
            return self.OTHER
        self._known.add(name)
        return name


class ModelLabels:
    """
    The label of a model's name: the name itself if a backend lists it or the settings spell it out; the glob that
    serves it, such as `qwen*`, if there is one; else `other`. A name that a caller makes up never becomes a label.

    `list_models` gives the backends' models, and `configured` the label that the settings have for a name, or None.
    The models are listed when a name comes up that is not known, at most once in `LISTING_INTERVAL` seconds.
    """

    OTHER = "other"

    def __init__(
        self,
        list_models: Callable[[], Awaitable[Iterable[Mapping[str, Any]]]] | None = None,
        configured: Callable[[str], str | None] = lambda name: None,
    ) -> None:
        self._list_models = list_models
        self._configured = configured
        self._listed: frozenset[str] = frozenset()
        self._listing: asyncio.Task[None] | None = None
        self._due = 0.0  # by the loop's clock

    def expect(self, name: str) -> None:
        """List the models, if this name is not among them and it is time to list them again: it will want a label."""
        if self._list_models is None or self._listing or name in self._listed:
            return
        loop = asyncio.get_running_loop()
        if loop.time() >= self._due:
            self._due = loop.time() + LISTING_INTERVAL
            self._listing = loop.create_task(self._list())

    def resolve(self, name: str, use: Callable[[str], object]) -> None:
        """Call `use` with the label of a name: at once, or when the models that are being listed are known."""
        if self._listing is None or name in self._listed:
            use(self._label(name))
        else:
            self._listing.add_done_callback(lambda _: use(self._label(name)))

    async def settle(self, seconds: float) -> None:
        """Wait, but not longer than that, until all that was resolved has its label."""
        if self._listing:
            await asyncio.wait({self._listing}, timeout=seconds)

    async def aclose(self) -> None:
        """Stop listing; what waits for a label is `other`."""
        if self._listing:
            self._listing.cancel()
            await asyncio.wait({self._listing})

    def _label(self, name: str) -> str:
        return name if name in self._listed else self._configured(name) or self.OTHER

    async def _list(self) -> None:
        assert self._list_models
        try:
            self._listed = frozenset(str(model["id"]) for model in await self._list_models())
        except APIError:
            pass  # the backend is away, or lists nothing: what the settings name has a label all the same
        except Exception:
            logger.exception("the models could not be listed")
        finally:
            self._listing = None
