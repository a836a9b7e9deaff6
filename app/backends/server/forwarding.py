"""
Forwards requests and answers as bytes: headers, URLs, refusals, and the body with its usage.

The body of an answer is not parsed. Only its end is buffered, since servers report the usage there.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from urllib.parse import quote

import httpx

from app.backends import RawRequest, RefusedRequest
from app.backends.apis import APIS
from app.backends.apis.chat.usage import has_counts, normal_usage
from app.backends.server.answer import CONNECTION_BROKE, IDLE_TOO_LONG, body_reads
from app.backends.server.errors import scrubbed
from app.backends.server.errors.classification import failure
from app.backends.server.forwarded_headers import answer_headers, request_headers
from app.core.affinity import session_id
from app.core.profile import Profile, TransportOptions
from app.core.redaction import redact
from app.core.types import JSONObject
from app.core.usage import cost_in_nanos, is_token_count
from app.errors import BackendError

CHAT = "/chat/completions"
MESSAGES = "/messages"  # Anthropic's, and what is below it
_BELOW_MESSAGES = f"{MESSAGES}/"
_SPEAK_CHAT = frozenset({"chat", "auto"})  # values of `transport.api`
MODEL = "{model}"  # in `transport.path`: the model's name at the backend

_DEFAULTS = frozenset({b"anthropic-version"})  # headers for which a profile has the default of callers that send none
_LISTS = frozenset({b"anthropic-beta"})  # headers to whose list a profile adds its own
_DECODED = (b"content-encoding", b"content-length")

_TAIL = 64 * 1024  # bytes at the end of a body in which the usage is searched
_HEAD = 4 * 1024  # and at its start
_LONGEST_USAGE = 8 * 1024  # bytes
_LONGEST_ERROR = 8 * 1024
# At the start of a line, where no text in JSON can be.
_ERROR = re.compile(rb'^(?:event: ?error\r?$|data: ?\{\s*"error"\s*:\s*[{"])', re.MULTILINE)
_EVENT = b"data:"
_USAGE = b'"usage"'
# The data of a first event that is an error, of Messages and Responses or of chat.
_FIRST_ERROR = re.compile(
    rb'\s*(?:event: ?error\r?\n)?data: ?(\{"(?:type": ?"error"|error": ?\{)[^\r\n]{1,10000}\})\r?\n\r?\n'
)
_VALUE = re.compile(rb"\s*:\s*(?=\{)")
_DECODER = json.JSONDecoder()


class UsageReader:
    """Buffers the end of a body, JSON or an event stream, and its start, and reads the usage and errors from them."""

    def __init__(self, *, streamed: bool) -> None:
        self._pieces: deque[bytes] = deque()
        self._size = 0  # of the pieces
        self._total = 0
        self._head = b""
        self._streamed = streamed
        self._events = 0  # of a stream, in what is no longer kept

    def feed(self, piece: bytes) -> None:
        """Take the next bytes of the body."""
        size = len(piece)
        if len(self._head) < _HEAD:
            self._head += piece[: _HEAD - len(self._head)]
        self._pieces.append(piece)
        self._total += size
        self._size += size
        while self._size > _TAIL and self._size - len(self._pieces[0]) >= _TAIL:
            dropped = self._pieces.popleft()
            self._size -= len(dropped)
            if self._streamed:
                self._events += dropped.count(_EVENT)

    def usage(self) -> JSONObject | None:
        """Return the last usage in the form of Chat Completions; None if there is none."""
        usage = _last_usage(b"".join(self._pieces)[-_TAIL:]) or {}
        if self._streamed or not usage:
            # Anthropic's streams begin with the usage of the prompt, and end with that of the output.
            first = _first_usage(self._head) or {}
            usage = {**first, **{name: count for name, count in usage.items() if count is not None}}
        return _normal(usage)

    def estimate(self) -> int:
        """Return about how many tokens the body had: one for each event, or for four bytes of JSON."""
        return self._events + b"".join(self._pieces).count(_EVENT) if self._streamed else self._total // 4

    def failed(self) -> bool:
        """Return whether the body is an event stream whose last events have an error."""
        if not self._streamed:
            return False
        end = b"".join(self._pieces)[-_LONGEST_ERROR:]
        # Not `in`, which first tries whether its operand is a number, and takes longer.
        return end.rfind(b"error") >= 0 and _ERROR.search(end) is not None


def _last_usage(data: bytes) -> JSONObject | None:
    """Return the last usage that has counts, as it was sent."""
    at = data.rfind(_USAGE)
    while at >= 0:
        if usage := _counts_at(data, at):
            return usage
        at = data.rfind(_USAGE, 0, at)
    return None


def _first_usage(data: bytes) -> JSONObject | None:
    """Return the first usage that has counts, as it was sent."""
    at = data.find(_USAGE)
    while at >= 0:
        if usage := _counts_at(data, at):
            return usage
        at = data.find(_USAGE, at + 1)
    return None


def _counts_at(data: bytes, name_at: int) -> JSONObject | None:
    """Return the usage whose name is at `name_at`; None if it has no counts."""
    value = _object_after(data, name_at)
    return value if value and (has_counts(value) or is_token_count(value.get("total_tokens"))) else None


def _object_after(data: bytes, name_at: int) -> JSONObject | None:
    """Return the object that is the value of the field `usage` at `name_at`; None if there is none."""
    value = _VALUE.match(data, name_at + len(_USAGE))
    if value is None or data[name_at - 1 : name_at] == b"\\":  # the end of a string that quotes JSON
        return None
    text = data[value.end() : value.end() + _LONGEST_USAGE].decode("utf-8", "replace")
    try:
        decoded: dict[str, object] = _DECODER.raw_decode(text)[0]
    except (ValueError, RecursionError):
        return None
    return decoded


def _normal(usage: JSONObject) -> JSONObject | None:
    total = usage.get("total_tokens")
    if (normal := normal_usage(usage)) or not is_token_count(total):
        return normal
    return normal_usage({"prompt_tokens": total, "total_tokens": total})  # all that servers that rank documents report


class ForwardedAnswer:
    """The answer of a server: see `RawAnswer`."""

    def __init__(self, response: httpx.Response, profile: Profile) -> None:
        self.status = response.status_code
        self.headers = headers = answer_headers(response.headers.raw)
        self._response = response
        self._reads = body_reads(response)
        self._reads.wait_at_most(profile.transport.first_byte_timeout)
        self._idle = profile.transport.idle_timeout
        self._streamed = dict(headers).get(b"content-type", b"").startswith(b"text/event-stream")
        self._usage = UsageReader(streamed=self._streamed)
        self._first: bytes | None = None  # the first bytes, once they are read

    async def first(self) -> bytes:
        """Wait for the first bytes of the body, and return them; none if it is empty."""
        if self._first is not None:
            return self._first
        self._first = b""
        try:
            with _read_failures():
                self._first = await self._reads.__anext__()
        except StopAsyncIteration:
            return b""
        self._reads.wait_at_most(self._idle)
        self._usage.feed(self._first)
        return self._first

    async def first_event(self) -> JSONObject | None:
        """Return the first event if it may be an error, and the body is an event stream; waits for the first bytes."""
        if not self._streamed or (match := _FIRST_ERROR.match(await self.first())) is None:
            return None
        try:
            event = json.loads(match[1])
        except (ValueError, RecursionError):
            return None
        return event if isinstance(event, dict) else None

    async def deliver(self, take: Callable[[bytes], bool]) -> bool:
        """Pass each further read of the body on: see `RawAnswer`."""
        usage = self._usage

        def noted(data: bytes) -> bool:
            usage.feed(data)
            return take(data)

        try:
            with _read_failures():
                await self._reads.deliver(noted)
        except StopAsyncIteration:
            return False
        return True

    def usage(self) -> JSONObject | None:
        """Return the usage that the body has reported so far, with the cost in LiteLLM's header, if any."""
        usage = self._usage.usage()
        if usage and "cost" not in usage and not self._streamed:
            cost = cost_in_nanos(self._response.headers.get("x-litellm-response-cost"))
            return usage if cost is None else {**usage, "cost": cost}
        return usage

    def estimate(self) -> int:
        """Return about how many tokens of output the body has had so far."""
        return self._usage.estimate()

    def failed(self) -> bool:
        """Return whether the body is an event stream that has ended with an error."""
        return self._usage.failed()

    async def aclose(self) -> None:
        """Close the connection, unless the body is complete."""
        await self._reads.aclose()
        await self._response.aclose()


