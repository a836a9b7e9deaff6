"""
HTTP client for a model server with any API.

    async with server.open(model_request) as request:
        await request.receive(receiver)

Connection, status, framing and decoding errors are raised as `BackendError`. Profiles contain the differences between
servers; the table `app.backends.apis.APIS` has a row for each API.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import httpx
import orjson

from app.backends import PASSTHROUGH, Backend, DeltaReceiver, RawAnswer, RawRequest, Translation
from app.backends.server.adaptation import AdaptedRequest
from app.backends.server.answer import BodyReader
from app.backends.server.endpoints import Endpoint, Endpoints, count_tokens, under
from app.backends.server.errors import backend_error, error_in_chunk
from app.backends.server.errors.classification import ERROR_CLASSES, failure
from app.backends.server.key_source import KeySource, key_source
from app.backends.server.passthrough import ForwardedAnswer, Forwarding, forwards_to, session_header
from app.backends.transport import HTTPReply, HTTPToolsTransport
from app.backends.transport.connection import OutgoingRequest, RequestTarget, encoded_headers
from app.backends.transport.httpx_transport import HTTPXTransport, decompressed
from app.core.profile import Profile
from app.core.redaction import without_password
from app.core.request.model_request import EncodedRequest, ModelRequest
from app.core.sse.decoder import MAX_EVENT_BYTES, TOO_LONG, check_piece
from app.core.sse.repeats import RawEvent
from app.core.types import JSONObject, json_list, json_objects
from app.errors import BackendError
from app.runtime.outbound import causes, why_unreachable

logger = logging.getLogger(__name__)

_HEADS = 64  # cached request headers, one per API key
_ERROR_LIMIT = 1_000_000  # bytes
_LINGER = 1.0  # seconds to wait for the body's end, to reuse the connection
_BACKOFF, _BACKOFF_LIMIT = 0.5, 8.0  # seconds before the first retry, and at most
_MAX_RETRY_AFTER = 3.0  # seconds; a longer `Retry-After` is returned to the caller


class ModelServer(Backend):
    """
    `api_key` is sent in the profile's header; `passthrough` sends the caller's key. `keys` provides an expiring key. A
    request is retried up to `retries` times, until any part of the answer was received.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        profile: Profile = Profile(),  # noqa: B008 (frozen)
        *,
        http: httpx.AsyncBaseTransport | None = None,
        retries: int = 2,
        keys: KeySource | None = None,
    ) -> None:
        options = profile.transport
        if base_url and base_url != options.base_url:
            profile = replace(profile, transport=replace(options, base_url=base_url))
        self._profile = profile
        self._key = api_key or options.api_key
        self._keys = keys
        self._retries = retries
        base = httpx.URL(base_url or options.base_url or "")
        self._name, self._host = without_password(str(base)), base.host
        self.endpoints = Endpoints(base, profile)
        self._models_target = RequestTarget("GET", under(base, self.endpoints.current.codec.models_path, profile))
        self._forwarding = Forwarding(base, profile)
        local = base.host in ("localhost", "::1") or base.host.startswith("127.")  # without the environment's proxies
        self._http = HTTPXTransport(http) if http else HTTPToolsTransport(trust_env=not local)
        self._passes = self._key == PASSTHROUGH
        # After an empty stream, repeat the request without streaming.
        self.asks_whole = profile.response.empty_stream == "ask_whole"
        headers = {
            "Host": base.netloc.decode("ascii"),
            "Accept": "text/event-stream, application/json",
            "Accept-Encoding": "identity",  # decompression costs time, and some gateways buffer compressed data
            "Content-Type": "application/json",
            "User-Agent": "antiphon",
            **self.endpoints.headers,
            **options.headers,
        }
        self._headers = httpx.Headers(headers, encoding="utf-8")
        self._lines: dict[str | None, bytes] = {}  # encoded headers, by API key
        connect, first = options.connect_timeout, options.first_byte_timeout
        self._timeouts = {"connect": connect, "pool": connect, "write": first, "read": first}
        self._raw_timeouts = {**self._timeouts, "write": options.idle_timeout}

    @classmethod
    def from_settings(cls, settings: Any) -> ModelServer:
        key = settings.key.get_secret_value() if settings.key else None
        keys = key_source(settings.api_key_file, settings.api_key_command, settings.api_key_lifetime)
        return cls(settings.url, key, settings.options(), retries=settings.retries, keys=keys)

    def profile(self, model: str) -> Profile:
        """The profile with the API in use; it is the same for all models."""
        return self.endpoints.current.profile

    def encode(self, model_request: ModelRequest) -> EncodedRequest:
        return self.endpoints.current.encode(model_request)

    def open(self, model_request: ModelRequest) -> SentRequest:
        return SentRequest(self, model_request)

    def forwards(self, endpoint: str, model: str) -> bool:
        return forwards_to(endpoint, self._profile.transport)

    @asynccontextmanager
    async def forward(self, request: RawRequest) -> AsyncIterator[RawAnswer]:
        with explained():
            answer = await self._forwarded(request)
            try:
                yield answer
            finally:
                await answer.aclose()

    async def _forwarded(self, request: RawRequest) -> ForwardedAnswer:
        def prepare() -> OutgoingRequest:
            credentials = self._credentials(request.caller_key)
            return self._forwarding.request(request, credentials, own_account=not self._passes)

        retries = 0
        while True:
            try:
                reply = await self.send(self.endpoints.current, prepare, request.caller_key, request)
                answer = ForwardedAnswer(reply, self._profile)
                await answer.begin(lambda event: self.error_in(event, request.caller_key))
                return answer
            except BackendError as error:
                if not (request.body.replayable and await self.back_off(request, error, retries)):
                    raise
            retries += 1

    async def back_off(self, request: ModelRequest | RawRequest, error: BackendError, retries: int) -> bool:
        """Wait before the next retry; return False if the request must not be sent again."""
        if not (error.retryable and request.retry_allowed and retries < self._retries):
            return False
        seconds = error.retry_after
        if seconds is None:
            seconds = min(_BACKOFF * 2**retries, _BACKOFF_LIMIT) * random.uniform(0.75, 1)
        elif seconds > _MAX_RETRY_AFTER:
            return False
        request.attempts.retries += 1
        explain(error)
        extra = {"server": self._name, "reason": error.explanation, "delay": round(seconds, 1)}
        logger.info("backend request failed; retrying", extra=extra)
        await asyncio.sleep(seconds)
        return True

    async def count_tokens(self, model_request: ModelRequest) -> int | None:
        endpoint = self.endpoints.current

        async def post(url: httpx.URL, body: JSONObject) -> Any:
            content, caller_key = _json(body), model_request.caller_key
            return await self._read_json(endpoint, RequestTarget("POST", url), content, caller_key, seconds=15)

        return await count_tokens(endpoint.counting_methods, endpoint.encode(model_request).body, post)

    def translation(self, model_request: ModelRequest) -> Translation:
        """The request, without fields known to be rejected."""
        endpoint = self.endpoints.current
        adapted = endpoint.adaptation.adapt(endpoint.encode(model_request).body)
        url = endpoint.target(adapted.body.get("model")).url
        shown = str(url.copy_with(userinfo=b"", query=None, fragment=None))
        return Translation("default", self._profile.name, shown, endpoint.sent(adapted.body), adapted.warnings)

    def undescribed_images(self, model_request: ModelRequest) -> list[str]:
        if model_request.descriptions is None:
            return []
        endpoint = self.endpoints.current
        body = endpoint.encode(model_request).body
        return endpoint.adaptation.undescribed_images(body, model_request.descriptions)

    def refuses_images(self, model: str) -> bool:
        name = self._profile.request.model_map.get(model, model)
        return self.endpoints.current.adaptation.refuses_images(name)

    async def models(self, caller_key: str | None = None, seconds: float = 15) -> list[JSONObject]:
        endpoint = self.endpoints.current
        listed = await self._read_json(endpoint, self._models_target, b"", caller_key, seconds)
        if isinstance(listed, dict):
            listed = listed.get("data") or listed.get("models")
        entries = [{"id": each} if isinstance(each, str) else each for each in json_list(listed)]
        models = []
        for each in json_objects(entries):
            if entry := endpoint.codec.listed_model(each):
                name = next((str(entry[key]) for key in ("id", "model", "name", "slug") if entry.get(key)), "")
                known = {key: value for key, value in entry.items() if value is not None}
                models.append({"object": "model", "created": 0, "owned_by": "backend", **known, "id": name})
        return models

    async def check(self) -> None:
        try:
            await self.models(seconds=5)
        except BackendError as error:
            if self._passes and error.status in (401, 403):
                return  # reachable; requires a caller's key
            if error.code not in (ERROR_CLASSES["url"].code, ERROR_CLASSES["missing"].code):
                raise
            await self._probe()  # not every server lists its models

    async def _probe(self) -> None:
        """Check that the endpoint exists: it must reject an empty request."""
        for endpoint in self.endpoints.candidates():
            prepare = partial(self.outgoing, endpoint.target("none"), b"{}", None)
            try:
                async with asyncio.timeout(5):
                    reply = await self.send(endpoint, prepare, None)
                await reply.aclose()
            except BackendError as error:
                if self.endpoints.lacks(endpoint, error):
                    continue
                if error.status >= 500:
                    raise
            except TimeoutError as error:
                raise failure("timeout") from error
            return

    async def aclose(self) -> None:
        await self._http.aclose()

    def error_in(self, event: JSONObject, caller_key: str | None) -> BackendError | None:
        """Return the error in an answer's event."""
        return error_in_chunk(event, secret=self._secret(caller_key), host=self._host, passthrough=self._passes)

    async def send(
        self,
        endpoint: Endpoint,
        prepare: Callable[[], OutgoingRequest],
        caller_key: str | None,
        raw: RawRequest | None = None,
    ) -> HTTPReply:
        """
        A 2xx reply; otherwise raises `BackendError`.

        The request is prepared and sent again if the server rejects an expired key.
        """
        renews = self._keys is not None
        while True:
            expiring = await self._keys.current() if self._keys else ""
            timeouts = self._raw_timeouts if raw else self._timeouts
            try:
                reply = await self._http.send(*prepare(), timeouts)
            except (httpx.ReadTimeout, httpx.WriteTimeout) as error:
                raise failure("timeout") from error
            except httpx.TransportError as error:
                raise unreachable(error) from error
            if 200 <= reply.status < 300:
                return reply
            response = reply.response()
            body = bytearray()
            with suppress(TimeoutError, httpx.TransportError, httpx.DecodingError):  # the status is enough
                async with asyncio.timeout(10):
                    await _read(reply, body, _ERROR_LIMIT)
            if renews and reply.status == 401 and (raw is None or raw.body.replayable):
                renews = False
                if self._keys and await self._keys.renew(expiring):
                    continue
            secret = self._secret(caller_key)
            refusal = backend_error(
                response.status_code,
                response.headers,
                bytes(body),
                known=endpoint.codec.known_error,
                secret=secret,
                host=self._host,
                passthrough=self._passes,
            )
            refusal.add_note(f"HTTP {response.status_code}")
            raise self._forwarding.refusal(raw, response, bytes(body), refusal, secret) if raw else refusal

    def outgoing(
        self,
        target: RequestTarget,
        content: bytes,
        caller_key: str | None,
        added: Mapping[str, str] = MappingProxyType({}),
    ) -> OutgoingRequest:
        """`added` headers; raises `httpx.LocalProtocolError` if they are invalid."""
        secret = self._secret(caller_key)
        lines = None if added else self._lines.get(secret)
        if lines is None:
            headers = httpx.Headers(self._headers, encoding="utf-8")
            headers.update({**added, **self._credentials(caller_key)})
            lines = encoded_headers(headers.raw)
            if not added:
                if len(self._lines) >= _HEADS:
                    self._lines.clear()
                self._lines[secret] = lines
        return target, b"%bContent-Length: %d\r\n" % (lines, len(content)) if content else lines, content

    async def _read_json(
        self, endpoint: Endpoint, target: RequestTarget, content: bytes, caller_key: str | None, seconds: float
    ) -> Any:
        with explained():
            try:
                async with asyncio.timeout(seconds):
                    prepare = partial(self.outgoing, target, content, caller_key)
                    reply = await self.send(endpoint, prepare, caller_key)
                    body = bytearray()
                    await _read(reply, body, MAX_EVENT_BYTES)
                    if len(body) > MAX_EVENT_BYTES:
                        raise failure("failure", TOO_LONG)
                    check_piece(bytes(body))
                    return json.loads(body)
            except TimeoutError as error:
                raise failure("timeout") from error
            except (httpx.TransportError, httpx.DecodingError) as error:
                raise failure("failure") from error
            except ValueError as error:
                raise failure("failure", "The backend's response is not JSON. Check its base URL.") from error

    def _secret(self, caller_key: str | None) -> str | None:
        if self._keys:
            return self._keys.key
        return caller_key if self._passes else self._key

    def _credentials(self, caller_key: str | None) -> dict[str, str]:
        secret, options = self._secret(caller_key), self._profile.transport
        if secret and not (secret.isascii() and secret.isprintable()):
            raise failure("own_key" if self._passes else "key")  # invalid in a header
        return {options.auth_header: f"{options.auth_scheme} {secret}".strip()} if secret else {}


