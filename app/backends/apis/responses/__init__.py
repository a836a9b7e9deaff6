from __future__ import annotations

from typing import TYPE_CHECKING

from app.backends.apis import Codec, CountingMethod, endpoint_method
from app.backends.apis.responses.decoder import ResponsesDecoder
from app.backends.apis.responses.encoder import RESPONSES_CALLER_FIELDS, to_responses
from app.backends.server.endpoints import under
from app.core.profile import Profile

if TYPE_CHECKING:
    import httpx

_PROMPT = ("model", "instructions", "input", "tools", "tool_choice", "text", "reasoning", "parallel_tool_calls")


def _counting_methods(base: httpx.URL, profile: Profile) -> list[CountingMethod]:
    return [endpoint_method(under(base, "responses/input_tokens", profile), _PROMPT, "input_tokens")]


RESPONSES_CODEC = Codec(to_responses, ResponsesDecoder, RESPONSES_CALLER_FIELDS, _counting_methods)
