"""Unstorable values are refused with the same error in all stores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.build import delta
from tests.support.scripted import Scripted
from tests.support.serving import antiphon
from tests.support.store_locations import STORES, StoreLocation, location_of

NUL = "a\0b"
HI = {"model": "m", "input": "Hi."}
CHUNKS = {"type": "static", "static": {"max_chunk_size_tokens": 200, "chunk_overlap_tokens": 50}}

# Path, with earlier objects in brackets: bodies, each with the rejected parameter.
REFUSED: dict[str, list[tuple[dict[str, Any], str]]] = {
    "/responses": [
        ({**HI, "metadata": {"a": NUL}}, "metadata.a"),
        ({**HI, "metadata": {NUL: "a"}}, "metadata"),
        ({**HI, "user": NUL}, "user"),
        ({**HI, "safety_identifier": NUL}, "safety_identifier"),
        ({**HI, "prompt_cache_key": NUL}, "prompt_cache_key"),
        ({**HI, "previous_response_id": NUL}, "previous_response_id"),
        ({**HI, "conversation": NUL}, "conversation"),
        ({**HI, "conversation": {"id": NUL}}, "conversation"),
        ({**HI, "prompt": {"id": NUL}}, "prompt.id"),
        ({"model": NUL, "input": "Hi."}, "model"),
    ],
    "/conversations": [({"metadata": {"a": NUL}}, "metadata.a")],
    "/conversations/[conversation]": [({"metadata": {"a": NUL}}, "metadata.a")],
    "/vector_stores": [
        ({"name": NUL}, "name"),
        ({"description": NUL}, "description"),
        ({"metadata": {"a": NUL}}, "metadata.a"),
        ({"file_ids": [NUL]}, "file_ids[0]"),
    ],
    "/vector_stores/[store]": [({"name": NUL}, "name"), ({"metadata": {"a": NUL}}, "metadata.a")],
    "/vector_stores/[store]/files": [
        ({"file_id": NUL}, "file_id"),
        ({"file_id": "[file]", "attributes": {NUL: 1}}, "attributes"),
    ],
    "/vector_stores/[store]/file_batches": [({"file_ids": [NUL]}, "file_ids[0]")],
}
# Path: bodies whose numbers are replaced, in turn, by out-of-range numbers.
NUMBERS: dict[str, list[dict[str, Any]]] = {
    "/responses": [
        {**HI, "max_output_tokens": 100},
        {**HI, "max_tool_calls": 3},
        {**HI, "top_logprobs": 1},
        {**HI, "temperature": 0.5},
        {**HI, "top_p": 0.5},
        {**HI, "presence_penalty": 0.5},
        {**HI, "frequency_penalty": 0.5},
        {**HI, "context_management": [{"type": "compaction", "compact_threshold": 1000}]},
        {**HI, "tools": [{"type": "file_search", "vector_store_ids": ["[store]"], "max_num_results": 5}]},
    ],
    "/responses/input_tokens": [{**HI, "max_output_tokens": 100}],
    "/responses/compact": [{**HI, "max_output_tokens": 100}],
    "/antiphon/translation": [{**HI, "max_output_tokens": 100}],
    "/vector_stores": [{"expires_after": {"anchor": "last_active_at", "days": 3}}, {"chunking_strategy": CHUNKS}],
    "/vector_stores/[store]": [{"expires_after": {"anchor": "last_active_at", "days": 3}}],
    "/vector_stores/[store]/files": [{"file_id": "[file]", "chunking_strategy": CHUNKS}],
    "/vector_stores/[store]/search": [
        {"query": "x", "max_num_results": 5},
        {"query": "x", "ranking_options": {"score_threshold": 0.5}},
    ],
}
BAD_NUMBERS = ["1e308", "-1e308", "9223372036854775808", "123456789012345678901234567890"]
LISTS = {
    "/responses/[response]/input_items": ["after", "before", "limit", "order"],
    "/conversations/[conversation]/items": ["after", "before", "limit", "order"],
    "/files": ["after", "limit", "order", "purpose"],
    "/vector_stores": ["after", "before", "limit", "order"],
    "/vector_stores/[store]/files": ["after", "before", "limit", "order", "filter"],
    "/antiphon/responses": ["after", "limit"],
    "/antiphon/usage": ["from", "to", "key", "model", "group"],
    "/responses/[response]": ["stream", "starting_after"],
}
FOUND = [
    "/responses/{}",
    "/responses/{}/input_items",
    "/conversations/{}",
    "/files/{}",
    "/vector_stores/{}",
    "/models/{}",
]


@pytest.fixture(params=STORES)
def location(request: pytest.FixtureRequest, tmp_path: Path) -> StoreLocation:
    return location_of(request, tmp_path)


async def made(http: httpx.AsyncClient) -> dict[str, str]:
    """Create one object per kind, and return the ids."""
    file = {"file": ("a.txt", b"hello")}
    return {
        "[response]": (await http.post("/responses", json=HI)).json()["id"],
        "[conversation]": (await http.post("/conversations", json={})).json()["id"],
        "[store]": (await http.post("/vector_stores", json={})).json()["id"],
        "[file]": (await http.post("/files", data={"purpose": "user_data"}, files=file)).json()["id"],
    }


def filled(text: str, ids: dict[str, str]) -> str:
    for name, id in ids.items():
        text = text.replace(name, id)
    return text


def numbers(body: Any, path: str = "") -> list[tuple[str, str]]:
    """Return the paths of the numbers in a body, each with the body's JSON where the number is `%s`."""
    if isinstance(body, dict):
        inner = [(f"{path}.{name}" if path else name, value, name) for name, value in body.items()]
        copies = [(where, found, name) for where, value, name in inner for where, found in numbers(value, where)]
        return [
            (where, json.dumps({**body, name: 0}).replace(f'"{name}": 0', f'"{name}": {found}'))
            for where, found, name in copies
        ]
    if isinstance(body, list):
        return [
            (where, f"[{found}]") for n, value in enumerate(body) for where, found in numbers(value, f"{path}[{n}]")
        ]
    return [(path, "%s")] if isinstance(body, int | float) else []


