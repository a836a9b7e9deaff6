"""Requests to other endpoints, passed through as bytes. Only the answer's end is buffered, for its usage."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from functools import lru_cache

import httpx

from app.backends import RawRequest, RefusedRequest
from app.backends.apis import APIS
from app.backends.server.endpoints import MODEL, model_url, under
from app.backends.server.errors import scrubbed
from app.backends.server.passthrough.headers import answer_headers, request_headers
from app.core.affinity import session_id
from app.core.profile import Profile, TransportOptions
from app.core.redaction import redact
from app.errors import BackendError

CHAT = "/chat/completions"
MESSAGES = "/messages"
_BELOW_MESSAGES = f"{MESSAGES}/"
_SPEAK_CHAT = frozenset({"chat", "auto"})

_DEFAULTS = frozenset({b"anthropic-version"})  # sent only if the caller does not
_LISTS = frozenset({b"anthropic-beta"})  # extended by a profile
_DECODED = (b"content-encoding", b"content-length")


def is_of_messages(endpoint: str) -> bool:
    return endpoint == MESSAGES or endpoint.startswith(_BELOW_MESSAGES)


def forwards_to(endpoint: str, options: TransportOptions) -> bool:
    if endpoint != CHAT and not is_of_messages(endpoint):
        return True
    if options.passthrough != "auto":
        return options.passthrough == "always"
    return options.api in _SPEAK_CHAT if endpoint == CHAT else options.messages


def session_header(profile: Profile, conversation: Callable[[], str]) -> dict[str, str]:
    name = profile.request.session_header
    return {name: session_id(key)} if name and (key := conversation()) else {}


class Forwarding:
    def __init__(self, base: httpx.URL, profile: Profile) -> None:
        options = profile.transport
        self._base = base
        self._profile = profile
        self._path = options.path or CHAT
        self._own = _encoded(options.headers)
        self._own_of_messages = _encoded({**APIS["messages"].codec.headers, **options.headers})
        self._replaced = {name.lower() for name in self._own} - _DEFAULTS - _LISTS
        self._endpoint_url = lru_cache(64)(self._url_without_query)  # the slowest step
        self._extensions = {
            "timeout": {
                "connect": options.connect_timeout,
                "pool": options.connect_timeout,
                "write": options.idle_timeout,
                "read": options.first_byte_timeout,
            }
        }

    def request(self, request: RawRequest, credentials: dict[str, str], *, own_account: bool) -> httpx.Request:
        """
        Raises `BackendError` if the endpoint requires a model and none is named.

        `own_account`: the credentials are this server's, so the caller's organization is not sent.
        """
        model = self._profile.request.model_map.get(request.model, request.model)
        body = request.body if model == request.model else request.body.with_model(model)
        content = body.content()
        own = _encoded({**credentials, **session_header(self._profile, request.conversation)})
        messages = is_of_messages(request.endpoint)
        options = self._own_of_messages if messages else self._own
        replaced = self._replaced | {name.lower() for name in own}
        forwarded = request_headers(request.headers, messages=messages, own_account=own_account)
        passed_on = [self._with_own(name, value) for name, value in forwarded if name not in replaced]
        given = {name for name, _ in passed_on} & (_DEFAULTS | _LISTS) if options else frozenset()
        return httpx.Request(
            "POST",
            self._url(request, model),
            headers=[
                (b"Host", self._base.netloc),
                (b"Content-Type", body.media_type),
                (b"Accept-Encoding", b"identity"),  # the usage must be readable
                *passed_on,
                (b"Transfer-Encoding", b"chunked") if body.length is None else (b"Content-Length", b"%d" % body.length),
                *(field for field in options.items() if field[0].lower() not in given),
                *own.items(),
            ],
            stream=httpx.ByteStream(content) if isinstance(content, bytes) else _Pieces(content),
            extensions=self._extensions,
        )

    def _with_own(self, name: bytes, value: bytes) -> tuple[bytes, bytes]:
        own = next((own for given, own in self._own.items() if given.lower() == name), b"") if name in _LISTS else b""
        return name, value + b"," + own if own else value

    def _url(self, request: RawRequest, model: str) -> httpx.URL:
        url = self._endpoint_url(request.endpoint, model if MODEL in self._path else "")
        if not request.query:
            return url
        given = url.copy_with(query=request.query.encode("ascii", "replace"))
        return given.copy_merge_params(url.params) if url.params else given

    def _url_without_query(self, endpoint: str, model: str) -> httpx.URL:
        """The chat URL with another end."""
        path = self._path
        if endpoint != CHAT:
            path = (path.removesuffix(CHAT) if path.endswith(CHAT) else "") + endpoint
        if MODEL in path:
            return model_url(self._base, path, model, self._profile)
        return under(self._base, path, self._profile)

    def refusal(
        self, request: RawRequest, response: httpx.Response, body: bytes, error: BackendError, secret: str | None
    ) -> BackendError:
        """The error to raise. A refusal is forwarded unchanged if it concerns the request and has no secret."""
        status = response.status_code
        if error.code == "backend_url":
            message = f"The backend has no {request.endpoint}, or not for this model."
            return BackendError(message, status=404, error_type="not_found", code="unknown_url")
        text = body.decode("utf-8", "replace")
        private = (
            (secret and secret in text) or redact(text) != text or scrubbed(error.message, secret) != error.message
        )
        if status >= 500 or error.status != status or status == 429 or not error.quoted or private:
            return error
        headers = [field for field in answer_headers(response.headers.raw) if field[0] not in _DECODED]
        return RefusedRequest(error, headers, body)


def _encoded(headers: Mapping[str, str]) -> dict[bytes, bytes]:
    return {name.encode("latin-1"): value.encode("latin-1") for name, value in headers.items()}


class _Pieces(httpx.AsyncByteStream):
    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces = pieces

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces
