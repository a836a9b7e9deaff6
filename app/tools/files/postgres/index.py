"""
Chunks and searches in PostgreSQL.

Keywords are ranked by BM25, as in SQLite. `ts_rank_cd` and `ts_rank` lack inverse document frequencies: MRR@10 on a
public FAQ is 0.38 and 0.45, at best, instead of 0.51.

A chunk's terms are indexed as 64-bit hashes of vector store, term and frequency. Because hashes include the store, a
search reads only its own store's entries in the shared index. Because they include the frequency, BM25 needs no access
to a chunk's terms. SQLite's FTS5 tokenizer stems the terms, so that both databases find the same chunks.

Embeddings are ranked by exact cosine similarity (`pgvector`). HNSW indexes need a fixed number of dimensions, and
search the vectors of all vector stores before filtering.
"""

from __future__ import annotations

import array
import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import apsw

from app.storage.tables import Connection
from app.tools.files import FilesUnavailable
from app.tools.files.postgres.schema import NoVectorsError, PostgresDatabase, storable
from app.tools.files.vector_stores.ranking import K1, LENGTH_WEIGHT, highest_score, indexed_terms, terms, weight
from app.tools.files.vector_stores.records import Job, Query, TextChunk
from app.tools.files.vector_stores.sql import FoundChunk

T = TypeVar("T")

CHUNKS_AT_ONCE = 64  # per transaction; short, so that claim renewals do not wait for long

# Other frequencies are rounded to these, which changes BM25 by a few percent at most.
FREQUENCIES = (1, 2, 3, 4, 5, 6, 8, 10, 14, 24)

# Occurrences read per search, rarest terms first. Without this limit, terms in nearly every one of 100,000 chunks take
# 440 ms instead of 80 ms; only English stop words are removed from queries.
MAX_POSTINGS = 20_000

# A locked row prevents other processes from claiming or removing the file.
_CLAIMED = """
SELECT 1 FROM antiphon_store_files WHERE number = $1 AND claim = $2 AND status = 'in_progress' FOR SHARE
"""
_INSERT = """
INSERT INTO antiphon_chunks (file, number, length, terms, text)
SELECT $1, number, length, terms::bigint[], text
FROM unnest($2::integer[], $3::integer[], $4::text[], $5::text[]) AS chunks (number, length, terms, text)
"""
_INSERT_VECTORS = """
INSERT INTO antiphon_vectors (file, number, vector)
SELECT $1, number, vector::vector FROM unnest($2::integer[], $3::text[]) AS vectors (number, vector)
"""
_ERASE = """
DELETE FROM antiphon_chunks WHERE (file, number) IN (
    SELECT file, number FROM antiphon_chunks WHERE file = $1 LIMIT 500
) RETURNING 1
"""
_TOTALS = """
SELECT coalesce(sum(chunks), 0)::bigint, coalesce(sum(words), 0)::bigint FROM antiphon_store_files
WHERE store = $1 AND status = 'completed'
"""
_COUNT = "SELECT antiphon_count_terms($1, $2, $3)"
_BEST = "SELECT file, number, score FROM antiphon_best_by_terms($1, $2, $3, $4, $5, $6, $7, $8, $9)"
# The sub-select parses the query vector once, not for every row: 0.2 s instead of 9 s for 100,000 chunks.
NEAREST = """
SELECT vectors.file, vectors.number, vector <=> (SELECT $1::text::vector) AS distance
FROM antiphon_store_files AS files JOIN antiphon_vectors AS vectors ON vectors.file = files.number
WHERE store = $2 AND status = 'completed' AND embeddings = $3
AND ($4::bigint[] IS NULL OR vectors.file = ANY ($4::bigint[]))
ORDER BY distance LIMIT $5
"""
_SIMILARITIES = """
SELECT file, vectors.number, vector <=> (SELECT $1::text::vector)
FROM unnest($2::bigint[], $3::integer[]) AS wanted (file, number)
JOIN antiphon_vectors AS vectors USING (file, number) JOIN antiphon_store_files AS files ON files.number = file
WHERE embeddings = $4
"""
_TEXTS = """
SELECT file, number, text FROM unnest($1::bigint[], $2::integer[]) AS wanted (file, number)
JOIN antiphon_chunks USING (file, number)
"""


class ChunkKey(NamedTuple):
    """`file` is a row in antiphon_store_files, `number` the chunk's position in the file."""

    file: int
    number: int


class Stored(NamedTuple):
    chunks: int = 0
    words: int = 0
    bytes: int = 0
    embeddings: str | None = None  # model and number of dimensions