class SentRequest:
    """A model request sent to a server, and its answer; implements `OpenRequest`."""

    _endpoint: Endpoint
    _encoded: EncodedRequest
    _adapted: AdaptedRequest | None  # None: the server accepts all fields

    def __init__(self, server: ModelServer, model_request: ModelRequest) -> None:
        self._server = server
        self._model_request = model_request
        self._retries = 0
        self._answer: BodyReader | None = None  # while it is open
        self._answer_warnings: Sequence[str] | None = None  # None before an answer

    @property
    def warnings(self) -> Sequence[str] | None:
        if self._answer_warnings is None:
            return None
        omitted = self._adapted.warnings if self._adapted else ()
        return [*self._encoded.warnings, *omitted, *self._answer_warnings]

    async def __aenter__(self) -> SentRequest:
        """Send the request. If the answer is not an event stream, wait for its first deltas: it may be an error."""
        whole, fall_back = False, self._server.asks_whole
        try:
            while True:
                answer = await self._open(whole=whole)
                streams = answer.reply.fields.get(b"content-type", b"").startswith(b"text/event-stream")
                if streams and not (whole or fall_back):
                    return self
                try:
                    await answer.receive(None)
                    return self
                except BackendError as error:
                    if fall_back and not whole and answer.decoder.empty:
                        whole = True
                    elif not await self._retry(error):
                        raise
                await answer.reply.aclose()
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        answer, self._answer = self._answer, None
        if answer:
            if error is None and answer.decoder.done:
                answer.reply.linger(_LINGER)
            await answer.reply.aclose()
        if isinstance(error, BackendError):
            explain(error)

    async def receive(self, receiver: DeltaReceiver) -> None:
        """Retry after an error event before the first delta, as after a response with its status."""
        while True:
            answer = self._answer
            assert answer
            try:
                await answer.receive(receiver)
                break
            except BackendError as error:
                if receiver.begun or not await self._retry(error):
                    raise
            await answer.reply.aclose()
            await self.__aenter__()
        while answer.decoder.done and answer.decoder.paused:
            await answer.reply.aclose()
            reply = await self._send(self._endpoint, answer.decoder.continuation())
            answer.decoder.resume()
            answer = self._answer = BodyReader(reply, self._endpoint.profile, answer.decoder)
            await answer.receive(receiver)

    async def _open(self, *, whole: bool) -> BodyReader:
        """
        Return the answer's body; raises `BackendError`.

        `whole` requests a single JSON document, which the decoders of streams can read, too.
        """
        model_request, endpoints = self._model_request, self._server.endpoints
        for endpoint in endpoints.candidates():
            profile = endpoint.profile
            encoded = endpoint.encode(model_request)
            body = encoded.body
            if whole:
                body = {name: value for name, value in body.items() if name != "stream_options"}
                body |= {"stream": False} if "stream" in body else {}
            try:
                reply = await self._send(endpoint, body)
            except BackendError as error:
                if endpoints.lacks(endpoint, error):
                    continue
                raise
            endpoints.answered(endpoint)
            self._endpoint, self._encoded = endpoint, encoded
            try:
                decoder = endpoint.codec.decoder(encoded, profile, self._error_in)
            except BaseException:
                await reply.aclose()
                raise
            self._answer_warnings = decoder.warnings
            self._answer = BodyReader(reply, profile, decoder)
            return self._answer
        raise AssertionError("the last endpoint answers, or raises a BackendError")

    def _error_in(self, chunk: RawEvent) -> BackendError | None:
        endpoint = self._endpoint
        error = self._server.error_in(endpoint.codec.known_error(chunk), self._model_request.caller_key)
        return error and endpoint.adaptation.adapt(self._encoded.body).explain(error)

    async def _send(self, endpoint: Endpoint, body: JSONObject) -> HTTPReply:
        """Return a 2xx reply with an unread body; raises `BackendError`."""
        server, model_request, adaptation = self._server, self._model_request, endpoint.adaptation
        adapted = None
        if adaptation.active:
            adapted = adaptation.adapt(body, model_request.descriptions, model_request.request)
            body = adapted.body
        target = endpoint.target(body.get("model"))
        caller_key, headers = model_request.caller_key, model_request.headers
        if endpoint.profile.request.session_header:
            headers = {**session_header(endpoint.profile, model_request.conversation), **headers}
        while True:
            content = _json(endpoint.sent(body))
            try:
                prepare = partial(server.outgoing, target, content, caller_key, headers)
                reply = decompressed(await server.send(endpoint, prepare, caller_key))
            except BackendError as error:
                if server.endpoints.lacks(endpoint, error):
                    raise
                if adapted is None:  # the request was sent with all fields
                    adapted = AdaptedRequest(adaptation, body, (), model_request.descriptions, model_request.request)
                if adapted.drop_fields(error):
                    body = adapted.body
                elif not await self._retry(error):
                    adapted.explain(error)
                    raise
            else:
                if adapted:
                    adapted.accepted()
                self._adapted = adapted
                return reply

    async def _retry(self, error: BackendError) -> bool:
        retries, self._retries = self._retries, self._retries + 1
        return await self._server.back_off(self._model_request, error, retries)


