from __future__ import annotations

from app.backends.apis.api_decoder import APIDecoder
from app.backends.apis.body_decoder import BodyDecoder
from app.backends.apis.chat.chunk_reader import ChunkReader
from app.backends.apis.chat.completion import completion_chunks
from app.backends.apis.filters import filters
from app.core.profile import Profile
from app.core.request.model_request import EncodedRequest
from app.core.sse.decoder import END, EventDecoder
from app.core.sse.repeats import PatternMatcher, RepeatedEvent, ServerEvent
from app.core.stream.answer import ErrorIn
from app.core.types.deltas import AnswerMetadata, Delta, Finished, SourcesCited, UsageReported

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