async def test_value_that_one_store_cannot_hold_is_refused_with_all(location: StoreLocation, tmp_path: Path) -> None:
    postgres = location.url.startswith("postgresql:")
    tools = {"file_search": {"store_url": location.url if postgres else f"sqlite:///{tmp_path}/files.db"}}
    async with antiphon(Scripted([delta(content="Hello")]), store_url=location.url, tools=tools) as url:
        async with httpx.AsyncClient(base_url=f"{url}/v1", timeout=60, trust_env=False) as http:
            ids = await made(http)
            for path, bodies in REFUSED.items():
                for body, param in bodies:
                    answer = await http.post(filled(path, ids), content=filled(json.dumps(body), ids))
                    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), (path, body)
            for path, valid in NUMBERS.items():
                for one in valid:
                    for param, template in numbers(one):
                        for number in BAD_NUMBERS:
                            content = filled(template.replace("%s", number), ids)
                            answer = await http.post(filled(path, ids), content=content)
                            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), (
                                path,
                                content,
                            )
            for path, names in LISTS.items():
                for name in names:
                    answer = await http.get(f"{filled(path, ids)}?{name}=a%00b")
                    assert (answer.status_code, answer.json()["error"]["param"]) == (400, name), (path, name)
            for path in FOUND:
                assert (await http.get(path.format("a%00b"))).status_code == 404
            # Half a character is mended, as in texts.
            made_with_half = await http.post(
                "/vector_stores", content=b'{"name": "a\\ud800", "metadata": {"b": "\\udc00"}}'
            )
            assert (made_with_half.json()["name"], made_with_half.json()["metadata"]) == ("a\ufffd", {"b": "\ufffd"})
