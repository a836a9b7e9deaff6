"""Unknown parameters at endpoints other than `/responses`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.scripted import Scripted
from tests.support.serving import antiphon

UPLOAD = {"bytes": 3, "filename": "a", "mime_type": "text/plain", "purpose": "user_data"}

# A path, a body with a misspelt name, and the right name.
MISTAKEN: list[tuple[str, dict[str, Any], str, str]] = [
    (
        "/vector_stores/{id}/search",
        {"query": "a", "filter": {"type": "eq", "key": "a", "value": 1}},
        "filter",
        "filters",
    ),
    (
        "/vector_stores/{id}/search",
        {"query": "a", "ranking_options": {"score_treshold": 0.9}},
        "ranking_options.score_treshold",
        "score_threshold",
    ),
    ("/vector_stores/{id}/search", {"query": "a", "max_results": 3}, "max_results", "max_num_results"),
    ("/vector_stores", {"expire_after": {"anchor": "last_active_at", "days": 1}}, "expire_after", "expires_after"),
    ("/vector_stores/{id}", {"meta_data": {"a": "b"}}, "meta_data", "metadata"),
    ("/vector_stores/{id}/file_batches", {"file_ids": ["file-1"], "atributes": {"a": 1}}, "atributes", "attributes"),
    ("/conversations", {"item": []}, "item", "items"),
    ("/uploads", {**UPLOAD, "expire_after": {"seconds": 3600}}, "expire_after", "expires_after"),
]


@pytest.mark.parametrize(("path", "body", "param", "known"), MISTAKEN)
async def test_name_much_like_a_known_one_is_refused(
    path: str, body: dict[str, Any], param: str, known: str, tmp_path: Path
) -> None:
    if path == "/conversations":
        body = {"item": [{"role": "user", "content": "Hi."}]}
    tools = {"file_search": {"store_url": f"sqlite:///{tmp_path}/files.db"}}
    async with antiphon(Scripted(), tools=tools) as url, httpx.AsyncClient(base_url=f"{url}/v1") as http:
        store = (await http.post("/vector_stores", json={})).json()["id"]
        answer = await http.post(path.format(id=store), json=body)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (400, "unknown_parameter", param)
        assert error["message"] == f"Unknown parameter: '{param}'. Did you mean '{known}'?"


@pytest.mark.parametrize("strict", [False, True])
async def test_another_name_is_named_in_a_warning_or_refused_if_strict(strict: bool, tmp_path: Path) -> None:
    tools = {"file_search": {"store_url": f"sqlite:///{tmp_path}/files.db"}}
    async with antiphon(Scripted(), tools=tools, strict=strict) as url, httpx.AsyncClient(base_url=f"{url}/v1") as http:
        form = {"purpose": "user_data", "colour": "blue"}
        for answer in (
            await http.post("/vector_stores", json={"colour": "blue"}),
            await http.post("/conversations", json={"colour": "blue"}),
            await http.post("/files", data=form, files={"file": ("a", b"a")}),
        ):
            if strict:
                error = answer.json()["error"]
                assert (answer.status_code, error["code"], error["param"]) == (400, "unknown_parameter", "colour")
            else:
                assert answer.status_code == 200
                expected = "The unknown parameter 'colour' was ignored."
                assert answer.headers["x-antiphon-warning"] == expected
        empty = await http.post("/vector_stores", json={"colour": None})
        assert empty.status_code == 200
        assert "x-antiphon-warning" not in empty.headers


async def test_mistaken_field_of_a_form_is_refused(tmp_path: Path) -> None:
    tools = {"file_search": {"store_url": f"sqlite:///{tmp_path}/files.db"}}
    async with antiphon(Scripted(), tools=tools) as url, httpx.AsyncClient(base_url=f"{url}/v1") as http:
        form = {"purpose": "user_data", "expire_after[seconds]": "3600"}
        answer = await http.post("/files", data=form, files={"file": ("a", b"a")})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unknown_parameter")
        assert "'expires_after[seconds]'" in answer.json()["error"]["message"]
        assert (await http.get("/files")).json()["data"] == []
