from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from urllib.parse import parse_qsl, quote

import httpx

from app.backends.apis import APIS, CountingMethod, Post, encode, profiles_by_api
from app.backends.server.adaptation import REMEMBERED, FieldAdaptation
from app.backends.server.errors.classification import ERROR_CLASSES, failure
from app.backends.transport.connection import RequestTarget
from app.core.profile import Profile
from app.core.request.model_request import EncodedRequest, ModelRequest
from app.core.types import JSONMapping, JSONObject
from app.errors import BackendError

logger = logging.getLogger(__name__)

MODEL = "{model}"  # in `transport.path`
_ABSENT = frozenset({404, 405, 501})
_NOT_FOUND = frozenset({ERROR_CLASSES["url"].code, ERROR_CLASSES["missing"].code})


class Endpoint:
    def __init__(self, base: httpx.URL, profile: Profile) -> None:
        options = profile.transport
        self.profile = profile
        self.api = APIS[options.api]
        self.codec = self.api.codec
        self.adaptation = FieldAdaptation(profile.request, self.codec.caller_fields)
        self.counting_methods = [*self.codec.counting_methods(base, profile)]
        self._base = base
        self._path = options.path or self.api.path
        self._model_in_body = options.model_in_body and MODEL not in self.api.path
        self._target = None if MODEL in self._path else RequestTarget("POST", under(base, self._path, profile))

    def target(self, model: object) -> RequestTarget:
        """Raises `BackendError` for an invalid name."""
        return self._target or RequestTarget("POST", model_url(self._base, self._path, model, self.profile))

    def encode(self, model_request: ModelRequest) -> EncodedRequest:
        return encode(model_request, self.profile, self.codec)

    def sent(self, body: JSONObject) -> JSONObject:
        if self._model_in_body:
            return body
        return {name: value for name, value in body.items() if name != "model"}


class Endpoints:
    """A server's endpoints, best first; missing ones are skipped temporarily."""

    def __init__(self, base: httpx.URL, profile: Profile, clock: Callable[[], float] = time.monotonic) -> None:
        self._all = [Endpoint(base, each) for each in profiles_by_api(profile)]
        self._clock = clock
        self.current = self._all[0]
        self._until = 0.0  # when the first endpoint is tried again

    @property
    def headers(self) -> dict[str, str]:
        return {name: value for endpoint in self._all for name, value in endpoint.codec.headers.items()}

    def candidates(self) -> Sequence[Endpoint]:
        if self.current is self._all[0]:
            return self._all
        if self._clock() >= self._until:
            self.current = self._all[0]
        return self._all[self._all.index(self.current) :]

    def lacks(self, endpoint: Endpoint, error: BackendError) -> bool:
        """Whether the server lacks this endpoint but may have the next."""
        return error.answered in _ABSENT and error.code != ERROR_CLASSES["model"].code and endpoint is not self._all[-1]

    def answered(self, endpoint: Endpoint) -> None:
        if endpoint is not self.current:
            self.current, self._until = endpoint, self._clock() + REMEMBERED
            missing = ", ".join(each.api.path for each in self._all[: self._all.index(endpoint)])
            extra = {"missing": missing, "used": endpoint.api.path, "minutes": round(REMEMBERED / 60)}
            logger.info("backend endpoint not found; using another", extra=extra)


async def count_tokens(methods: list[CountingMethod], body: JSONMapping, post: Post) -> int | None:
    """
    Count the prompt's tokens by the first method that works; None if the server cannot count.

    `methods` keeps only the working method, and no method whose endpoint the server lacks.
    """
    for method in [*methods]:
        try:
            count = await method(body, post)
        except BackendError as error:
            if error.code in _NOT_FOUND and method in methods:
                methods.remove(method)
            continue  # otherwise a temporary failure
        if isinstance(count, int):
            methods[:] = [method]
            return count
    return None


def model_url(base: httpx.URL, path: str, model: object, profile: Profile) -> httpx.URL:
    """Raises `BackendError` for an invalid name."""
    segment = quote(model, safe="", errors="replace") if isinstance(model, str) else ""
    if segment.strip(".") == "":
        raise failure("model")
    return under(base, path.replace(MODEL, segment), profile)


def under(base: httpx.URL, path: str, profile: Profile) -> httpx.URL:
    """A URL below the base URL, with the path's and the profile's query."""
    path, _, query = path.partition("?")
    url = base.copy_with(path=f"{base.path.rstrip('/')}/{path.lstrip('/')}")
    parameters = dict(parse_qsl(query)) | profile.transport.query
    return url.copy_merge_params(parameters) if parameters else url
