"""
Several backends as one: routing by model, and failover.

The first backend with a matching alias or pattern serves a model. A request that fails before its first delta is sent
to another server in the backend, then to fallback backends. Open streams continue with replaced backends.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from app.backends import Backend, DeltaReceiver, OpenRawRequest, RawRequest, RequestObservation, Translation
from app.backends.routing.replicas import (
    BackendConfig,
    Lease,
    Replica,
    ReplicaPool,
    RoutingHooks,
    first_success,
    may_fail_over,
)
from app.core.profile import Profile
from app.core.request.model_request import EncodedRequest, ModelRequest
from app.core.types import JSONObject
from app.errors import APIError, BackendError, ImagesUndescribed, NotFound, missing_parameter
from app.runtime.threads import run_in_thread_if_large

logger = logging.getLogger(__name__)


class Router(Backend):
    """`configs` are in order of precedence."""

    def __init__(
        self,
        configs: Mapping[str, BackendConfig],
        build: Callable[[Any], Any],
        hooks: RoutingHooks = RoutingHooks(),  # noqa: B008 (frozen)
    ) -> None:
        self._hooks = hooks
        self._pool = partial(ReplicaPool, build=build, hooks=hooks)
        self._draining: dict[ReplicaPool, asyncio.Task[None]] = {}
        self._install({name: self._pool(name, settings) for name, settings in configs.items()})

    def _install(self, pools: dict[str, ReplicaPool]) -> None:
        self._pools = pools
        for pool in pools.values():
            pool.announce()
        # Each request looks up its model several times.
        self._route = lru_cache(maxsize=1024)(self._routed)
        self._label = lru_cache(maxsize=1024)(self._labelled)

    def reconfigure(self, configs: Mapping[str, BackendConfig]) -> None:
        """Unchanged backends keep their connections and state. If building a backend fails, nothing changes."""
        old = self._pools
        kept = {name: old[name] for name, settings in configs.items() if name in old and old[name].config == settings}
        self._install({name: kept.get(name) or self._pool(name, settings) for name, settings in configs.items()})
        served_now = {replica.server for pool in self._pools.values() for replica in pool.replicas}
        for name, pool in old.items():
            for replica in pool.replicas:
                if replica.server not in served_now:
                    self._hooks.health(*replica.server, None)
            if name not in kept:
                self._draining[pool] = asyncio.create_task(self._drain(pool))

    def model_label(self, model: str) -> str | None:
        """
        A configured name, the matching pattern, or None.

        `*` is not a label, because it matches made-up names.
        """
        return self._label(model)

    def _labelled(self, model: str) -> str | None:
        for pool in self._pools.values():
            if model in pool.config.aliases or model in pool.config.aliases.values():
                return model
            if (claim := _claim(pool, model)) and set(claim) != {"*"}:
                return claim
        return None

    def profile(self, model: str) -> Profile:
        """The profile of the model's first backend; raises `NotFound` for unknown models."""
        return self._route(model)[0].backend.profile(model)

    def encode(self, model_request: ModelRequest) -> EncodedRequest:
        return self._route_of(model_request)[0].backend.encode(model_request)

    def undescribed_images(self, model_request: ModelRequest) -> list[str]:
        """For the model's first backend, if any of its servers is known not to accept images."""
        pool = self._route_of(model_request)[0]
        found = (replica.backend.undescribed_images(model_request) for replica in pool.replicas)
        return next(filter(None, found), [])

    def refuses_images(self, model: str) -> bool:
        return any(replica.backend.refuses_images(model) for replica in self._route(model)[0].replicas)

    def open(self, model_request: ModelRequest) -> RequestInFlight:
        return RequestInFlight(self._route_of(model_request), model_request)

    def forwards(self, endpoint: str, model: str) -> bool:
        """Whether the model's first backend supports an endpoint; raises like `profile`."""
        return self._route(model)[0].backend.forwards(endpoint, model)

    def forward(self, request: RawRequest) -> OpenRawRequest:
        """Tries backends that support the endpoint; raises `NotFound` without any."""
        pools = self._route(request.model)
        if not (able := [pool for pool in pools if pool.backend.forwards(request.endpoint, request.model)]):
            message = f"The backend '{pools[0].name}' does not support {request.endpoint}, according to its profile."
            raise NotFound(message, code="unknown_url")
        return RequestInFlight(able, request)

    async def count_tokens(self, model_request: ModelRequest) -> int | None:
        for replica in self._route(model_request.model)[0].replicas:
            if replica.circuit.ready:
                return await replica.backend.count_tokens(model_request)
        return None

    def translation(self, model_request: ModelRequest) -> Translation:
        pool = self._route(model_request.model)[0]
        return pool.backend.translation(model_request)._replace(backend=pool.name)

    def describe(self) -> list[dict[str, object]]:
        """Each backend's name, profile, URL without credentials, and models."""
        return [
            {
                "name": pool.name,
                "profile": pool.backend.profile("").name,
                "url": public_url(pool.config.url) or None,
                "models": [*pool.config.aliases, *pool.config.models],
            }
            for pool in self._pools.values()
        ]

    def state(self) -> list[JSONObject]:
        """Each backend's servers, requests and queue in this process."""
        return [pool.state() for pool in self._pools.values()]

    async def models(self, caller_key: str | None = None) -> list[dict[str, object]]:
        """
        Available models, as entries in OpenAI's list.

        Each backend contributes models routed to it, or, if it does not answer, names from the settings. If several
        backends forward callers' keys, none is sent, because a key belongs to only one backend.
        """
        pools = [*self._pools.values()]
        key = caller_key if sum(pool.config.forwards_caller_key for pool in pools) <= 1 else None
        lists = await asyncio.gather(*(pool.models(key) for pool in pools), return_exceptions=True)
        models: dict[str, dict[str, object]] = {}
        for pool, listed in zip(pools, lists, strict=True):
            known = {} if isinstance(listed, BaseException) else {str(model["id"]): model for model in listed}
            for name, model in known.items():
                if _claim(pool, name):
                    models.setdefault(name, model)
            names = [name for name in pool.config.models if not set(name) & set("*?[")]
            for name in [*pool.config.aliases, *names]:
                default = {"object": "model", "created": 0, "owned_by": pool.name}
                model = known.get(pool.config.aliases.get(name, name), default)
                models.setdefault(name, {**model, "id": name})
        for failure in lists:
            if isinstance(failure, BaseException) and not (models and isinstance(failure, APIError)):
                raise failure
        return [*models.values()]

    async def models_of(self, backend: str) -> list[JSONObject]:
        """A backend's own list, whichever models are routed to it."""
        return await self._pools[backend].models(None)

    async def check(self) -> None:
        """Raises `BackendError` if no backend is reachable."""
        await first_success(pool.check(replica) for pool in self._pools.values() for replica in pool.replicas)

    async def aclose(self) -> None:
        for draining in self._draining.values():
            draining.cancel()
        await asyncio.gather(*self._draining.values(), return_exceptions=True)
        for pool in [*self._draining, *self._pools.values()]:
            await pool.aclose()

    async def _drain(self, pool: ReplicaPool) -> None:
        await pool.drain()
        del self._draining[pool]

    def _route_of(self, model_request: ModelRequest) -> Sequence[ReplicaPool]:
        """Raises `NotFound` or `InvalidRequest`."""
        if (name := model_request.backend) is None:
            return self._route(model_request.model)
        if pool := self._pools.get(name):
            return [pool]
        raise NotFound(f"Backend '{name}' not found.", code="unknown_backend")

    def _routed(self, model: str) -> Sequence[ReplicaPool]:
        """Backends in order of preference; raises `NotFound` or `InvalidRequest`."""
        matches = [pool for pool in self._pools.values() if _claim(pool, model)]
        if not matches:
            if not model:
                raise missing_parameter("model")
            offered = (name for pool in self._pools.values() for name in (*pool.config.aliases, *pool.config.models))
            message = f"No backend serves the model '{model}'. Available: {', '.join(dict.fromkeys(offered))}."
            raise NotFound(message, param="model", code="model_not_found")
        first, *others = matches
        if (named := first.config.fallbacks) is not None:
            return [first, *(self._pools[name] for name in named if name in self._pools and name != first.name)]
        # A caller's key is meant for a single server, and a fallback with the operator's key would bill the operator.
        if first.config.forwards_caller_key:
            return [first]
        specific = _claim(first, model) != "*"
        return [
            first,
            *(
                pool
                for pool in others
                if not pool.config.forwards_caller_key and not (specific and _claim(pool, model) == "*")
            ),
        ]


