"""How often the answer is among the five best chunks, by words alone and with embeddings."""

from __future__ import annotations

from typing import Any

from openai import AsyncOpenAI

from tests.support.file_databases import FileDatabase
from tests.support.serving import antiphon
from tests.tools.files.conftest import openai_client
from tests.tools.files.corpus import SYNONYMS, corpus
from tests.tools.files.embedding_server import EmbeddingServer

CHUNKING: Any = {"type": "static", "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 30}}
BEST = 5


async def fill(client: AsyncOpenAI) -> str:
    entries, _ = corpus()
    store = await client.vector_stores.create(name="gazetteer")
    ids = [
        (await client.files.create(file=(name, text.encode()), purpose="assistants")).id
        for name, text in entries.items()
    ]
    batch = await client.vector_stores.file_batches.create_and_poll(
        store.id, file_ids=ids, chunking_strategy=CHUNKING, poll_interval_ms=50
    )
    assert batch.file_counts.completed == len(entries)
    return store.id


async def recall(client: AsyncOpenAI, store: str, **options: Any) -> float:
    """Return the share of questions answered by the five best chunks."""
    _, questions = corpus()
    hits = 0
    for question in questions:
        page = await client.vector_stores.search(store, query=question.text, max_num_results=BEST, **options)
        hits += any(
            result.filename == question.file and question.answer in result.content[0].text for result in page.data
        )
    return hits / len(questions)


# Measured: 0.98 by words, 0.98 by words and toy embeddings, 0.56 by toy embeddings.
async def test_answer_is_among_the_five_best(database: FileDatabase) -> None:
    async with EmbeddingServer(SYNONYMS) as backend:
        words: dict[str, Any] = {**database.settings}
        both = {**words, "embeddings": {"model": "toy"}}
        async with antiphon(backend_url=backend.url, tools={"file_search": both}) as url, openai_client(url) as client:
            store = await fill(client)
            assert await recall(client, store) >= 0.94
            weights = {"embedding_weight": 1, "text_weight": 0}
            assert await recall(client, store, ranking_options={"hybrid_search": weights}) >= 0.5
        assert backend.requests
        backend.requests.clear()
        async with antiphon(backend_url=backend.url, tools={"file_search": words}) as url, openai_client(url) as client:
            assert await recall(client, store) >= 0.94
        assert not backend.requests


async def test_search_without_embeddings_goes_on_by_words(database: FileDatabase) -> None:
    async with EmbeddingServer(SYNONYMS) as backend:
        table = {**database.settings, "embeddings": {"model": "toy"}}
        async with antiphon(backend_url=backend.url, tools={"file_search": table}) as url, openai_client(url) as client:
            store = await client.vector_stores.create()
            files = [("a.txt", b"The doctor came."), ("b.txt", b"The teacher left.")]
            await client.vector_stores.file_batches.upload_and_poll(store.id, files=files, poll_interval_ms=50)
            best = (await client.vector_stores.search(store.id, query="physician")).data[0]
            assert best.filename == "a.txt"
            backend.refusals = [500] * 9
            page = await client.vector_stores.search(store.id, query="teacher")
            assert [result.filename for result in page.data] == ["b.txt"]
            assert (await client.vector_stores.search(store.id, query="physician")).data == []
