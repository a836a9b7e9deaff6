"""The server that is probed: one small request, and what it says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from app.backends.chat.body_decoder import BodyDecoder
from app.backends.chat.errors import backend_error, error_in_chunk, scrubbed
from app.backends.chat.normalize import REASONING_FIELDS
from app.backends.transport import HTTPToolsTransport
from app.core.stream.reasoning_fragments import ReasoningDetails
from app.core.types.chunk import DONE, RawChunk
from app.errors import BackendError

ANSWER_TOKENS = 200  # tokens for an answer
PROMPT_ONLY_TOKENS = 1  # where only the prompt matters


@dataclass(slots=True)
class ProbeResult:
    """What a server said to one request."""

    status: int  # 0: nothing at all
    chunks: list[RawChunk] = field(default_factory=list)
    done: bool = False  # was there `[DONE]`?
    error: str = ""

    @property
    def ok(self) -> bool:
        return self.status == 200 and not self.error

    @property
    def refused(self) -> bool:
        """Whether the request was found to be wrong: many servers report that as an error of their own."""
        return not self.ok and self.status != 0

    @property
    def deltas(self) -> list[dict[str, Any]]:
        choices = [choice for chunk in self.chunks for choice in chunk.get("choices") or () if isinstance(choice, dict)]
        return [choice["delta"] for choice in choices if isinstance(choice.get("delta"), dict)]

    @property
    def text(self) -> str:
        return "".join(delta["content"] for delta in self.deltas if isinstance(delta.get("content"), str))

    @property
    def reasoning(self) -> tuple[str, str]:
        """The field in which the server thinks, and the thought; two empty strings if there is none."""
        for name in (*REASONING_FIELDS, "reasoning_details"):
            said = [delta[name] for delta in self.deltas if delta.get(name)]
            if thought := "".join(
                one if isinstance(one, str) else "".join(ReasoningDetails.texts(one)) for one in said
            ):
                return name, thought
        return "", ""

    @property
    def pieces(self) -> list[dict[str, Any]]:
        """The fragments of tool calls."""
        return [piece for delta in self.deltas for piece in delta.get("tool_calls") or () if isinstance(piece, dict)]

    @property
    def called(self) -> list[str]:
        """The names of the tools that were called."""
        return [name for piece in self.pieces if (name := (piece.get("function") or {}).get("name"))]

    @property
    def only_thought(self) -> bool:
        """Whether the model has thought, and done nothing else."""
        return self.ok and bool(self.reasoning[1]) and not self.text.strip() and not self.called

    @property
    def finish(self) -> str:
        choices = [choice for chunk in self.chunks for choice in chunk.get("choices") or () if isinstance(choice, dict)]
        return next((str(choice["finish_reason"]) for choice in reversed(choices) if choice.get("finish_reason")), "")

    @property
    def usage(self) -> dict[str, Any]:
        return next((chunk["usage"] for chunk in reversed(self.chunks) if chunk.get("usage")), {})

    @property
    def prompt_tokens(self) -> int:
        return int(self.usage.get("prompt_tokens") or 0)


class ProbedServer:
    """
    Asks one server, one thing at a time.

    `fields` are in every request, `still` are those that keep the model from thinking, as far as they are known; `left`
    is how many requests may still be sent.
    """

    def __init__(self, url: str, key: str | None, *, seconds: float = 30, most: int = 60) -> None:
        self.url = httpx.URL(url.rstrip("/"))
        self.left = most
        self.fields: dict[str, Any] = {}
        self.still: dict[str, Any] = {}
        self.limit = "max_tokens"
        self._key = key
        self._seconds = seconds
        self._http = httpx.AsyncClient(
            transport=HTTPToolsTransport(),
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(seconds),
        )

    async def aclose(self) -> None:
        await self._http.aclose()

    async def models(self) -> tuple[list[dict[str, Any]], str]:
        """Return the models that are listed, and what else there is to recognise the server by."""
        said = await self._http.get(f"{self.url}/models")
        known = " ".join(f"{name}: {value}" for name, value in said.headers.items() if name in ("server", "via"))
        try:
            listed = said.json()
        except ValueError:
            listed = None
        data = listed.get("data") or listed.get("models") if isinstance(listed, dict) else listed
        return [one for one in data if isinstance(one, dict)] if isinstance(data, list) else [], known

    async def ask(
        self, prompt: str | list[dict[str, Any]], *, room: int = ANSWER_TOKENS, stream: bool = True, **body: Any
    ) -> ProbeResult:
        """Ask for one answer; a field of `body` that is None is left out."""
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        asked = {**self.fields, self.limit: room, "messages": messages, "stream": stream, **body}
        if self.left <= 0:
            return ProbeResult(0, error="not asked any more: there were too many questions")
        self.left -= 1
        try:
            async with asyncio.timeout(self._seconds):
                return await self._post({name: value for name, value in asked.items() if value is not None})
        except TimeoutError:
            return ProbeResult(0, error=f"no answer within {self._seconds:.0f} seconds")
        except (httpx.HTTPError, httpx.StreamError) as error:
            return ProbeResult(0, error=type(error).__name__)

    async def answer(self, prompt: str, **body: Any) -> ProbeResult:
        """
        Ask for one answer, and once more without a thought if there was nothing else.

        What a server forces begins where the thought ends, which may be later than there are tokens for it.
        """
        said = await self.ask(prompt, **body)
        return await self.ask(prompt, **{**self.still, **body}) if self.still and said.only_thought else said

    async def _post(self, body: Mapping[str, Any]) -> ProbeResult:
        async with self._http.stream("POST", f"{self.url}/chat/completions", json=body) as response:
            if response.status_code != 200:
                data = await response.aread()
                error = backend_error(response.status_code, response.headers, data, secret=self._key)
                return ProbeResult(response.status_code, error=error.message)
            said, reader = ProbeResult(200), BodyDecoder()
            try:
                async for read in response.aiter_bytes():
                    said.chunks += reader.decode(read)
                    if said.chunks and said.chunks[-1] is DONE:
                        break  # some do not close the connection
                else:
                    said.chunks += reader.end()
            except BackendError as error:
                said.error = error.message
        if said.chunks and said.chunks[-1] is DONE:
            said.done = bool(said.chunks.pop())
        for chunk in said.chunks:
            if complaint := error_in_chunk(chunk, secret=self._key):
                said.error = scrubbed(complaint.message, self._key)
        return said

    async def post(self, url: httpx.URL, body: dict[str, Any]) -> Any:
        """Return the JSON of an answer of another endpoint; raises `BackendError`."""
        if self.left <= 0:
            raise BackendError("There were too many questions.")
        self.left -= 1
        try:
            response = await self._http.post(url, json=body)
            if response.status_code != 200:
                raise backend_error(response.status_code, response.headers, response.content, secret=self._key)
            return json.loads(response.content)
        except (httpx.HTTPError, ValueError) as error:
            raise BackendError("There is no such endpoint.", status=404, code="not_found") from error