class RequestInFlight:
    """
    A request in flight: sent to servers until an answer begins.

    Observers see each attempt's start, answer and end. If all attempts fail, the first backend's error is raised.
    """

    def __init__(self, pools: Sequence[ReplicaPool], request: ModelRequest | RawRequest) -> None:
        self._request = request
        self._users = pools  # kept open until the end
        self._pools = pools  # not yet ruled out
        self._only_candidate = len(pools) == 1 and pools[0].never_paused_alone
        self._tried: set[Replica] = set()
        self._error: APIError | None = None  # of the first backend
        self._last: APIError | None = None  # of the last server
        self._lease: Lease | None = None
        self._context: AbstractAsyncContextManager[Any] | None = None  # while entered
        self._answer: Any = None  # of the last server that accepted the request: `OpenRequest` or `RawAnswer`
        self._observations: list[RequestObservation] = []

    @property
    def warnings(self) -> Sequence[str] | None:
        return self._answer.warnings if self._answer else None

    async def __aenter__(self) -> Any:
        """Return the answer to a raw request."""
        for pool in self._users:
            pool.users += 1
        try:
            await self._send()
        except BaseException:
            self._end_use()
            raise
        return self._answer if isinstance(self._request, RawRequest) else self

    def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> Coroutine[Any, Any, None]:
        return self._close(error, last=True)

    def _end_use(self) -> None:
        for pool in self._users:
            pool.end_use()

    async def receive(self, receiver: DeltaReceiver) -> None:
        """Receive from the first server that yields deltas."""
        while True:
            receiver.taps = [each.tap for each in self._observations if each.tap]
            try:
                await self._answer.receive(receiver)
                return
            except BackendError as error:
                if receiver.begun:
                    raise
                failure = error
            self._answer = None
            await self._close(failure)
            self._record_error(self._pools[0], failure)
            await self._send()

    async def _send(self) -> None:
        while self._pools:
            pool, request = self._pools[0], self._request
            try:
                lease = pool.acquire(request.conversation, self._tried, only_candidate=self._only_candidate)
                lease = self._lease = lease or await self._queue(pool)
            except APIError as error:
                self._rule_out(pool)
                if pool is self._users[0]:
                    self._error = self._error or error
                continue
            try:
                self._tried.add(lease.replica)
                backend = lease.replica.backend
                if self._last:
                    request = await self._retried(self._last, lease)
                request = self._observed(request, lease)
                context = backend.forward(request) if isinstance(request, RawRequest) else backend.open(request)
                self._answer = await context.__aenter__()
                self._context = context
                for observation in self._observations:
                    observation.accepted(self._answer)
                pool.answered(lease)
                request.attempts.answered_by.append(pool.name)
                return
            except BaseException as error:
                await self._close(error)
                if not isinstance(error, APIError):
                    raise
                self._record_error(pool, error)
        assert self._error
        raise self._error

    def _rule_out(self, pool: ReplicaPool) -> None:
        self._pools = [each for each in self._pools if each is not pool]

    async def _queue(self, pool: ReplicaPool) -> Lease:
        began = time.monotonic()
        try:
            return await pool.queue(self._tried, only_candidate=self._only_candidate)
        finally:
            self._request.attempts.queued += time.monotonic() - began

    async def _retried(self, error: APIError, lease: Lease) -> ModelRequest | RawRequest:
        """Return the request for another server, after an error."""
        request = self._request
        request.attempts.retries += 1
        server = f"{lease.pool.name} {lease.replica.redacted_url}".rstrip()
        extra = {"server": error.server, "reason": error.explanation, "next_server": server}
        level = logging.WARNING if error.status >= 500 else logging.INFO
        logger.log(level, "backend request failed; trying another server", extra=extra)
        if isinstance(request, RawRequest):
            return request
        encoded = await run_in_thread_if_large(lease.replica.backend.encode, request)
        return dataclasses.replace(request, encoded=encoded)

    def _observed(self, request: ModelRequest | RawRequest, lease: Lease) -> ModelRequest | RawRequest:
        """Notify observers; return the request with their headers."""
        pool, replica = lease.pool, lease.replica
        if request.retry_allowed and not self._only_candidate and (len(self._pools) > 1 or pool.has_other(self._tried)):
            request = dataclasses.replace(request, retry_allowed=False)
        for observe in pool.hooks.observers:
            observation = observe(replica.backend, request, replica.server)
            self._observations.append(observation)
            if observation.headers:
                request = dataclasses.replace(request, headers={**request.headers, **observation.headers})
        return request

    async def _close(self, error: BaseException | None, *, last: bool = False) -> None:
        """Close the answer, if any, and release its server; `last`: the request ends."""
        lease, context, observations = self._lease, self._context, self._observations
        self._lease, self._context, self._observations = None, None, []
        try:
            if context:
                await context.__aexit__(type(error) if error else None, error, error.__traceback__ if error else None)
        except BaseException as raised:
            error = raised
            raise
        finally:
            for observation in observations:
                observation.end(error)
            if lease:
                lease.pool.release(lease, error)
            if last:
                self._end_use()

    def _record_error(self, pool: ReplicaPool, error: APIError) -> None:
        """Raises the error if no other server can help."""
        if isinstance(error, ImagesUndescribed):
            raise error  # the caller describes the images and retries
        request = self._request
        can_resend = not isinstance(request, RawRequest) or request.body.replayable
        can_fail_over = can_resend and isinstance(error, BackendError) and may_fail_over(error)
        if pool is self._users[0]:
            if not can_fail_over:
                raise error
            self._error = error
        if not can_fail_over:
            self._rule_out(pool)
        self._last = error


def public_url(url: str) -> str:
    """The URL without credentials and query."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _claim(pool: ReplicaPool, model: str) -> str | None:
    """The matching alias or pattern."""
    if model in pool.config.aliases:
        return model
    return next((pattern for pattern in pool.config.models if fnmatchcase(model, pattern)), None)
