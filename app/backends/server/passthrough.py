"""Requests to other endpoints, passed through as bytes. Only the answer's end is buffered, for its usage."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache

import httpx

from app.backends import RawRequest
from app.backends.apis import APIS
from app.backends.apis.chat.usage import has_counts, normal_usage
from app.backends.server.answer import CONNECTION_BROKE, IDLE_TOO_LONG
from app.backends.server.endpoints import MODEL, model_url, under
from app.backends.server.errors import scrubbed
from app.backends.server.errors.classification import failure
from app.backends.transport import HTTPReply
from app.backends.transport.connection import OutgoingRequest, RequestTarget, encoded_headers
from app.core.affinity import session_id
from app.core.profile import Profile, TransportOptions
from app.core.redaction import redact
from app.core.types import JSONObject, json_object
from app.core.types.deltas import TokenCounts
from app.core.usage import cost_in_nanos, is_token_count
from app.errors import BackendError

CHAT = "/chat/completions"
MESSAGES = "/messages"

_DEFAULT_HEADERS = frozenset({b"anthropic-version"})  # sent only if the caller does not
_LIST_HEADERS = frozenset({b"anthropic-beta"})  # extended by a profile
_DECODED = (b"content-encoding", b"content-length")


def is_messages_endpoint(endpoint: str) -> bool:
    return endpoint == MESSAGES or endpoint.startswith(f"{MESSAGES}/")


def forwards_to(endpoint: str, options: TransportOptions) -> bool:
    if endpoint != CHAT and not is_messages_endpoint(endpoint):
        return True
    if options.passthrough != "auto":
        return options.passthrough == "always"
    return options.api in ("chat", "auto") if endpoint == CHAT else options.messages


def session_header(profile: Profile, conversation: Callable[[], str]) -> dict[str, str]:
    name = profile.request.session_header
    return {name: session_id(key)} if name and (key := conversation()) else {}


class Forwarding:
    def __init__(self, base: httpx.URL, profile: Profile) -> None:
        options = profile.transport
        self._base = base
        self._profile = profile
        self._path = options.path or CHAT
        self._profile_headers = headers = _encoded(options.headers)
        self._messages_headers = _encoded({**APIS["messages"].codec.headers, **options.headers})
        self._extended = {
            name.lower(): b"," + value for name, value in headers.items() if name.lower() in _LIST_HEADERS
        }
        self._replaced = {name.lower() for name in headers} - _DEFAULT_HEADERS - _LIST_HEADERS
        self._target = lru_cache(64)(self._target_without_query)  # the slowest step

    def request(self, request: RawRequest, credentials: dict[str, str], *, own_account: bool) -> OutgoingRequest:
        """
        Raises `BackendError` if the endpoint requires a model and none is named.

        `own_account`: the credentials are this server's, so the caller's organization is not sent.
        """
        model = self._profile.request.model_map.get(request.model, request.model)
        body = request.body if model == request.model else request.body.with_model(model)
        added = _encoded({**request.headers, **session_header(self._profile, request.conversation), **credentials})
        messages = is_messages_endpoint(request.endpoint)
        profile_headers = self._messages_headers if messages else self._profile_headers
        replaced = self._replaced | {name.lower() for name in added}
        received = request_headers(request.received, messages=messages, own_account=own_account)
        forwarded = [(name, value + self._extended.get(name, b"")) for name, value in received if name not in replaced]
        names = {name for name, _ in forwarded} if profile_headers else frozenset()
        headers = [
            (b"Host", self._base.netloc),
            (b"Content-Type", body.media_type),
            (b"Accept-Encoding", b"identity"),  # the usage must be readable
            *forwarded,
            (b"Transfer-Encoding", b"chunked") if body.length is None else (b"Content-Length", b"%d" % body.length),
            *(field for field in profile_headers.items() if field[0].lower() not in names),
            *added.items(),
        ]
        target = self._target(request.endpoint, model if MODEL in self._path else "")
        if request.query:
            url = target.url.copy_with(query=request.query.encode("ascii", "replace"))
            own_parameters = target.url.params
            target = RequestTarget("POST", url.copy_merge_params(own_parameters) if own_parameters else url)
        return target, encoded_headers(headers), body.content()

    def _target_without_query(self, endpoint: str, model: str) -> RequestTarget:
        """The chat URL with another end."""
        path = self._path
        if endpoint != CHAT:
            path = (path.removesuffix(CHAT) if path.endswith(CHAT) else "") + endpoint
        if MODEL in path:
            url = model_url(self._base, path, model, self._profile)
        else:
            url = under(self._base, path, self._profile)
        return RequestTarget("POST", url)

    def refusal(
        self, request: RawRequest, response: httpx.Response, body: bytes, error: BackendError, secret: str | None
    ) -> BackendError:
        """The error to raise. A response is forwarded unchanged if it concerns the request and has no secret."""
        status = response.status_code
        if error.code == "backend_url":
            message = f"The backend has no {request.endpoint}, or not for this model."
            return BackendError(message, status=404, error_type="not_found", code="unknown_url")
        text = body.decode("utf-8", "replace")
        private = (
            (secret and secret in text) or redact(text) != text or scrubbed(error.message, secret) != error.message
        )
        if status < 500 and error.status == status and status != 429 and error.quoted and not private:
            headers = [field for field in answer_headers(response.headers.raw) if field[0] not in _DECODED]
            error.response = headers, body
        return error


def _encoded(headers: Mapping[str, str]) -> dict[bytes, bytes]:
    return {name.encode("latin-1"): value.encode("latin-1") for name, value in headers.items()}


# In Messages, Responses or Chat Completions.
_FIRST_ERROR = re.compile(
    rb'\s*(?:event: ?error\r?\n)?data: ?(\{"(?:type": ?"error"|error": ?\{)[^\r\n]{1,10000}\})\r?\n\r?\n'
)
_TAIL = 64 * 1024  # bytes at the body's end
_HEAD = 4 * 1024  # bytes at its start
_LONGEST_USAGE = 8 * 1024  # bytes
_LONGEST_ERROR = 8 * 1024
# At the start of a line, which JSON text cannot contain.
_ERROR = re.compile(rb'^(?:event: ?error\r?$|data: ?\{\s*"error"\s*:\s*[{"])', re.MULTILINE)
_EVENT = b"data:"
_USAGE = re.compile(rb'"usage"\s*:\s*(?=\{)')
_DECODER = json.JSONDecoder()


class ForwardedAnswer:
    """
    A server's answer (`RawAnswer`); `begin` must be called first.

    Reads usage and errors without parsing the body.
    """

    def __init__(self, reply: HTTPReply, profile: Profile) -> None:
        self.status = reply.status
        self.headers = answer_headers(reply.headers)
        self.first = b""
        self.aclose = reply.aclose
        self._reply = reply
        self._idle = profile.transport.idle_timeout
        self._streamed = reply.fields.get(b"content-type", b"").startswith(b"text/event-stream")
        self._pieces: deque[bytes] = deque()
        self._size = 0  # bytes
        self._total = 0
        self._head = b""
        self._events = 0  # in discarded pieces

    async def begin(self, error_in: Callable[[JSONObject], BackendError | None]) -> None:
        """Wait for the body's first bytes; raises `BackendError`, also if a stream begins with a retryable error."""
        try:
            with _read_failures():
                self.first = await anext(self._reply, b"")
            self._reply.wait_at_most(self._idle)
            self._feed(self.first)
            if self._streamed and (match := _FIRST_ERROR.match(self.first)):
                with suppress(ValueError, RecursionError):
                    if (error := error_in(json_object(json.loads(match[1])))) and error.retryable:
                        raise error
        except BaseException:
            await self.aclose()
            raise

    async def deliver(self, take: Callable[[bytes], bool]) -> bool:
        feed = self._feed

        def noted(data: bytes) -> bool:
            feed(data)
            return take(data)

        try:
            with _read_failures():
                await self._reply.deliver(noted)
        except StopAsyncIteration:
            return False
        return True

    def _feed(self, piece: bytes) -> None:
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

    def usage(self) -> TokenCounts | None:
        """Includes the cost in LiteLLM's header."""
        tail = b"".join(self._pieces)[-_TAIL:]
        usage = _first_with_counts(tail, reversed([*_USAGE.finditer(tail)]))
        if self._streamed or not usage:
            # Anthropic's streams report input usage first and output usage last.
            first = _first_with_counts(self._head, _USAGE.finditer(self._head))
            usage = {**first, **{name: count for name, count in usage.items() if count is not None}}
        counts, total = normal_usage(usage), usage.get("total_tokens")
        if counts is None and is_token_count(total):
            counts = normal_usage({"prompt_tokens": total, "total_tokens": total})  # rerank servers report nothing else
        if counts and counts.cost is None and not self._streamed:
            cost = self._reply.fields.get(b"x-litellm-response-cost", b"").decode("latin-1")
            return counts._replace(cost=cost_in_nanos(cost))
        return counts

    def estimate(self) -> int:
        """The body's tokens: one per event, or per four bytes of JSON."""
        return self._events + b"".join(self._pieces).count(_EVENT) if self._streamed else self._total // 4

    def failed(self) -> bool:
        """Whether a stream's last events contain an error."""
        if not self._streamed:
            return False
        end = b"".join(self._pieces)[-_LONGEST_ERROR:]
        # `in` first tests whether its operand is a number: slower.
        return end.rfind(b"error") >= 0 and _ERROR.search(end) is not None


