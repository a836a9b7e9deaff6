"""The checks against Antiphon itself, which passes them all: over each store and each API, with keys and without."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from app.backends.apis import APIS
from app.backends.demo import DemoBackend
from app.core.request.model_request import EncodedRequest, ModelRequest
from openresponses_verify.checks import ALL_CHECKS
from openresponses_verify.runner import NothingToVerify, VerifyReport, chosen_checks, verify_server
from openresponses_verify.server import ServerAccess
from tests.support.ports import free_port
from tests.support.sockets import listening
from tests.support.store_locations import STORES, StoreLocation, location_of
from tests.verify.model_servers import MODEL_SERVERS

# The demo cannot make two calls at once, rejects no model name, and never takes long.
UNCLEAR = {"tools.parallel", "errors.model", "background.cancel"}
KEYS = ("sk-one", "sk-two")


def others(report: VerifyReport) -> list[str]:
    """Return checks that did not pass and must not be unclear."""
    unclear = {result.check.id for result in report.results if result.verdict == "unclear"}
    return [
        f"{result.check.id}: {result.verdict}: {result.detail}"
        for result in report.results
        if result.verdict != "pass" and result.check.id not in unclear & UNCLEAR
    ]


@pytest.fixture(params=STORES)
def location(request: pytest.FixtureRequest, tmp_path: Path) -> StoreLocation:
    return location_of(request, tmp_path)


async def test_antiphon_over_any_store_passes_every_check_and_stores_nothing_in_the_end(
    location: StoreLocation,
) -> None:
    async with listening(DemoBackend(), api_keys=list(KEYS), store_url=location.url) as url:
        report = await verify_server(ServerAccess(url, key=KEYS[0], second_key=KEYS[1]))
    assert others(report) == []
    assert report.not_deleted == []
    assert len(report.results) == len(ALL_CHECKS)
    assert report.requests <= 320


async def test_antiphon_without_keys_passes_every_check_but_those_of_keys() -> None:
    async with listening(DemoBackend()) as url:
        report = await verify_server(ServerAccess(url))
    unsupported = {result.check.id for result in report.results if result.verdict == "unsupported"}
    assert unsupported == {
        *(check.id for check in ALL_CHECKS if check.group == "isolation"),
        *("errors.no-key", "errors.wrong-key"),
    }
    assert [one for one in others(report) if ": unsupported: " not in one] == []


@pytest.mark.parametrize("api", APIS)
async def test_antiphon_over_any_api_of_model_servers_passes_every_check(api: str) -> None:
    server = MODEL_SERVERS[api]
    async with (
        server.serve() as model_server,
        listening(None, backend_url=model_server, backend_overrides={"transport.api": api}) as url,
    ):
        checks = chosen_checks(skip=["isolation.*", "errors.no-key", "errors.wrong-key"])
        report = await verify_server(ServerAccess(url), checks)
    assert [one for one in others(report) if one.partition(":")[0] not in server.lacks] == []
    assert report.summary["fail"] == 0
    assert report.not_deleted == []


class Chatterbox(DemoBackend):
    """A model without cooperation: no call, no format, no reasoning, always the same text."""

    def encode(self, model_request: ModelRequest) -> EncodedRequest:
        encoded = super().encode(model_request)
        forwarded = ("model", "messages", "max_tokens", "max_completion_tokens")
        body = {name: encoded.body[name] for name in forwarded if name in encoded.body}
        tools = [{"role": "system", "content": str(encoded.body.get("tools", ""))}]  # for its input tokens
        body["messages"] = [*body["messages"], *tools, {"role": "user", "content": "Count from 1 to 30"}]
        return replace(encoded, body=body)


async def test_antiphon_with_uncooperative_model_fails_no_check() -> None:
    async with listening(Chatterbox()) as url:
        report = await verify_server(ServerAccess(url), chosen_checks(skip=["input.file"]))
    assert [one for one in others(report) if ": fail: " in one] == []
    unclear = {result.check.id for result in report.results if result.verdict == "unclear"}
    assert {"tools.call", "tools.custom", "structured.schema", "reasoning.item", "state.remembers"} <= unclear
    assert report.summary["pass"] > 200


async def test_checks_are_chosen_by_their_ids() -> None:
    async with listening(DemoBackend()) as url:
        checks = chosen_checks(["stream.*", "state.fork"], skip=["stream.sequence-*"])
        report = await verify_server(ServerAccess(url), checks)
    ids = {result.check.id for result in report.results}
    assert "state.fork" in ids and "stream.created-first" in ids
    assert not any(id.startswith(("stream.sequence-", "tools.")) for id in ids)
    assert others(report) == []


async def test_server_or_check_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(NothingToVerify, match="connection failed"):
        await verify_server(ServerAccess(f"http://127.0.0.1:{free_port()}", "m"))
    with pytest.raises(NothingToVerify, match=r"'no\.such'"):
        chosen_checks(["stream.*", "no.such"])
    with pytest.raises(NothingToVerify, match="No check"):
        await verify_server(ServerAccess("http://127.0.0.1:1"), [])


def test_ids_are_unique_and_every_row_has_its_sentence_and_its_place() -> None:
    ids = [check.id for check in ALL_CHECKS]
    assert len(set(ids)) == len(ids)
    for check in ALL_CHECKS:
        assert check.title and check.law.endswith((".", ":", "]")) and check.source
