from __future__ import annotations

from typing import Any

from app.backends.apis.api_decoder import APIDecoder, ErrorIn
from app.backends.apis.body_decoder import NO_ANSWER, BodyDecoder
from app.backends.apis.chat.chunk_reader import ChunkReader
from app.backends.apis.filters import filters
from app.backends.server.errors import error_in_chunk
from app.core.profile import Profile
from app.core.request.model_request import EncodedRequest
from app.core.sse.decoder import END, EventDecoder
from app.core.sse.repeats import PatternMatcher, RawEvent, RepeatedEvent, ServerEvent
from app.core.types import JSONObject
from app.core.types.deltas import AnswerMetadata, Delta, Finished, SourcesCited, UsageReported
from app.errors import BackendError

_NO_OUTPUT = (AnswerMetadata, UsageReported, SourcesCited, Finished)


class ChatDecoder(APIDecoder):
    def __init__(self, encoded: EncodedRequest, profile: Profile, error_in: ErrorIn) -> None:
        self._reader = ChunkReader(profile.response)
        repeats = PatternMatcher(self._reader.find_text)
        super().__init__(
            BodyDecoder(completion_chunks, EventDecoder(repeats)), error_in, filters(profile, encoded.body), repeats
        )

    def _read(self, events: list[ServerEvent]) -> list[Delta]:
        begun, self._begun = self._begun, True
        deltas: list[Delta] = []
        for event in events:
            if isinstance(event, RepeatedEvent):
                self.resumed = self.resumed or self.finished
                if delta := event.read(event.texts):
                    deltas.append(delta)
            elif event is END:
                self.done = True
            else:
                read = self._reader.read(event)
                if self._reader.may_fail and (error := self._error_in(event)):
                    self.failure, self.done = error, False
                    if begun or deltas:  # otherwise another server may answer
                        deltas += (delta for delta in read if isinstance(delta, UsageReported))
                    break
                if self.finished and not all(isinstance(delta, _NO_OUTPUT) for delta in read):
                    self.resumed = True
                self.finished = self._reader.finished
                deltas += read
        return deltas


def completion_chunks(values: list[JSONObject]) -> list[RawEvent]:
    """A completion as a chunk and `END`; raises `BackendError`."""
    chunks = [_as_chunk(value) for value in values]
    if not any(chunk.get("choices") for chunk in chunks):
        raise next(filter(None, map(error_in_chunk, chunks)), None) or BackendError(NO_ANSWER)
    return [*chunks, END]


def _as_chunk(completion: JSONObject) -> RawEvent:
    if "choices" not in completion:  # Cline and Workers AI wrap the completion
        wrapped = (completion.get(name) for name in ("data", "result"))
        completion = next((value for value in wrapped if isinstance(value, dict) and value.get("choices")), completion)
    choices = completion.get("choices")
    if not isinstance(choices, list):
        return completion
    return {**completion, "choices": [_as_delta(choice) for choice in choices]}


def _as_delta(choice: object) -> Any:
    if not isinstance(choice, dict) or "message" not in choice or choice.get("delta"):
        return choice
    rest = {name: value for name, value in choice.items() if name != "message"}
    return {**rest, "delta": choice["message"]}
