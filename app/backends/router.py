"""
Several backends as one: which of them serves a model, and who is asked when that one cannot.

The first backend with a pattern or an alias that fits a model's name serves it. If it fails before anything of an
answer has come, another server of it is asked, then the backends it falls back on; behind the first chunk there is no
second try. The table of backends can be replaced at any time: streams that run go on with the old one.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from fnmatch import fnmatchcase
from typing import Any

from app.backends import ChatRequest, Chunk, TokenCounter
from app.backends.health import is_for_another
from app.backends.pool import Pool, Replica, Served, first_good
from app.core.profile import Profile
from app.errors import BackendError, InvalidRequest, NotFound

logger = logging.getLogger(__name__)

_LISTING = 10.0  # seconds that a server has to list its models


class Router:
    """
    The backend that asks others.

    `served` are the settings of the backends by name, in the order in which they are asked whether they serve a model;
    `build` makes the backend of the settings of one server.
    """

    def __init__(self, served: Mapping[str, Served], build: Callable[[Any], Any]) -> None:
        self._build = build
        self._pools = {name: Pool(name, settings, build) for name, settings in served.items()}
        self._leaving: set[asyncio.Task[None]] = set()

    def renew(self, served: Mapping[str, Served]) -> None:
        """
        Serve with other settings from now on; what is the same in both keeps its connections and what is known of it.

        If a backend cannot be built, nothing changes, and the error is raised.
        """
        old = self._pools
        kept = {name: old[name] for name, settings in served.items() if name in old and old[name].served == settings}
        self._pools = {name: kept.get(name) or Pool(name, settings, self._build) for name, settings in served.items()}
        for name, pool in old.items():
            if name not in kept:
                leaving = asyncio.create_task(pool.drain())
                self._leaving.add(leaving)
                leaving.add_done_callback(self._leaving.discard)

    def profile(self, model: str) -> Profile:
        """Return what is known of the backend that serves a model; raises `NotFound` if there is none."""
        return self._route(model)[0].profile(model)

    @asynccontextmanager
    async def stream(self, request: ChatRequest) -> AsyncIterator[AsyncIterator[list[Chunk]]]:
        """Ask, and answer in chunks: see `Backend.stream`."""
        pools = self._route(request.model or request.body["model"])
        async with AsyncExitStack() as stack:
            answer = _Answer(stack, pools, request)
            await answer.open()
            yield answer

    async def count_tokens(self, request: ChatRequest) -> int | None:
        """Return how many tokens the prompt of a request is; None if the server does not say."""
        for replica in self._route(request.model or request.body["model"])[0].replicas:
            if replica.circuit.ready and isinstance(replica.backend, TokenCounter):
                return await replica.backend.count_tokens(request)
        return None

    async def models(self, caller_key: str | None = None) -> list[dict[str, Any]]:
        """
        Return the models on offer, as entries of the OpenAI list: those that each backend has and is asked for.

        A backend that does not answer is left out, but for the names that the settings have. Where several backends
        take the callers' keys, a caller's is shown to none of them, since it is meant for one.
        """
        pools = [*self._pools.values()]
        key = caller_key if sum(pool.served.passes_keys for pool in pools) == 1 else None
        listed = await asyncio.gather(*(_listed(pool, key) for pool in pools))
        models: dict[str, dict[str, Any]] = {}
        for pool, found in zip(pools, listed, strict=True):
            known = {str(model["id"]): model for model in found if isinstance(found, list)} if found else {}
            for name, model in known.items():
                if pool in self._candidates(name):
                    models.setdefault(name, model)
            for name in _names(pool):
                target = pool.served.aliases.get(name, name)
                models.setdefault(name, {**known.get(target, {**_MODEL, "owned_by": pool.name}), "id": name})
        errors = [one for one in listed if isinstance(one, BackendError)]
        if not models and errors:
            raise errors[0]
        return [*models.values()]

    async def check(self) -> None:
        """Return if a backend can be reached; raise `BackendError` if none can."""
        await first_good([pool.check() for pool in self._pools.values()])

    async def aclose(self) -> None:
        """Close all connections."""
        for leaving in self._leaving:
            leaving.cancel()
        await asyncio.gather(*self._leaving, return_exceptions=True)
        for pool in self._pools.values():
            await pool.aclose()

    def _route(self, model: str) -> Sequence[Pool]:
        """Return the backends to ask for a model, in this order; raises `NotFound` if there are none."""
        if not (found := self._candidates(model)):
            names = ", ".join(dict.fromkeys(name for pool in self._pools.values() for name in _claims(pool)))
            raise NotFound(
                f"No backend serves the model '{model}'. There are: {names}.", param="model", code="model_not_found"
            )
        first, *others = found
        if (named := first.served.fallbacks) is not None:
            return [first, *(self._pools[name] for name in named if name in self._pools and name != first.name)]
        closely = _claim(first, model) != "*"
        return [first, *(pool for pool in others if _is_fallback(pool, model, closely))]

    def _candidates(self, model: str) -> list[Pool]:
        return [pool for pool in self._pools.values() if _claim(pool, model) is not None]