class _Rows(NamedTuple):
    lengths: list[int]
    terms: list[str]
    texts: list[str]
    vectors: list[str]
    bytes: int
    dimensions: int


class PostgresIndex:
    def __init__(self, database: PostgresDatabase) -> None:
        self._db = database

    async def insert(self, job: Job, chunks: Iterable[TextChunk], model: str) -> Stored | None:
        """
        Store a claimed file's chunks, not searchable yet; return None once the claim is lost.

        First deletes chunks from earlier attempts.
        """
        while erased := await self._claimed(job, lambda connection: connection.fetch(_ERASE, job.row)):
            pass
        if erased is None:
            return None
        stored = Stored()
        remaining = iter(chunks)
        while True:
            try:
                rows = await asyncio.to_thread(_next_rows, job.store_id, remaining)
            except OSError:
                raise FilesUnavailable from None
            if rows is None:
                return stored
            if rows.vectors:
                await self._prepare_vectors()
            if not await self._insert(job, stored.chunks, rows):
                return None
            stored = Stored(
                stored.chunks + len(rows.texts),
                stored.words + sum(rows.lengths),
                stored.bytes + rows.bytes,
                f"{model} {rows.dimensions}" if rows.vectors else stored.embeddings,
            )

    async def _claimed(self, job: Job, work: Callable[[Connection], Awaitable[T]]) -> T | None:
        """Run `work` in a transaction while a file is claimed; return None if the claim was lost."""

        async def locked(connection: Connection) -> T | None:
            claimed = await connection.fetch(_CLAIMED, job.row, job.claim)
            return await work(connection) if claimed else None

        return await self._db.transaction(locked)

    async def _insert(self, job: Job, first: int, rows: _Rows) -> bool:
        """Return False if the claim was lost. Chunks are numbered from `first`."""
        numbers = [*range(first, first + len(rows.texts))]

        async def insert(connection: Connection) -> bool:
            await connection.execute(_INSERT, job.row, numbers, rows.lengths, rows.terms, rows.texts)
            if rows.vectors:
                await connection.execute(_INSERT_VECTORS, job.row, numbers, rows.vectors)
            return True

        return await self._claimed(job, insert) is not None

    async def text(self, file: int) -> list[str]:
        rows = await self._db.fetch(
            "SELECT text FROM antiphon_chunks WHERE file = $1 ORDER BY number", file, idempotent=True
        )
        return [text for (text,) in rows]

    async def search(
        self, store: str, search_query: Query, limit: int, files: Sequence[int] | None
    ) -> list[FoundChunk]:
        scores, similarities = await asyncio.gather(
            self._by_words(store, search_query.text, limit, files),
            self._by_vector(store, search_query, limit, files),
        )
        keys = [*dict.fromkeys([*scores, *similarities])]
        if similarities:
            # Chunks found only by keywords need their similarity too.
            others = [key for key in keys if key not in similarities]
            similarities |= await self._similarities(search_query, others)
        rows = await self._db.fetch(_TEXTS, [key.file for key in keys], [key.number for key in keys], idempotent=True)
        texts = {ChunkKey(file, number): text for file, number, text in rows}
        return [
            FoundChunk(f"{key.file}:{key.number}", key.file, texts[key], scores.get(key), similarities.get(key))
            for key in keys
            if key in texts  # otherwise just deleted
        ]

    async def _by_words(self, store: str, text: str, limit: int, files: Sequence[int] | None) -> dict[ChunkKey, float]:
        """Score the best chunks by BM25, as a fraction of the highest possible score."""
        wanted = [*dict.fromkeys(stems for term in terms(text) if (stems := stem(term)))]
        if not wanted:
            return {}
        ((total, words),) = await self._db.fetch(_TOTALS, store, idempotent=True)
        average = words / max(total, 1)
        counts = await self._counts(store, wanted, MAX_POSTINGS + 1)
        used = terms_within_posting_budget(counts)
        if not used or not words:
            return {}
        if counts[used[0]] > MAX_POSTINGS:
            counts |= await self._counts(store, used, total)
        total = max(total, *counts.values())  # counts include chunks being stored
        rows = await self._db.fetch(
            _BEST,
            store,
            [hashed(store, term, frequency) for term in used for frequency in FREQUENCIES],
            [weight(total, counts[term]) for term in used for _ in FREQUENCIES],
            [float(frequency) for _ in used for frequency in FREQUENCIES],
            K1,
            LENGTH_WEIGHT,
            average,
            files,
            limit,
        )
        maximum = highest_score(total, counts)
        return {ChunkKey(file, number): min(1.0, score / maximum) for file, number, score in rows}

    async def _counts(self, store: str, wanted: Sequence[str], limit: int) -> dict[str, int]:
        hashes = [hashed(store, term, frequency) for term in wanted for frequency in FREQUENCIES]
        ((counts,),) = await self._db.fetch(_COUNT, hashes, len(FREQUENCIES), limit, idempotent=True)
        return dict(zip(wanted, counts, strict=True))

    async def _by_vector(
        self, store: str, search_query: Query, limit: int, files: Sequence[int] | None
    ) -> dict[ChunkKey, float]:
        if search_query.vector is None:
            return {}
        await self._prepare_vectors()
        vector = _vector(search_query.vector)
        rows = await self._db.fetch(NEAREST, vector, store, _embeddings(search_query), files, limit, idempotent=True)
        return _similar(rows)

    async def _similarities(self, search_query: Query, keys: Sequence[ChunkKey]) -> dict[ChunkKey, float]:
        assert search_query.vector is not None
        numbers = [key.file for key in keys], [key.number for key in keys]
        vector = _vector(search_query.vector)
        return _similar(
            await self._db.fetch(_SIMILARITIES, vector, *numbers, _embeddings(search_query), idempotent=True)
        )

    async def _prepare_vectors(self) -> None:
        try:
            await self._db.prepare_vectors()
        except NoVectorsError as error:
            raise self._db.unavailable(str(error)) from None


