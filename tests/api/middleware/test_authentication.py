"""Pages beside the API can be switched off, or put behind a key."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from tests.support.scripted import Scripted
from tests.support.serving import antiphon, settings

PAGES = ["/metrics", "/docs", "/docs/swagger-ui/swagger-ui.css", "/openapi.json"]
KEY = {"authorization": "Bearer k"}


async def statuses(headers: dict[str, str], **values: Any) -> list[int]:
    async with antiphon(Scripted([]), api_keys="k", **values) as url:
        async with httpx.AsyncClient(base_url=url, headers=headers, trust_env=False) as http:
            return [(await http.get(page)).status_code for page in PAGES]


async def test_pages_by_default_are_open() -> None:
    assert await statuses({}) == [200] * 4


async def test_pages_with_access_key_need_a_key() -> None:
    assert await statuses({}, metrics="key") == [401, 200, 200, 200]
    assert await statuses({}, metrics="key", docs="key") == [401] * 4
    assert await statuses({"authorization": "Bearer other"}, metrics="key", docs="key") == [401] * 4
    assert await statuses(KEY, metrics="key", docs="key") == [200] * 4


async def test_pages_with_access_off_are_not_found() -> None:
    assert await statuses(KEY, metrics="off", docs="off") == [404] * 4
    assert await statuses(KEY, docs="off") == [200, 404, 404, 404]


async def test_pages_switched_off_refuse_a_method_as_ever() -> None:
    async with antiphon(Scripted([]), docs="off") as url, httpx.AsyncClient(base_url=url, trust_env=False) as http:
        refused = await http.put("/v1/responses")
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize(("value", "meant"), [(True, "open"), ("false", "off"), ("0", "off"), ("OFF", "off")])
def test_page_access_as_a_boolean_is_read(value: Any, meant: str) -> None:
    assert settings(metrics=value).metrics == meant


def test_page_with_access_key_and_no_key_is_401() -> None:
    with pytest.raises(ValidationError, match="ANTIPHON_METRICS"):
        settings(metrics="key")


async def test_page_401_says_how_to_send_a_key() -> None:
    async with antiphon(Scripted([]), api_keys="k") as url, httpx.AsyncClient(base_url=url, trust_env=False) as http:
        refused = await http.post("/v1/responses", json={})
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
