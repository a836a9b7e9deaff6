"""What `/docs` shows of the request body: its schema, and examples to try as they are."""

from __future__ import annotations

from typing import Any

from app.core.schema import CreateResponse

_WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "parameters": {
        "type": "object",
        "properties": {"location": {"type": "string", "description": "The city, e.g. Paris"}},
        "required": ["location"],
    },
}
_EXAMPLES = {
    "text": {"model": "demo", "input": "Say hello."},
    "streamed": {"model": "demo", "input": "Count from 1 to 5.", "stream": True},
    "a tool": {"model": "demo", "input": "What is the weather in Paris?", "tools": [_WEATHER]},
    "continued": {"model": "demo", "input": "And in Tokyo?", "previous_response_id": "resp_..."},
}


def _body(model: Any, examples: dict[str, Any]) -> dict[str, Any]:
    content = {
        "schema": model.model_json_schema(),
        "examples": {name: {"summary": name, "value": value} for name, value in examples.items()},
    }
    return {"requestBody": {"required": True, "content": {"application/json": content}}}


CREATE = _body(CreateResponse, _EXAMPLES)
