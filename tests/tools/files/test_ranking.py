"""
Search quality in each database, with the gazetteer and a public question set.

Searches are deterministic. Measured by keywords: gazetteer MRR@10 0.702, nDCG@10 0.766; FAQ 0.506, 0.557. By keywords
and embeddings: gazetteer 0.766, 0.796.
"""

from __future__ import annotations

import gzip
import json
import math
from array import array
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from app.tools.files.parsing import chunks
from app.tools.files.records import FileStore
from app.tools.files.vector_stores.ranking import RankingOptions, rank
from app.tools.files.vector_stores.records import Candidate, EmbeddedText, NewStoreFile, VectorStore
from tests.support.file_databases import FileDatabase
from tests.tools.files.conftest import add_file, claim_next
from tests.tools.files.corpus import SYNONYMS, corpus
from tests.tools.files.embedding_server import EmbeddingServer

# "Swedish Construction FAQ by Zaragoza AB, CC BY 4.0", English edition: 503 questions and answers.
FAQ = Path(__file__).with_name("data") / "construction_faq.json.gz"
STORE = VectorStore("vs_1", "ada", "", None, None, None, 0, 0)
MODEL = "toy"
RESULTS = 10
CANDIDATES = 50

pytestmark = pytest.mark.parametrize("database", ["sqlite", "postgres"], indirect=True)


class Quality(NamedTuple):
    """Means over all questions: first answer's reciprocal rank, and normalized discounted cumulative gain."""

    mrr: float
    ndcg: float


class Judged(NamedTuple):
    """A question, a predicate for correct results, and how many correct chunks the store contains."""

    text: str
    is_answer: Callable[[Candidate], bool]
    answers: int


@pytest.fixture
async def store(database: FileDatabase) -> AsyncIterator[FileStore]:
    store = database.open()
    await store.vector_stores.create(STORE)
    yield store
    await store.aclose()


async def add(store: FileStore, name: str, texts: list[EmbeddedText]) -> None:
    await add_file(store, name, name=name)
    await store.vector_stores.add(STORE, [NewStoreFile(name)])
    assert await store.vector_stores.complete(await claim_next(store), texts)


async def measure(store: FileStore, questions: list[Judged], vector: Callable[[str], bytes] | None = None) -> Quality:
    """Search for every question, with embeddings if `vector` is given."""
    reciprocal_ranks, gains = 0.0, 0.0
    for question in questions:
        query = EmbeddedText(question.text, vector(question.text), MODEL) if vector else EmbeddedText(question.text)
        results = rank(await store.vector_stores.search(STORE, query, CANDIDATES), RankingOptions(), RESULTS)
        ranks = [number for number, result in enumerate(results, 1) if question.is_answer(result)]
        ideal = sum(1 / math.log2(number + 1) for number in range(1, min(question.answers, RESULTS) + 1))
        reciprocal_ranks += 1 / ranks[0] if ranks else 0
        gains += sum(1 / math.log2(number + 1) for number in ranks) / ideal
    return Quality(reciprocal_ranks / len(questions), gains / len(questions))


async def test_gazetteer_answers_rank_as_high_as_measured(store: FileStore) -> None:
    toy = EmbeddingServer(SYNONYMS)

    def vector(text: str) -> bytes:
        return array("f", toy.vector(text)).tobytes()

    entries, corpus_questions = corpus()
    texts = {name: [*chunks(text, max_tokens=100, overlap=30)] for name, text in entries.items()}
    for name, parts in texts.items():
        await add(store, name, [EmbeddedText(part, vector(part), MODEL) for part in parts])
    questions = [
        Judged(
            question.text,
            lambda found, at=question: found.file.id == at.file and at.answer in found.text,
            sum(question.answer in part for part in texts[question.file]),
        )
        for question in corpus_questions
    ]
    assert all(question.answers for question in questions)
    by_words = await measure(store, questions)
    assert by_words.mrr >= 0.70
    assert by_words.ndcg >= 0.76
    both = await measure(store, questions, vector)
    assert both.mrr >= 0.76
    assert both.ndcg >= 0.79


async def test_public_faq_answers_rank_as_high_as_measured(store: FileStore) -> None:
    pairs = json.loads(gzip.decompress(FAQ.read_bytes()))["questions"]
    assert len(pairs) == 503
    await add(store, "faq", [EmbeddedText(answer) for _, answer in pairs])
    quality = await measure(
        store, [Judged(text, lambda found, at=answer: found.text == at, 1) for text, answer in pairs]
    )
    assert quality.mrr >= 0.505
    assert quality.ndcg >= 0.557
