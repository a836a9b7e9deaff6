"""
Golden files with each profile's request for one rich input, to show the effect of a changed preset.

`UPDATE_STREAMS=1 pytest tests/backends/profiles/test_profile_requests.py` writes them again.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from app.backends.apis import encode, profiles_by_api
from app.backends.profiles import load_profile, profile_names
from app.core.request.model_request import ModelRequest
from app.core.types.request import CreateResponse
from app.errors import InvalidRequest

PLACE = Path(__file__).parent / "requests"
PNG = "data:image/png;base64,iVBORw0KGgo="
LOCATION = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {"location": {"type": "string"}},
    "required": ["location"],
    "additionalProperties": False,
}
TOOLS = [
    {
        "type": "function",
        "name": "get_weather",
        "description": "The weather.",
        "parameters": LOCATION,
        "strict": True,
    },
    {"type": "function", "name": "get_time", "description": None, "parameters": None, "strict": None},
]
PERSON = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def call(id: str, item: str, name: str, arguments: str) -> dict[str, Any]:
    return {"type": "function_call", "id": item, "call_id": id, "name": name, "arguments": arguments}


INPUT = [
    {"role": "developer", "content": "Answer in English."},
    {"role": "user", "content": "What is this, and what is 2+2?"},
    {"role": "user", "content": [{"type": "input_image", "image_url": PNG}]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Easy."}]},
    {"role": "assistant", "content": [{"type": "output_text", "text": "A picture, and 4."}]},
    {"role": "system", "content": "The user is in Paris."},
    {"role": "user", "content": [{"type": "input_text", "text": "How is the weather?"}]},
    {"type": "reasoning", "id": "rs_2", "summary": [{"type": "summary_text", "text": "I should look."}]},
    call("call_1", "fc_1", "get_weather", '{"location": "Paris"}'),
    call("call_2", "fc_2", "get_time", ""),
    {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_image", "image_url": PNG}]},
    {"type": "function_call_output", "call_id": "call_2", "output": "Noon."},
    {"role": "user", "content": "So?"},
]
# The backend's own earlier output, here for any backend.
SIGNED = {"type": "reasoning.text", "text": "I should look.", "signature": "c2ln", "index": 0}
UPSTREAM: dict[str, dict[str, Any]] = {
    "rs_2": {"reasoning_content": "I should look.", "reasoning_details": [SIGNED]},
    "fc_1": {"extra_content": {"google": {"thought_signature": "c2ln"}}},
}
REQUEST: dict[str, Any] = {
    "model": "m",
    "instructions": "Be kind.",
    "input": INPUT,
    "tools": TOOLS,
    "parallel_tool_calls": False,
    "max_output_tokens": 100,
    "temperature": 1.5,
    "top_p": 0.9,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "top_logprobs": 2,
    "reasoning": {"effort": "high"},
    "metadata": {"a": "b"},
    "user": "u-1",
    "service_tier": "flex",
    "prompt_cache_key": "k-1",
    "text": {"verbosity": "low"},
    "seed": 7,
    "stop": ["END"],
    "logit_bias": {"1": 1},
}
NAMED = {"type": "function", "name": "get_weather"}
# Other requests. Only the changed fields are recorded.
VARIANTS: dict[str, dict[str, Any]] = {
    **{f"tool_choice {mode}": {"tools": TOOLS, "tool_choice": mode} for mode in ("none", "required")},
    "tool_choice named": {"tools": TOOLS, "tool_choice": NAMED},
    "tool_choice allowed": {
        "tools": TOOLS,
        "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [NAMED]},
    },
    "json_schema": {"text": {"format": {"type": "json_schema", "name": "person", "schema": PERSON, "strict": True}}},
    "json_object": {"text": {"format": {"type": "json_object"}}},
    **{f"effort {effort}": {"reasoning": {"effort": effort}} for effort in ("none", "minimal", "medium", "xhigh")},
}


# File name: profile. Profiles with several APIs have a file per API.
PROFILES = {
    name if len(profiles_by_api(load_profile(name))) == 1 else f"{name}-{profile.transport.api}": profile
    for name in profile_names()
    for profile in profiles_by_api(load_profile(name))
}


def encoded_request(name: str, request: dict[str, Any]) -> dict[str, Any]:
    made = CreateResponse.model_validate(request)
    try:
        chat = encode(ModelRequest(made, made.items(), "m", upstream=UPSTREAM), PROFILES[name])
    except InvalidRequest as error:
        return {"refused": error.message, "param": error.param}
    allowed = None if chat.allowed is None else sorted(chat.allowed)
    return {"body": chat.body, "allowed": allowed, "warnings": list(chat.warnings)}


def all_asked(name: str) -> dict[str, Any]:
    plain = encoded_request(name, {"model": "m", "input": "Hi"})["body"]
    variants = {}
    for variant, fields in VARIANTS.items():
        made = encoded_request(name, {"model": "m", "input": "Hi", **fields})
        changed = {field: value for field, value in made["body"].items() if value != plain.get(field)}
        if "tools" in changed:
            functions = (tool.get("functionDeclarations", [tool.get("function", tool)]) for tool in changed["tools"])
            changed["tools"] = [function["name"] for listed in functions for function in listed]
        variants[variant] = {**made, "body": changed}
    rich = {"rich": encoded_request(name, REQUEST)}
    if "refused" in rich["rich"]:
        rich["rich, without images"] = encoded_request(
            name, {**REQUEST, "input": [one for one in INPUT if PNG not in str(one)]}
        )
    return {**rich, **variants}


def written(value: Any, depth: int = 0) -> str:
    """JSON with a message, a tool or a small object in each line."""
    if depth == 4 or not value or not isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    inner = (
        [f"{json.dumps(name)}: {written(one, depth + 1)}" for name, one in value.items()]
        if isinstance(value, dict)
        else [written(one, depth + 1) for one in value]
    )
    indent, (left, right) = "  " * depth, "{}" if isinstance(value, dict) else "[]"
    return f"{left}\n{indent}  " + f",\n{indent}  ".join(inner) + f"\n{indent}{right}"


@pytest.mark.parametrize("name", PROFILES)
def test_profile_request_is_the_golden_one(name: str) -> None:
    golden, made = PLACE / f"{name}.json", all_asked(name)
    if os.environ.get("UPDATE_STREAMS"):
        golden.write_text(written(made) + "\n", encoding="utf-8")
    assert json.loads(golden.read_text(encoding="utf-8")) == made


def test_golden_files_have_profiles() -> None:
    assert {path.stem for path in PLACE.glob("*.json")} == {*PROFILES}
