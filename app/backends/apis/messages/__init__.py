from __future__ import annotations

from typing import TYPE_CHECKING

from app.backends.apis import Codec, NoTokenCounting, TokenCounting
from app.backends.apis.messages.decoder import MessagesDecoder
from app.backends.apis.messages.encoder import MESSAGES_CALLER_FIELDS, to_messages_request
from app.backends.apis.token_counting import EndpointTokenizer
from app.backends.server.endpoints import under
from app.core.profile import Profile

if TYPE_CHECKING:
    import httpx

_PROMPT = ("model", "messages", "system", "tools", "tool_choice", "thinking", "output_config")


def _tokenizer(base: httpx.URL, profile: Profile) -> TokenCounting:
    path = profile.transport.path or "/messages"
    if not path.rstrip("/").endswith("messages"):  # different path at Vertex AI
        return NoTokenCounting(base, profile)
    return EndpointTokenizer(under(base, f"{path.rstrip('/')}/count_tokens", profile), _PROMPT)


MESSAGES_CODEC = Codec(
    to_messages_request,
    MessagesDecoder,
    MESSAGES_CALLER_FIELDS,
    _tokenizer,
    headers={"anthropic-version": "2023-06-01"},
)