def _next_rows(store: str, chunks: Iterator[TextChunk]) -> _Rows | None:
    """Return None at the end. Slow: runs in a thread."""
    batch = [*islice(chunks, CHUNKS_AT_ONCE)]
    if not batch:
        return None
    texts = [str(storable(chunk.text)) for chunk in batch]
    found = [hashed_terms(store, text) for text in texts]
    vectors = [chunk.vector for chunk in batch if chunk.vector is not None]
    return _Rows(
        lengths=[words for _, words in found],
        terms=[f"{{{','.join(map(str, hashes))}}}" for hashes, _ in found],
        texts=texts,
        vectors=[*map(_vector, vectors)],
        bytes=sum(len(text.encode()) for text in texts) + sum(map(len, vectors)),
        dimensions=len(vectors[0]) // 4 if vectors else 0,
    )


def _vector(vector: bytes) -> str:
    """Nine digits are exact for float32."""
    return f"[{','.join(f'{number:.9g}' for number in array.array('f', vector))}]"


def _embeddings(search_query: Query) -> str:
    assert search_query.vector is not None
    return f"{search_query.model} {len(search_query.vector) // 4}"


def _similar(rows: Iterable[Any]) -> dict[ChunkKey, float]:
    """The distance from a zero vector is NaN."""
    return {
        ChunkKey(file, number): min(1.0, max(0.0, 1.0 - distance)) if distance == distance else 0.0
        for file, number, distance in rows
    }


_local = threading.local()


@lru_cache(maxsize=50_000)
def stem(term: str) -> str:
    """Stem each word in a term and remove accents; "" if the term contains no word."""
    if not hasattr(_local, "tokenizer"):  # per thread
        tokenizer = apsw.Connection(":memory:").fts5_tokenizer("porter", ["unicode61", "remove_diacritics", "2"])
        _local.tokenizer = tokenizer
    tokens = _local.tokenizer(
        term.encode("utf-8", "replace"),
        apsw.FTS5_TOKENIZE_DOCUMENT,
        None,
        include_offsets=False,
        include_colocated=False,
    )
    return " ".join(tokens)


def hashed(store: str, term: str, frequency: int) -> int:
    """`frequency` is in the chunk, from `FREQUENCIES`."""
    digest = blake2b(f"{store} {frequency} {term}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)


def hashed_terms(store: str, text: str) -> tuple[list[int], int]:
    """Return a chunk's term hashes, and its number of words."""
    found, words = indexed_terms(text)
    counts = Counter(stems for term in found if (stems := stem(term)))
    hashes = [hashed(store, term, min(FREQUENCIES, key=lambda f: abs(f - count))) for term, count in counts.items()]
    return hashes, words


def terms_within_posting_budget(counts: Mapping[str, int]) -> list[str]:
    """
    Return the terms to search for, rarest first; `counts` is the number of chunks per term.

    Terms beyond `MAX_POSTINGS` occurrences are dropped, except for the first: BM25 gives them little weight.
    """
    used: list[str] = []
    postings = 0
    for term, count in sorted(counts.items(), key=lambda item: item[1]):
        if not count or (used and postings + count > MAX_POSTINGS):
            continue
        used.append(term)
        postings += count
    return used
