from __future__ import annotations

from typing import TYPE_CHECKING

from app.backends.apis import Codec, CountingMethod, Post, endpoint_method, prompt_fields
from app.backends.apis.chat.decoder import ChatDecoder
from app.core.profile import Profile
from app.core.request import CALLER_FIELDS, to_chat
from app.core.types import JSONMapping, json_list, json_object

if TYPE_CHECKING:
    import httpx

_PROMPT = ("model", "messages", "tools", "chat_template_kwargs", "reasoning_effort")


def counting_methods(base: httpx.URL, profile: Profile) -> list[CountingMethod]:
    """vLLM's and llama.cpp's endpoints, above `/v1`; other profiles' servers do not count tokens."""
    root = base.copy_with(path=base.path.rstrip("/").removesuffix("/v1") + "/")
    tokenize = root.join("tokenize")

    async def templated(body: JSONMapping, post: Post) -> object:
        """For older versions of llama.cpp."""
        prompt = json_object(await post(root.join("apply-template"), prompt_fields(body, _PROMPT))).get("prompt")
        if prompt is None:
            return None
        answer = await post(tokenize, {"content": prompt, "add_special": True, "parse_special": True})
        return len(json_list(json_object(answer).get("tokens"))) or None

    counted = endpoint_method(root.join("v1/chat/completions/input_tokens"), _PROMPT, "input_tokens")
    tokenized = endpoint_method(tokenize, _PROMPT, "count", add_generation_prompt=True)
    methods = {
        "vllm": [tokenized],
        "llama.cpp": [counted, templated],
        "default": [counted, tokenized, templated],
    }
    return methods.get(profile.name, [])


CHAT_CODEC = Codec(to_chat, ChatDecoder, CALLER_FIELDS, counting_methods)