def _first_with_counts(data: bytes, names: Iterable[re.Match[bytes]]) -> JSONObject:
    for name in names:
        if data[name.start() - 1 : name.start()] == b"\\":  # quoted JSON
            continue
        try:
            usage = _DECODER.raw_decode(data[name.end() : name.end() + _LONGEST_USAGE].decode("utf-8", "replace"))[0]
        except (ValueError, RecursionError):
            continue
        if has_counts(usage) or is_token_count(usage.get("total_tokens")):
            return dict(usage)
    return {}


@contextmanager
def _read_failures() -> Iterator[None]:
    try:
        yield
    except (TimeoutError, httpx.ReadTimeout) as error:
        raise failure("timeout", IDLE_TOO_LONG) from error
    except (httpx.TransportError, httpx.StreamError) as error:
        raise failure("failure", CONNECTION_BROKE) from error


Header = tuple[bytes, bytes]

# Allow-lists for headers. They exclude credentials, cookies, client addresses, and gateway headers that select a URL,
# model or account; from answers also rate limits, redirects, and headers with an effect in browsers.
_REQUEST_HEADERS = frozenset(
    {
        b"accept",
        b"accept-language",
        b"baggage",
        b"http-referer",  # OpenRouter: the caller's site and title
        b"idempotency-key",
        b"openai-beta",
        b"traceparent",
        b"tracestate",
        b"user-agent",
        b"x-client-request-id",
        b"x-ms-client-request-id",
        b"x-openrouter-title",
        b"x-request-id",
        b"x-session-affinity",
        b"x-session-id",
        b"x-smg-routing-key",
        b"x-title",
    }
)
_REQUEST_HEADER_PREFIXES = (b"x-stainless-",)
_MESSAGES_HEADERS = _REQUEST_HEADERS | {b"x-app"}
_MESSAGES_HEADER_PREFIXES = (*_REQUEST_HEADER_PREFIXES, b"anthropic-", b"x-claude-")
# These select an account; forwarded only with the caller's own credentials.
_ACCOUNT = frozenset(
    {b"anthropic-organization-id", b"anthropic-workspace-id", b"openai-organization", b"openai-project"}
)