def unreachable(error: httpx.TransportError) -> BackendError:
    if isinstance(error, httpx.TimeoutException):
        unanswered = failure("timeout", "The backend does not accept connections.")
    elif isinstance(error, httpx.ConnectError):
        why = why_unreachable(error)
        unanswered = failure("failure", f"The backend cannot be reached{f': {why}' if why else ''}.")
    else:
        unanswered = failure("failure", "The backend closed the connection without an answer.")
    unanswered.retryable = True
    return unanswered


@contextmanager
def explained() -> Iterator[None]:
    try:
        yield
    except BackendError as error:
        explain(error)
        raise


def explain(error: BackendError) -> None:
    """Add the operating system's message as a note, for operators; it never quotes the request."""
    found = [each for each in causes(error.__cause__) if isinstance(each, OSError | httpx.TransportError)]
    messages = [message for each in found if (message := str(each))]
    if messages and messages[-1] not in getattr(error, "__notes__", ()):
        error.add_note(messages[-1])


def _json(body: JSONObject) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError:  # lone surrogates, or integers above 64 bits
        return json.dumps(body).encode()


async def _read(reply: HTTPReply, body: bytearray, limit: int) -> None:
    """Read a body until it ends or exceeds `limit` bytes."""
    reply = decompressed(reply)
    try:
        async for data in reply:
            body += data
            if len(body) > limit:
                break
    finally:
        await reply.aclose()
