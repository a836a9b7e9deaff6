"""Short notation for conversations and the resulting messages."""

from __future__ import annotations

from typing import Any

import pytest

from app.core.profile import Profile
from app.core.request import to_chat
from app.core.request.model_request import EncodedRequest, ModelRequest
from app.core.types.request import CreateResponse
from app.errors import InvalidRequest

PNG = "data:image/png;base64,iVBORw0KGgo="
IMAGE = {"type": "input_image", "image_url": PNG}
CHAT_IMAGE = {"type": "image_url", "image_url": {"url": PNG}}


def ask(
    *items: Any, upstream: dict[str, Any] | None = None, instructions: str | None = None, **options: Any
) -> EncodedRequest:
    """Translate a conversation; `options` are the backend's, with `__` for the dots of their names."""
    profile = Profile().override({f"request.{name.replace('__', '.')}": value for name, value in options.items()})
    request = CreateResponse.model_validate({"model": "m", "input": list(items), "instructions": instructions})
    return to_chat(ModelRequest(request, request.items(), "m", upstream=upstream or {}), profile)


def messages(*items: Any, **options: Any) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = ask(*items, **options).body["messages"]
    return sent


def refused(*items: Any, **options: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        ask(*items, **options)
    return caught.value


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "output_text", "text": text}]}


def call(id: str, arguments: str = "{}", name: str = "look", **fields: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": id, "name": name, "arguments": arguments, **fields}


def output(id: str, output: Any = "seen") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": id, "output": output}


def called(*ids: str, arguments: str = "{}", **fields: Any) -> dict[str, Any]:
    calls = [{"id": id, "type": "function", "function": {"name": "look", "arguments": arguments}} for id in ids]
    return {"role": "assistant", **fields, "tool_calls": calls}


def tool(id: str, content: Any = "seen") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": content}