@contextmanager
def _read_failures() -> Iterator[None]:
    """Raise `BackendError` where a body cannot be read to its end."""
    try:
        yield
    except (TimeoutError, httpx.ReadTimeout) as error:
        raise failure("timeout", IDLE_TOO_LONG) from error
    except (httpx.TransportError, httpx.StreamError) as error:
        raise failure("failure", CONNECTION_BROKE) from error


def is_of_messages(endpoint: str) -> bool:
    """Return whether an endpoint belongs to Anthropic's API."""
    return endpoint == MESSAGES or endpoint.startswith(_BELOW_MESSAGES)


def forwards_to(endpoint: str, options: TransportOptions) -> bool:
    """
    Return whether requests to an endpoint are passed through to a server with these options.

    Those to the endpoints of client APIs are translated if the server does not speak the API, or as `passthrough` says.
    """
    if endpoint != CHAT and not is_of_messages(endpoint):
        return True
    if options.passthrough != "auto":
        return options.passthrough == "always"
    return options.api in _SPEAK_CHAT if endpoint == CHAT else options.messages


def session_header(profile: Profile, conversation: Callable[[], str]) -> dict[str, str]:
    """Return the header by which routers behind a server know a conversation; none without one."""
    name = profile.request.session_header
    return {name: session_id(key)} if name and (key := conversation()) else {}


