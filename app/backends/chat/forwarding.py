"""
Forwards requests and answers as bytes: headers, URLs, refusals, and the body with its usage.

The body of an answer is not parsed. Only its end is buffered, since servers report the usage there.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import AsyncIterator, Iterable
from typing import Any
from urllib.parse import quote

import httpx

from app.backends import RawRequest, RefusedRequest
from app.backends.chat.answer import CONNECTION_BROKE, IDLE_TOO_LONG, body_reads
from app.backends.chat.errors import scrubbed
from app.backends.chat.errors.classification import failure
from app.backends.chat.usage import normal_usage
from app.core.profile import Profile
from app.core.redaction import redact
from app.core.types.usage import is_token_count
from app.errors import BackendError

CHAT = "/chat/completions"
MODEL = "{model}"  # in `transport.path`: the model's name at the backend

# Hop-by-hop headers, which are not passed on (RFC 9110, 7.6.1).
HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
# The caller's credentials for this server, and headers that are set anew or no longer apply.
_REPLACED = frozenset(
    {
        b"accept-encoding",
        b"api-key",
        b"authorization",
        b"content-encoding",
        b"content-length",
        b"cookie",
        b"expect",
        b"host",
        b"x-api-key",
    }
)
_ACCOUNT = frozenset({b"openai-organization", b"openai-project"})
_DECODED = (b"content-encoding", b"content-length")
# Set by this server, or about its own account, cookies and origin.
_OURS = frozenset(
    {
        b"alt-svc",
        b"date",
        b"openai-organization",
        b"openai-processing-ms",
        b"openai-project",
        b"server",
        b"set-cookie",
        b"strict-transport-security",
        b"x-request-id",
    }
)
_OUR_PREFIXES = (b"access-control-", b"x-ratelimit-")

_USAGE = re.compile(rb'(?<!\\)"usage"\s*:\s*(?=\{)')
_TAIL = 64 * 1024  # bytes


class UsageReader:
    """Buffers the end of a body, JSON or an event stream, and reads the usage from it."""

    def __init__(self, *, streamed: bool) -> None:
        self._pieces: deque[bytes] = deque()
        self._size = 0  # of the pieces
        self._total = 0
        self._events = 0 if streamed else None

    def feed(self, piece: bytes) -> None:
        """Take the next bytes of the body."""
        pieces = self._pieces
        pieces.append(piece)
        size = len(piece)
        self._size += size
        self._total += size
        if self._events is not None:
            self._events += piece.count(b"data:")
        while self._size - len(pieces[0]) >= _TAIL:
            self._size -= len(pieces.popleft())

    def usage(self) -> dict[str, Any] | None:
        """Return the last usage in the form of Chat Completions; None if there is none."""
        tail = b"".join(self._pieces)[-_TAIL:]
        for match in reversed([*_USAGE.finditer(tail)]):
            try:
                value, _ = json.JSONDecoder().raw_decode(tail[match.end() :].decode("utf-8", "replace"))
            except (ValueError, RecursionError):
                continue
            if usage := normal_usage(value):
                return usage
            if is_token_count(total := value.get("total_tokens")):  # servers that rank documents report nothing else
                return normal_usage({"prompt_tokens": total, "total_tokens": total})
        return None

    def estimate(self) -> int:
        """Return about how many tokens the body had: one for each event, or for four bytes of JSON."""
        return self._total // 4 if self._events is None else self._events


class ForwardedAnswer:
    """The answer of a server: see `RawAnswer`."""

    def __init__(self, response: httpx.Response, profile: Profile) -> None:
        self.status = response.status_code
        self.headers = answer_headers(response.headers.raw)
        self._response = response
        self._reads = body_reads(response)
        self._reads.wait_at_most(profile.transport.first_byte_timeout)
        self._idle: float | None = profile.transport.idle_timeout  # until it is set
        content_type = response.headers.get("content-type", "")
        self._usage = UsageReader(streamed=content_type.startswith("text/event-stream"))

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            data = await self._reads.__anext__()
        except (TimeoutError, httpx.ReadTimeout) as error:
            raise failure("timeout", IDLE_TOO_LONG) from error
        except (httpx.TransportError, httpx.StreamError) as error:
            raise failure("failure", CONNECTION_BROKE) from error
        if self._idle is not None:
            self._reads.wait_at_most(self._idle)
            self._idle = None
        self._usage.feed(data)
        return data

    def usage(self) -> dict[str, Any] | None:
        """Return the usage that the body has reported so far."""
        return self._usage.usage()

    def estimate(self) -> int:
        """Return about how many tokens of output the body has had so far."""
        return self._usage.estimate()

    async def aclose(self) -> None:
        """Close the connection, unless the body is complete."""
        await self._reads.aclose()
        await self._response.aclose()


class Forwarding:
    """Builds the HTTP requests to one server, and classifies its refusals."""

    def __init__(self, base: httpx.URL, profile: Profile) -> None:
        self._base = base
        self._profile = profile

    def request(self, request: RawRequest, credentials: dict[str, str], *, own_account: bool) -> httpx.Request:
        """
        Return the request to send; raises `BackendError` if the endpoint needs a model and there is none.

        `own_account`: the credentials are this server's, so the caller's organization is not sent with them.
        """
        options = self._profile.transport
        model = self._profile.request.model_map.get(request.model, request.model)
        body = request.body if model == request.model else request.body.with_model(model)
        content = body.content()
        fixed = {name.lower().encode("latin-1") for name in (*options.headers, *credentials)}
        dropped = fixed | _REPLACED | (_ACCOUNT if own_account else frozenset())
        headers = [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in _end_to_end(request.headers)
            if name not in dropped
        ]
        length = [("Content-Length", str(body.length))] if body.length is not None else []
        headers += length or [("Transfer-Encoding", "chunked")]
        return httpx.Request(
            "POST",
            self._url(request, model),
            headers=[
                ("Host", self._base.netloc.decode("ascii")),
                ("Accept-Encoding", "identity"),  # the usage could not be read in a compressed body
                *headers,
                *options.headers.items(),
                *credentials.items(),
            ],
            stream=httpx.ByteStream(content) if isinstance(content, bytes) else _Pieces(content),
            extensions={
                "timeout": {
                    "connect": options.connect_timeout,
                    "pool": options.connect_timeout,
                    "write": options.idle_timeout,
                    "read": options.first_byte_timeout,
                }
            },
        )

    def _url(self, request: RawRequest, model: str) -> httpx.URL:
        """Return the URL of an endpoint: that of chat, with the end of its path replaced."""
        path = self._profile.transport.path
        if request.endpoint != CHAT:
            prefix = path.removesuffix(CHAT) if path.endswith(CHAT) else ""
            path = prefix + request.endpoint
        if MODEL in path:
            segment = quote(model, safe="", errors="replace")
            if not segment.strip("."):
                raise failure("model")
            path = path.replace(MODEL, segment)
        url = self._base.copy_with(path=f"{self._base.path.rstrip('/')}/{path.lstrip('/')}")
        if request.query:
            url = url.copy_with(query=request.query.encode("ascii", "replace"))
        return url.copy_merge_params(self._profile.transport.query) if self._profile.transport.query else url

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
            return BackendError(message, status=404, type="not_found", code="unknown_url")
        text = body.decode("utf-8", "replace")
        private = (
            (secret and secret in text) or redact(text) != text or scrubbed(error.message, secret) != error.message
        )
        if status >= 500 or error.status != status or status == 429 or not error.quoted or private:
            return error
        headers = [field for field in answer_headers(response.headers.raw) if field[0] not in _DECODED]
        return RefusedRequest(error, headers, body)


class _Pieces(httpx.AsyncByteStream):
    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces = pieces

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces


def answer_headers(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers of an answer that are passed on, their names in lower case."""
    return [
        (name, value)
        for name, value in _end_to_end(headers)
        if name not in _OURS and not name.startswith(_OUR_PREFIXES)
    ]


def _end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return headers without hop-by-hop ones, their names in lower case."""
    lowered = [(name.lower(), value) for name, value in headers]
    listed = {item.strip().lower() for name, value in lowered if name == b"connection" for item in value.split(b",")}
    return [(name, value) for name, value in lowered if name not in HOP_BY_HOP and name not in listed]
