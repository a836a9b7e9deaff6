"""The client for a probed server, and its results."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from app.backends.apis.api_decoder import BodyDecoder
from app.backends.apis.chat.decoder import REASONING_FIELDS, completion_chunks
from app.backends.server.client import explain, unreachable
from app.backends.server.errors import backend_error, error_in_chunk, scrubbed
from app.backends.transport import HTTPToolsTransport
from app.core.sse.decoder import END, EventDecoder
from app.core.sse.repeats import RawEvent, RepeatedEvent, ServerEvent
from app.core.stream.reasoning_fields import ReasoningDetails
from app.core.types import JSONObject
from app.errors import BackendError

ANSWER_TOKENS = 200  # output token limit
PROMPT_ONLY_TOKENS = 1  # the limit if the answer is irrelevant


@dataclass(slots=True)
class ProbeResult:
    status: int  # 0 without a response
    chunks: list[RawEvent] = field(default_factory=list)
    done: bool = False  # `[DONE]` was received
    error: str = ""

    @property
    def ok(self) -> bool:
        return self.status == 200 and not self.error

    @property
    def refused(self) -> bool:
        """With any status: many servers report an invalid request as a 500."""
        return not self.ok and self.status != 0

    @property
    def choices(self) -> list[JSONObject]:
        return [choice for chunk in self.chunks for choice in chunk.get("choices") or () if isinstance(choice, dict)]

    @property
    def deltas(self) -> list[JSONObject]:
        return [choice["delta"] for choice in self.choices if isinstance(choice.get("delta"), dict)]

    @property
    def text(self) -> str:
        return "".join(delta["content"] for delta in self.deltas if isinstance(delta.get("content"), str))

    @property
    def reasoning(self) -> tuple[str, str]:
        """The reasoning field and its text; two empty strings without reasoning."""
        for name in (*REASONING_FIELDS, "reasoning_details"):
            values = [delta[name] for delta in self.deltas if delta.get(name)]
            if text := "".join(
                value if isinstance(value, str) else "".join(ReasoningDetails.texts(value)) for value in values
            ):
                return name, text
        return "", ""

    @property
    def pieces(self) -> list[JSONObject]:
        return [piece for delta in self.deltas for piece in delta.get("tool_calls") or () if isinstance(piece, dict)]

    @property
    def called(self) -> list[str]:
        return [name for piece in self.pieces if (name := (piece.get("function") or {}).get("name"))]

    @property
    def only_reasoning(self) -> bool:
        return self.ok and bool(self.reasoning[1]) and not self.text.strip() and not self.called

    @property
    def finish(self) -> str:
        return next((str(choice["finish_reason"]) for choice in self.choices[::-1] if choice.get("finish_reason")), "")

    @property
    def usage(self) -> JSONObject:
        return next((chunk["usage"] for chunk in reversed(self.chunks) if chunk.get("usage")), {})

    @property
    def prompt_tokens(self) -> int:
        """0 if not reported."""
        return int(self.usage.get("prompt_tokens") or 0)


class ProbedServer:
    """Sends requests to one server, one at a time."""

    def __init__(
        self,
        url: str,
        key: str | None,
        *,
        seconds: float = 30,
        budget: int = 60,
        header: str = "Authorization",
        scheme: str = "Bearer",
    ) -> None:
        """The key is sent in `header`, after `scheme`."""
        self.url = httpx.URL(url.rstrip("/"))
        self.budget = budget
        self.fields: JSONObject = {}
        self.reasoning_off: dict[str, object] = {}
        self.limit = "max_tokens"
        self._key = key
        self._seconds = seconds
        self._http = httpx.AsyncClient(
            transport=HTTPToolsTransport(),
            headers={header: f"{scheme} {key}".strip()} if key else {},
            timeout=httpx.Timeout(seconds),
        )

    async def aclose(self) -> None:
        await self._http.aclose()

    async def models(self) -> tuple[list[dict[str, object]], str]:
        """The listed models, and headers that can identify the server."""
        response = await self._http.get(f"{self.url}/models")
        headers = " ".join(f"{name}: {value}" for name, value in response.headers.items() if name in ("server", "via"))
        try:
            body = response.json()
        except ValueError:
            body = None
        data = body.get("data") or body.get("models") if isinstance(body, dict) else body
        return [model for model in data if isinstance(model, dict)] if isinstance(data, list) else [], headers

    async def ask(
        self, prompt: str | list[dict[str, object]], *, tokens: int = ANSWER_TOKENS, stream: bool = True, **body: object
    ) -> ProbeResult:
        """Generate up to `tokens` tokens; None removes a field from `body`."""
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        request = {**self.fields, self.limit: tokens, "messages": messages, "stream": stream, **body}
        if self.budget <= 0:
            return ProbeResult(0, error="not sent: request limit reached")
        self.budget -= 1
        try:
            async with asyncio.timeout(self._seconds):
                return await self._post({name: value for name, value in request.items() if value is not None})
        except TimeoutError:
            return ProbeResult(0, error=f"no answer within {self._seconds:.0f} seconds")
        except (httpx.HTTPError, httpx.StreamError) as error:
            return ProbeResult(0, error=cause_of(error))

    async def answer(self, prompt: str, **body: Any) -> ProbeResult:
        """After reasoning without an answer, repeat the request with reasoning off."""
        result = await self.ask(prompt, **body)
        if self.reasoning_off and result.only_reasoning:
            return await self.ask(prompt, **{**self.reasoning_off, **body})
        return result

    async def _post(self, body: Mapping[str, object]) -> ProbeResult:
        async with self._http.stream("POST", f"{self.url}/chat/completions", json=body) as response:
            if response.status_code != 200:
                data = await response.aread()
                error = backend_error(response.status_code, response.headers, data, secret=self._key)
                return ProbeResult(response.status_code, error=error.message)
            result, decoder = ProbeResult(200), BodyDecoder(completion_chunks, EventDecoder())
            try:
                async for data in response.aiter_bytes():
                    result.chunks += _parsed(decoder.decode(data))
                    if result.chunks and result.chunks[-1] is END:
                        break  # some servers do not close the connection
                else:
                    result.chunks += _parsed(decoder.end())
            except BackendError as error:
                result.error = error.message
        if result.chunks and result.chunks[-1] is END:
            result.done = bool(result.chunks.pop())
        for chunk in result.chunks:
            if failure := error_in_chunk(chunk, secret=self._key):
                result.error = scrubbed(failure.message, self._key)
        return result

    async def status(self, path: str) -> int:
        """Send an empty request; 0 without a response."""
        try:
            return (await self._http.post(f"{self.url}{path}", json={})).status_code
        except httpx.HTTPError:
            return 0

    async def post(self, url: httpx.URL, body: dict[str, object]) -> object:
        """Raises `BackendError`."""
        if self.budget <= 0:
            raise BackendError("The probe's limit of requests was reached.")
        self.budget -= 1
        try:
            response = await self._http.post(url, json=body)
            if response.status_code != 200:
                raise backend_error(response.status_code, response.headers, response.content, secret=self._key)
            return json.loads(response.content)
        except (httpx.HTTPError, ValueError) as error:
            raise BackendError("Endpoint not found.", status=404, code="not_found") from error


def _parsed(events: Iterable[ServerEvent]) -> list[RawEvent]:
    return [event for event in events if not isinstance(event, RepeatedEvent)]  # none without a `PatternMatcher`


def cause_of(error: httpx.HTTPError | httpx.StreamError) -> str:
    """The reason, with the operating system's message."""
    if not isinstance(error, httpx.TransportError):
        return f"The answer cannot be read: {error}"
    failed = unreachable(error)
    failed.__cause__ = error
    explain(failed)
    return failed.explanation.replace("The backend", "The server")
