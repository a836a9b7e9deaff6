"""The Responses API, of servers that store nothing for this one."""

from __future__ import annotations

from app.backends.apis import Codec
from app.backends.apis.responses.decoder import ResponsesDecoder
from app.backends.apis.responses.encoder import RESPONSES_CALLER_FIELDS, to_responses
from app.backends.apis.responses.token_counting import InputTokenizer

RESPONSES_CODEC = Codec(to_responses, ResponsesDecoder, RESPONSES_CALLER_FIELDS, InputTokenizer)