_ANSWER_HEADERS = frozenset(
    {
        b"cache-control",
        b"content-disposition",
        b"content-encoding",
        b"content-language",
        b"content-length",
        b"content-range",
        b"content-type",
        b"etag",
        b"last-modified",
        b"openai-model",
        b"openai-version",
        b"request-id",
        b"retry-after",
        b"retry-after-ms",
        b"vary",
        b"x-should-retry",
    }
)


def request_headers(headers: Iterable[Header], *, messages: bool, own_account: bool) -> list[Header]:
    """`messages`: the endpoint belongs to Anthropic's API. `own_account`: the credentials are the operator's."""
    names = _MESSAGES_HEADERS if messages else _REQUEST_HEADERS
    prefixes = _MESSAGES_HEADER_PREFIXES if messages else _REQUEST_HEADER_PREFIXES
    return [
        (name, value)
        for name, value in _end_to_end(headers)
        if (not own_account if name in _ACCOUNT else name in names or name.startswith(prefixes))
    ]


def answer_headers(headers: Iterable[Header]) -> list[Header]:
    return [(name, value) for name, value in _end_to_end(headers) if name in _ANSWER_HEADERS]


def _end_to_end(headers: Iterable[Header]) -> list[Header]:
    """Remove headers that `Connection` lists (RFC 9110, 7.6.1); names become lower case."""
    lowered = [(name.lower(), value) for name, value in headers]
    listed = {item.strip().lower() for name, value in lowered if name == b"connection" for item in value.split(b",")}
    return [(name, value) for name, value in lowered if name not in listed]
