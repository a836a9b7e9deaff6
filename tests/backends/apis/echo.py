"""
An invented, minimal model server API in one file: text in, text out.

`POST /echo` with `{"model": ..., "prompt": ..., "max": ...}` is answered by events `{"text": ...}` and, at the end,
`{"done": true, "reason": "stop" or "length", "tokens": {"in": 1, "out": 2}}`; an error is `{"problem": ...}`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from app.backends.apis import Codec
from app.backends.apis.api_decoder import APIDecoder, BodyDecoder, ErrorIn
from app.core.profile import Profile
from app.core.request import encoded_request, read_request, warn_dropped_fields
from app.core.request.messages import ConversationReader
from app.core.request.model_request import EncodedRequest, ModelRequest
from app.core.sse.decoder import EventDecoder
from app.core.sse.repeats import ServerEvent
from app.core.types.deltas import Delta, Finished, FinishReason, TextDelta, TokenCounts, UsageReported
from app.errors import InvalidRequest


def to_echo(model_request: ModelRequest, profile: Profile) -> EncodedRequest:
    """Encode a model request; raises `InvalidRequest` if it cannot be sent."""
    content = replace(profile.request.content, images="error", audio="error", files="error")
    options = replace(profile.request, content=content)
    state, choice, conversation = read_request(model_request, profile, options, ConversationReader)
    if choice.functions:
        raise InvalidRequest("This backend does not support tools.", param="tools")
    warn_dropped_fields(state)
    texts = [state.request.instructions, *(message["content"] for message in conversation.messages())]
    prompt = "\n\n".join(str(text) for text in texts if text)
    if not prompt:
        raise InvalidRequest("Nothing to answer. Send `input` or `instructions`.", param="input")
    model = options.model_map.get(model_request.model, model_request.model)
    body: dict[str, object] = {"model": model, "prompt": prompt, "max": state.request.max_output_tokens}
    return encoded_request(state, body, choice)


class EchoDecoder(APIDecoder):
    def __init__(self, encoded: EncodedRequest, profile: Profile, error_in: ErrorIn) -> None:
        super().__init__(BodyDecoder(list, EventDecoder()), error_in)

    def _read(self, events: list[ServerEvent]) -> list[Delta]:
        deltas: list[Delta] = []
        for event in events:
            if self.done or self.failure or not isinstance(event, dict):
                break
            if "problem" in event:
                self.failure = self._error_in(event)
                break
            self._begun = True
            if event.get("done"):
                self.finished = self.done = True
                deltas.append(Finished(FinishReason(event["reason"])))
                if tokens := event.get("tokens"):
                    deltas.append(UsageReported(TokenCounts(tokens["in"], tokens["out"])))
            elif event.get("text"):
                deltas.append(TextDelta([event["text"]]))
        return deltas


def known_error(value: dict[str, Any]) -> dict[str, Any]:
    """Return an error in OpenAI's form."""
    return {"error": {"message": value.get("problem")}}


ECHO_CODEC = Codec(to_echo, EchoDecoder, known_error=known_error)
