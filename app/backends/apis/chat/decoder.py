"""Decodes the body of a Chat Completions answer into chunks: see `AnswerDecoder`."""

from __future__ import annotations

from app.backends.apis.api_decoder import APIDecoder
from app.backends.apis.body_decoder import BodyDecoder
from app.backends.apis.chat.completion import completion_chunks
from app.backends.apis.chat.filters import filters
from app.backends.apis.chat.normalize import NO_REASON, Normalizer
from app.core.json_values import json_object
from app.core.profile import Profile
from app.core.request.question import EncodedQuestion
from app.core.sse.repeats import RepeatDecoder
from app.core.stream.answer import ErrorIn
from app.core.types import JSONObject
from app.core.types.chunk import DONE, ChunkOrRun, ChunkRun, RawChunk, RawOrRun


class ChatDecoder(APIDecoder):
    """Decodes the bytes of one answer, detects errors, and converts what servers send differently."""

    def __init__(self, asked: EncodedQuestion, profile: Profile, error_in: ErrorIn) -> None:
        tools = asked.body.get("tools")
        self._filters = filters(profile, tools if isinstance(tools, list) else ())
        self._repeats = None if self._filters else RepeatDecoder()
        super().__init__(BodyDecoder(completion_chunks, self._repeats), error_in)
        self._normalizer = Normalizer()
        self._has_chunks = False

    def decode(self, data: bytes) -> list[ChunkOrRun]:
        if self._repeats and (run := self._repeats.match_frame(data)):  # as most reads of a slow stream are
            return [run] if run.like is self._normalizer.plain and not self.finished else self._chunks([run])
        return super().decode(data)

    def _has_begun(self) -> bool:
        return self._has_chunks

    def end(self) -> list[ChunkOrRun]:
        """Return the remaining chunks, with what was held back, at the end of the body."""
        chunks = super().end()
        return chunks if self.done or self.failure else [*chunks, *self._last([])]

    def cut(self) -> list[ChunkOrRun]:
        return self._last([])

    def _chunks(self, chunks: list[RawOrRun]) -> list[ChunkOrRun]:
        """Return filtered and normalised chunks, up to an error; record the finish reason, error and end."""
        if not chunks:
            return []
        begun, self._has_chunks = self._has_chunks, True
        if chunks[-1] is DONE:
            chunks.pop()
            self.done = True
        if not self._filters and not self.finished and self._normalizer.is_plain(chunks):
            return [*chunks, DONE] if self.done else chunks
        chunks = self._before_error(chunks, begun=begun)
        return self._last(chunks) if self.done or self.failure else self._filtered(chunks)

    def _filtered(self, chunks: list[RawOrRun]) -> list[ChunkOrRun]:
        raw = chunks
        for chunk_filter in self._filters:  # without them there are runs
            raw = [*chunk_filter.feed(raw)]  # type: ignore[arg-type]
        return self._normalizer.feed(raw)

    def _last(self, chunks: list[RawOrRun]) -> list[ChunkOrRun]:
        """Return the last chunks, with those that the filters have held back."""
        raw = chunks
        for chunk_filter in self._filters:
            raw = [*chunk_filter.feed(raw), *chunk_filter.end()]  # type: ignore[arg-type]
        normal = self._normalizer.feed(raw)
        return [*normal, DONE] if self.done else normal

    def _before_error(self, chunks: list[RawOrRun], *, begun: bool) -> list[RawOrRun]:
        """Return the chunks before an error, and the usage in its own chunk if the answer has `begun`."""
        for n, chunk in enumerate(chunks):
            if isinstance(chunk, ChunkRun):
                self.resumed = self.resumed or self.finished
                continue
            choices = chunk.get("choices")
            choice = _first(choices) if choices else _NO_CHOICE
            reason = choice.get("finish_reason")
            suspect = not choices or "error" in chunk or "error" in choice or reason == "error" or "x_groq" in chunk
            if suspect and (error := self._error_in(chunk)):
                self.failure, self.done = error, False
                return [*chunks[:n], *([usage] if (begun or n) and (usage := _usage_alone(chunk, choice)) else [])]
            if self.finished and _has_output(choice.get("delta")):
                self.resumed = True
            if reason and reason != NO_REASON:
                self.finished = True
        return chunks


_NO_CHOICE: JSONObject = {}


def _usage_alone(chunk: RawChunk, choice: JSONObject) -> RawChunk | None:
    """Return a chunk with the usage of another, wherever it is; None without one."""
    places: RawChunk = {name: chunk[name] for name in ("usage", "x_groq") if name in chunk}
    groq = json_object(places.get("x_groq"))
    if not (places.get("usage") or groq.get("usage") or choice.get("usage")):
        return None
    return {**places, "choices": [{"delta": {}, "usage": choice.get("usage")}]}


def _has_output(delta: object) -> bool:
    return isinstance(delta, dict) and any(value for name, value in delta.items() if name != "role")


def _first(choices: object) -> JSONObject:
    choice = choices[0] if isinstance(choices, list) else None
    return choice if isinstance(choice, dict) else _NO_CHOICE
