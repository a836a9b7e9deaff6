"""Vector stores are made, filled and searched with OpenAI's own client."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from tests.tools.files.conftest import openai_client

SHORT: Any = {"poll_interval_ms": 20}


async def filled(client: AsyncOpenAI, **texts: str) -> str:
    """Make a store of some texts, each a file, and wait until they are read."""
    store = await client.vector_stores.create(name="notes")
    files = [(f"{name}.txt", text.encode()) for name, text in texts.items()]
    batch = await client.vector_stores.file_batches.upload_and_poll(store.id, files=files, **SHORT)
    assert batch.file_counts.completed == len(files)
    return store.id


async def found(client: AsyncOpenAI, store: str, query: str | list[str], **options: Any) -> list[str]:
    page = await client.vector_stores.search(store, query=query, **options)
    return [result.filename.removesuffix(".txt") for result in page.data]


async def test_vector_store_is_created_updated_listed_and_deleted(client: AsyncOpenAI) -> None:
    store = await client.vector_stores.create(
        name="notes", metadata={"team": "a"}, expires_after={"anchor": "last_active_at", "days": 2}
    )
    assert store.id.startswith("vs_")
    assert (store.object, store.name, store.metadata, store.status) == (
        "vector_store",
        "notes",
        {"team": "a"},
        "completed",
    )
    assert store.file_counts.to_dict() == {"in_progress": 0, "completed": 0, "failed": 0, "cancelled": 0, "total": 0}
    assert store.last_active_at is not None
    assert store.expires_at == store.last_active_at + 2 * 86400
    assert await client.vector_stores.retrieve(store.id) == store

    changed = await client.vector_stores.update(store.id, name="plans")
    assert (changed.name, changed.metadata, changed.expires_at) == ("plans", {"team": "a"}, store.expires_at)
    changed = await client.vector_stores.update(store.id, expires_after=None, metadata={})
    assert (changed.name, changed.metadata, changed.expires_at) == ("plans", {}, None)

    other = await client.vector_stores.create()
    assert [one.id async for one in client.vector_stores.list(limit=1)] == [other.id, store.id]
    assert [one.id async for one in client.vector_stores.list(order="asc")] == [store.id, other.id]
    before = await client.vector_stores.list(order="asc", before=other.id)
    assert [one.id for one in before.data] == [store.id]

    deleted = await client.vector_stores.delete(store.id)
    assert (deleted.id, deleted.deleted, deleted.object) == (store.id, True, "vector_store.deleted")
    with pytest.raises(openai.NotFoundError):
        await client.vector_stores.retrieve(store.id)


async def test_vector_stores_are_summed_up_with_what_they_hold(client: AsyncOpenAI) -> None:
    http = client.with_options(timeout=60)
    empty = await client.vector_stores.create(name="secret")
    store = await filled(client, a="Some text.", b="Some more.")
    now: Any = (await http.get("/antiphon/now", cast_to=httpx.Response)).json()
    assert "secret" not in str(now)
    full, other = now["vector_stores"]
    assert (full["id"], full["files"], full["in_progress"], full["failed"]) == (store, 2, 0, 0)
    assert full["bytes"] > 0
    assert (other["id"], other["files"], other["bytes"]) == (empty.id, 0, 0)


async def test_vector_store_file_is_indexed_and_found(client: AsyncOpenAI) -> None:
    store = await client.vector_stores.create()
    text = b"The antiphon is sung as call and response.\n\nBread needs yeast."
    file = await client.vector_stores.files.upload_and_poll(vector_store_id=store.id, file=("a.md", text), **SHORT)
    assert (file.status, file.last_error, file.vector_store_id, file.object) == (
        "completed",
        None,
        store.id,
        "vector_store.file",
    )
    assert file.usage_bytes >= len(text)
    assert file.chunking_strategy and file.chunking_strategy.to_dict() == {
        "type": "static",
        "static": {"max_chunk_size_tokens": 800, "chunk_overlap_tokens": 400},
    }
    (result,) = (await client.vector_stores.search(store.id, query="Who sings a response?")).data
    assert (result.file_id, result.filename, result.attributes) == (file.id, "a.md", {})
    assert result.content[0].text == text.decode()
    assert 0 < result.score < 1
    filled = await client.vector_stores.retrieve(store.id)
    assert (filled.usage_bytes, filled.file_counts.completed, filled.status) == (file.usage_bytes, 1, "completed")
    content = [part.text async for part in client.vector_stores.files.content(file.id, vector_store_id=store.id)]
    assert content == [text.decode()]


async def test_vector_store_may_be_created_with_files(client: AsyncOpenAI) -> None:
    files = [await client.files.create(file=(f"{n}.txt", b"some text"), purpose="assistants") for n in range(2)]
    chunking: Any = {"type": "static", "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 20}}
    store = await client.vector_stores.create(file_ids=[file.id for file in files], chunking_strategy=chunking)
    assert (store.status, store.file_counts.in_progress, store.file_counts.total) == ("in_progress", 2, 2)
    for file in files:
        read = await client.vector_stores.files.poll(file.id, vector_store_id=store.id, **SHORT)
        assert read.status == "completed"
        assert read.chunking_strategy and read.chunking_strategy.to_dict() == chunking
    assert (await client.vector_stores.retrieve(store.id)).status == "completed"


async def test_vector_store_with_a_missing_file_is_not_created(client: AsyncOpenAI) -> None:
    file = await client.files.create(file=("a.txt", b"some text"), purpose="assistants")
    with pytest.raises(openai.NotFoundError) as refused:
        await client.vector_stores.create(file_ids=[file.id, "file-none"])
    assert refused.value.param == "file_ids[1]"
    assert [store async for store in client.vector_stores.list()] == []


async def test_file_batch_has_counts_and_files(client: AsyncOpenAI) -> None:
    store = await client.vector_stores.create()
    good = await client.files.create(file=("a.txt", b"some text"), purpose="assistants")
    bad = await client.files.create(file=("b.pdf", b"no pdf at all"), purpose="assistants")
    batch = await client.vector_stores.file_batches.create_and_poll(
        store.id,
        files=[{"file_id": good.id, "attributes": {"year": 2024}}, {"file_id": bad.id}],
        **SHORT,
    )
    assert (batch.object, batch.status, batch.vector_store_id) == ("vector_store.files_batch", "completed", store.id)
    assert batch.file_counts.to_dict() == {"in_progress": 0, "completed": 1, "failed": 1, "cancelled": 0, "total": 2}
    listed = client.vector_stores.file_batches.list_files
    assert {file.id async for file in listed(batch.id, vector_store_id=store.id)} == {good.id, bad.id}
    (failed,) = [file async for file in listed(batch.id, vector_store_id=store.id, filter="failed")]
    assert failed.last_error and failed.last_error.code == "invalid_file"
    (read,) = [file async for file in client.vector_stores.files.list(store.id, filter="completed")]
    assert (read.id, read.attributes) == (good.id, {"year": 2024})
    assert (await client.vector_stores.file_batches.retrieve(batch.id, vector_store_id=store.id)) == batch


async def test_file_batch_is_cancelled(client: AsyncOpenAI) -> None:
    store = await client.vector_stores.create()
    text = b"some words\n" * 20_000
    files = [await client.files.create(file=(f"{n}.txt", text), purpose="assistants") for n in range(6)]
    batch = await client.vector_stores.file_batches.create(store.id, file_ids=[file.id for file in files])
    cancelled = await client.vector_stores.file_batches.cancel(batch.id, vector_store_id=store.id)
    assert cancelled.status == "cancelled"
    assert cancelled.file_counts.cancelled + cancelled.file_counts.completed == 6
    counts = cancelled.file_counts
    assert (await client.vector_stores.file_batches.retrieve(batch.id, vector_store_id=store.id)).file_counts == counts


async def test_file_removed_from_a_store_stays_a_file(client: AsyncOpenAI) -> None:
    store = await filled(client, bread="Bread needs yeast.", songs="Songs need singers.")
    (file,) = [file for file in (await client.files.list()).data if file.filename == "bread.txt"]
    assert await found(client, store, "yeast") == ["bread"]
    deleted = await client.vector_stores.files.delete(file.id, vector_store_id=store)
    assert (deleted.id, deleted.object, deleted.deleted) == (file.id, "vector_store.file.deleted", True)
    assert await found(client, store, "yeast") == []
    assert (await client.files.content(file.id)).content == b"Bread needs yeast."
    with pytest.raises(openai.NotFoundError):
        await client.vector_stores.files.retrieve(file.id, vector_store_id=store)


async def test_file_that_is_deleted_is_gone_from_its_stores(client: AsyncOpenAI) -> None:
    store = await filled(client, bread="Bread needs yeast.", songs="Songs need singers.")
    (file,) = [file for file in (await client.files.list()).data if file.filename == "bread.txt"]
    await client.files.delete(file.id)
    assert await found(client, store, "yeast") == []
    assert (await client.vector_stores.retrieve(store)).file_counts.total == 1


async def test_file_that_is_added_again_is_indexed_anew(client: AsyncOpenAI) -> None:
    store = await filled(client, bread="Bread needs yeast. " * 60)
    (file,) = (await client.files.list()).data
    chunking: Any = {"type": "static", "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 0}}
    await client.vector_stores.files.create_and_poll(
        file.id, vector_store_id=store, chunking_strategy=chunking, attributes={"kind": "food"}, **SHORT
    )
    page = await client.vector_stores.search(store, query="yeast")
    assert len(page.data) > 1
    assert {json.dumps(result.attributes) for result in page.data} == {'{"kind": "food"}'}
    assert (await client.vector_stores.retrieve(store)).file_counts.total == 1


FILTERS: list[tuple[Any, set[str]]] = [
    ({"type": "eq", "key": "year", "value": 2023}, {"b"}),
    ({"type": "ne", "key": "year", "value": 2023}, {"a", "c", "d"}),
    ({"type": "gt", "key": "year", "value": 2022}, {"b", "c"}),
    ({"type": "gte", "key": "year", "value": 2023}, {"b", "c"}),
    ({"type": "lt", "key": "year", "value": 2023}, {"a"}),
    ({"type": "lte", "key": "year", "value": 2023}, {"a", "b"}),
    ({"type": "in", "key": "region", "value": ["eu", "us"]}, {"a", "b"}),
    ({"type": "nin", "key": "region", "value": ["eu"]}, {"b", "c", "d"}),
    ({"type": "eq", "key": "final", "value": True}, {"a"}),
    ({"type": "eq", "key": "year", "value": True}, set()),
    ({"type": "gt", "key": "region", "value": "eu"}, {"b"}),
    ({"type": "gt", "key": "region", "value": 1}, set()),
    (
        {
            "type": "or",
            "filters": [
                {"type": "eq", "key": "region", "value": "us"},
                {
                    "type": "and",
                    "filters": [
                        {"type": "gt", "key": "year", "value": 2000},
                        {"type": "eq", "key": "final", "value": True},
                    ],
                },
            ],
        },
        {"a", "b"},
    ),
]


async def test_files_are_filtered_by_their_attributes(client: AsyncOpenAI) -> None:
    attributes: dict[str, Any] = {
        "a": {"year": 2022, "region": "eu", "final": True},
        "b": {"year": 2023, "region": "us", "final": False},
        "c": {"year": 2024.5},
        "d": None,
    }
    store = await client.vector_stores.create()
    entries = []
    for name, given in attributes.items():
        file = await client.files.create(file=(f"{name}.txt", b"the same words"), purpose="assistants")
        entries.append({"file_id": file.id, "attributes": given})
    await client.vector_stores.file_batches.create_and_poll(store.id, files=entries, **SHORT)  # type: ignore[arg-type]
    for filters, expected in FILTERS:
        assert {*await found(client, store.id, "words", filters=filters)} == expected, filters
    changed = await client.vector_stores.files.update(
        entries[3]["file_id"], vector_store_id=store.id, attributes={"year": 2023}
    )
    assert changed.attributes == {"year": 2023}
    assert {*await found(client, store.id, "words", filters=FILTERS[0][0])} == {"b", "d"}


async def test_search_results_are_best_first_without_bad_ones(client: AsyncOpenAI) -> None:
    store = await filled(
        client,
        both="Sourdough bread needs a starter of flour and water.",
        one="Bread is sold in the morning.",
        none="Choirs sing psalms.",
    )
    page = await client.vector_stores.search(store, query="How is sourdough bread made?")
    assert [result.filename for result in page.data] == ["both.txt", "one.txt"]
    assert page.data[0].score > page.data[1].score > 0
    options: Any = {"score_threshold": (page.data[0].score + page.data[1].score) / 2}
    assert await found(client, store, "How is sourdough bread made?", ranking_options=options) == ["both"]
    assert await found(client, store, "bread", max_num_results=1) == ["one"]
    assert {*await found(client, store, ["starter", "psalms"])} == {"both", "none"}
    assert await found(client, store, "quantum") == []
    raw = await client.vector_stores.with_raw_response.search(store, query=["a", "b"])
    assert raw.http_response.json()["search_query"] == ["a", "b"]


async def test_search_query_operators_are_escaped(client: AsyncOpenAI) -> None:
    store = await filled(client, a="Bread is sold.", b="Choirs sing.")
    alone = ['"', "'", "*", "-", "()", "%", ":", "\0"]
    around = ['"bread', "bread'", "bread AND", "NOT bread", "NEAR(bread", "bread*", "text:bread", "-bread", "(bread"]
    queries = [*alone, *around, "%bread%", "bread\0", "bread -choirs"]
    expected = {query: [] if query in alone else ["a"] for query in queries} | {"bread -choirs": ["a", "b"]}
    assert {query: sorted(await found(client, store, query)) for query in queries} == expected


WORDS = [
    ("東京は日本の首都です。", "日本の首都"),
    ("대한민국의 수도는 서울이다.", "수도는"),
    ("Crème brûlée is a dessert.", "creme brulee"),
    ("def get_user_name(self): return self.userName", "user name"),
    ("class HTTPServerError(Exception): ...", "server error"),
    ("She was running to the houses.", "run house"),
    ("राजधानी दिल्ली है", "दिल्ली"),
]


async def test_search_finds_words_of_many_kinds(client: AsyncOpenAI) -> None:
    first = {}
    for text, query in WORDS:
        store = await filled(client, this=text, other="Nothing of that kind stands here.")
        first[query] = (await found(client, store, query))[:1]
    assert first == {query: ["this"] for _, query in WORDS}


INVALID: list[tuple[str, dict[str, Any], str | None]] = [
    ("", {"expires_after": {"days": 0}}, "expires_after.days"),
    ("", {"metadata": {"a": 1}}, "metadata.a"),
    (
        "",
        {"chunking_strategy": {"type": "static", "static": {"max_chunk_size_tokens": 5}}},
        "chunking_strategy.static.max_chunk_size_tokens",
    ),
    (
        "",
        {"chunking_strategy": {"type": "static", "static": {"max_chunk_size_tokens": 100}}},
        "chunking_strategy.static",
    ),
    ("/{id}", {"expires_after": {"days": "x"}}, "expires_after.days"),
    ("/{id}/files", {}, "file_id"),
    ("/{id}/files", {"file_id": "file-none"}, "file_id"),
    ("/{id}/files", {"file_id": "f", "attributes": {"a": [1]}}, "attributes.a"),
    ("/{id}/file_batches", {}, None),
    ("/{id}/file_batches", {"file_ids": ["file-none"]}, "file_ids[0]"),
    ("/{id}/file_batches", {"files": [{"file_id": "file-none"}]}, "files[0].file_id"),
    ("/{id}/search", {}, "query"),
    ("/{id}/search", {"query": ""}, "query"),
    ("/{id}/search", {"query": "a", "max_num_results": 51}, "max_num_results"),
    ("/{id}/search", {"query": "a", "filters": {"type": "like", "key": "a", "value": "b"}}, "filters.type"),
    (
        "/{id}/search",
        {"query": "a", "filters": {"type": "and", "filters": [{"type": "eq"}]}},
        "filters.filters[0].key",
    ),
    ("/{id}/search", {"query": "a", "ranking_options": {"score_threshold": 2}}, "ranking_options.score_threshold"),
]


async def test_vector_store_field_that_is_invalid_is_named(client: AsyncOpenAI, http: httpx.AsyncClient) -> None:
    store = await client.vector_stores.create()
    for path, body, param in INVALID:
        answer = await http.post(f"/vector_stores{path.format(id=store.id)}", json=body)
        assert answer.status_code in (400, 404), (path, body)
        error = answer.json()["error"]
        assert (error["param"] or "").startswith(param or ""), (path, body, error)
        assert bool(error["param"]) is bool(param), (path, body, error)


async def test_vector_store_of_another_owner_is_not_found(server: str, client: AsyncOpenAI) -> None:
    store = await filled(client, bread="Bread needs yeast.")
    (file,) = (await client.files.list()).data
    async with openai_client(server, "bob") as bob:
        with pytest.raises(openai.NotFoundError):
            await bob.vector_stores.search(store, query="yeast")
        own = await bob.vector_stores.create()
        with pytest.raises(openai.NotFoundError):
            await bob.vector_stores.files.create(file_id=file.id, vector_store_id=own.id)
        with pytest.raises(openai.NotFoundError):
            await bob.vector_stores.create(file_ids=[file.id])
        assert [one.id async for one in bob.vector_stores.list()] == [own.id]