class Forwarding:
    """Builds the HTTP requests to one server, and classifies its refusals."""

    def __init__(self, base: httpx.URL, profile: Profile) -> None:
        options = profile.transport
        self._base = base
        self._profile = profile
        self._path = options.path or CHAT
        self._own = _encoded(options.headers)
        self._own_of_messages = _encoded({**APIS["messages"].codec.headers, **options.headers})
        self._replaced = {name.lower() for name in self._own} - _DEFAULTS - _LISTS
        self._endpoint_url = lru_cache(64)(self._url_without_query)  # it takes longer than all the rest
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
        Return the request to send; raises `BackendError` if the endpoint needs a model and there is none.

        `own_account`: the credentials are this server's, so the caller's organization is not sent with them.
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
                (b"Accept-Encoding", b"identity"),  # the usage could not be read in a compressed body
                *passed_on,
                (b"Transfer-Encoding", b"chunked") if body.length is None else (b"Content-Length", b"%d" % body.length),
                *(field for field in options.items() if field[0].lower() not in given),
                *own.items(),
            ],
            stream=httpx.ByteStream(content) if isinstance(content, bytes) else _Pieces(content),
            extensions=self._extensions,
        )

    def _with_own(self, name: bytes, value: bytes) -> tuple[bytes, bytes]:
        """Return a header of the caller with what the profile adds to it."""
        own = next((own for given, own in self._own.items() if given.lower() == name), b"") if name in _LISTS else b""
        return name, value + b"," + own if own else value

    def _url(self, request: RawRequest, model: str) -> httpx.URL:
        """Return the URL of a request: that of its endpoint, with the caller's query and the profile's."""
        in_path = MODEL in self._path
        url = self._endpoint_url(request.endpoint, model if in_path else "")
        if request.query:
            url = url.copy_with(query=request.query.encode("ascii", "replace"))
        return url.copy_merge_params(self._profile.transport.query) if self._profile.transport.query else url

    def _url_without_query(self, endpoint: str, model: str) -> httpx.URL:
        """Return the URL of an endpoint: that of chat, with the end of its path replaced."""
        path = self._path
        if endpoint != CHAT:
            prefix = path.removesuffix(CHAT) if path.endswith(CHAT) else ""
            path = prefix + endpoint
        if MODEL in path:
            segment = quote(model, safe="", errors="replace")
            if not segment.strip("."):
                raise failure("model")
            path = path.replace(MODEL, segment)
        return self._base.copy_with(path=f"{self._base.path.rstrip('/')}/{path.lstrip('/')}")

    def refusal(
        self, request: RawRequest, response: httpx.Response, body: bytes, error: BackendError, secret: str | None
    ) -> BackendError:
        """
        Return the error to raise for a refusal; `error` is its classification.

        A refusal is passed on unchanged if it concerns the request and contains no secret.
        """
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
