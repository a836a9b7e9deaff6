from __future__ import annotations

from typing import TYPE_CHECKING

from app.backends.apis import Codec, CountingMethod, endpoint_method
from app.backends.apis.messages.decoder import MessagesDecoder
from app.backends.apis.messages.encoder import MESSAGES_CALLER_FIELDS, to_messages_request
from app.backends.server.endpoints import under
from app.core.profile import Profile

if TYPE_CHECKING:
    import httpx

_PROMPT = ("model", "messages", "system", "tools", "tool_choice", "thinking", "output_config")


def _counting_methods(base: httpx.URL, profile: Profile) -> list[CountingMethod]:
    path = (profile.transport.path or "/messages").rstrip("/")
    if not path.endswith("messages"):  # different path at Vertex AI
        return []
    return [endpoint_method(under(base, f"{path}/count_tokens", profile), _PROMPT, "input_tokens")]


MESSAGES_CODEC = Codec(
    to_messages_request,
    MessagesDecoder,
    MESSAGES_CALLER_FIELDS,
    _counting_methods,
    headers={"anthropic-version": "2023-06-01"},
)
