"""
Vector stores in PostgreSQL: claims, chunks and searches.

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from typing import NamedTuple, TypeAlias

import apsw

from app.storage.postgres import PostgresTables
from app.storage.tables import Rows, Statement, Transaction, execute, in_transaction
from app.tools.files import FilesUnavailable, VectorsUnsupported
from app.tools.files.postgres.schema import create_vectors, storable
from app.tools.files.vector_stores.ranking import (
    K1,
    LENGTH_WEIGHT,
    highest_score,
    indexed_terms,
    similarity,
    terms,
    weight,
)
from app.tools.files.vector_stores.records import EmbeddedText, Job
from app.tools.files.vector_stores.sql import HELD, QUEUES, FoundChunk, VectorStoreRecords

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


# Several candidates, since other processes may be claiming the first ones. In an array, so that the planner uses the
# primary key regardless of its statistics.
_NEXT = f"""
SELECT number FROM antiphon_store_files AS entries
WHERE number = ANY (ARRAY (
    {QUEUES}
    SELECT oldest.number FROM queues LEFT JOIN antiphon_turns USING (queue)
    CROSS JOIN LATERAL (
        SELECT number FROM antiphon_store_files AS waiting
        WHERE status = 'in_progress' AND waiting.queue = queues.queue AND claimed_until <= clock_timestamp()
        ORDER BY number LIMIT 20
    ) AS oldest
    WHERE NOT queue = ANY ($1) ORDER BY served NULLS FIRST, oldest.number LIMIT 40
)) AND status = 'in_progress' AND claimed_until <= clock_timestamp()
ORDER BY (SELECT served FROM antiphon_turns AS turns WHERE turns.queue = entries.queue) NULLS FIRST, number
LIMIT 1 FOR UPDATE SKIP LOCKED
"""
_CLAIM = f"""
WITH claimed AS (
    UPDATE antiphon_store_files
    SET claim = $2, claimed_until = clock_timestamp() + make_interval(secs => $3), attempts = attempts + 1
    WHERE number = ({_NEXT})
    RETURNING number, attempts, queue, key, store, id, max_tokens, overlap
), turn AS (
    INSERT INTO antiphon_turns SELECT queue, clock_timestamp() FROM claimed
    ON CONFLICT (queue) DO UPDATE SET served = excluded.served
)
SELECT claimed.number, attempts, queue, key, store, id, filename, max_tokens, overlap
FROM claimed JOIN antiphon_files USING (id)
"""
_COMPLETE = f"""
UPDATE antiphon_store_files
SET status = 'completed', claim = NULL, chunks = $3, words = $4, usage_bytes = $5, embeddings = $6
WHERE {HELD} RETURNING 1
"""


# A row in antiphon_store_files, and the chunk's position in the file.
ChunkKey: TypeAlias = tuple[int, int]


class _Rows(NamedTuple):
    lengths: list[int]
    terms: list[str]
    texts: list[str]
    vectors: list[str]
    bytes: int
    space: str | None  # see `EmbeddedText`


class PostgresVectorStores(VectorStoreRecords):
    CANCEL_FILES = """
    WITH cancelled AS (
        UPDATE antiphon_store_files SET status = 'cancelled' WHERE batch = $1 AND status = 'in_progress'
        RETURNING number
    )
    INSERT INTO antiphon_removed (chunks) SELECT number FROM cancelled
    """
    FAIL = f"""
    WITH failed AS (
        UPDATE antiphon_store_files SET status = 'failed', claim = NULL, error_code = $3, error_message = $4
        WHERE {HELD} RETURNING number
    )
    INSERT INTO antiphon_removed (chunks) SELECT number FROM failed
    """

    _tables: PostgresTables
    has_vectors = False  # the embeddings' table, which needs the extension `vector`, is created on first use

    async def delete_chunks(self, entries: Sequence[Sequence[object]]) -> None:
        """Triggers record removals, and the file store's `sweep` deletes the chunks."""

    async def _claim(self, excluded: list[str], claim: str, lease: float) -> Rows:
        return await self._tables.execute(_CLAIM, excluded, claim, lease)

    async def complete(self, job: Job, chunks: Iterable[EmbeddedText]) -> bool:
        stored = await self._store_chunks(job, iter(chunks))
        return bool(stored and await self._tables.execute(_COMPLETE, job.row, job.claim, *stored))

    async def _store_chunks(self, job: Job, chunks: Iterator[EmbeddedText]) -> tuple[int, int, int, str | None] | None:
        """
        Store a claimed file's chunks, not searchable yet. First deletes chunks from earlier attempts.

        Returns their number, words, bytes and vector space; None if the claim was lost.
        """
        while erased := await self._while_claimed(job, execute(_ERASE, job.row)):
            pass
        if erased is None:
            return None
        count = words = size = 0
        space: str | None = None
        while rows := await _next_rows(job.store_id, chunks):
            if rows.vectors:
                await self._need_vectors()
            numbers = [*range(count, count + len(rows.texts))]
            statements = [execute(_INSERT, job.row, numbers, rows.lengths, rows.terms, rows.texts)]
            if rows.vectors:
                statements.append(execute(_INSERT_VECTORS, job.row, numbers, rows.vectors))
            if await self._while_claimed(job, *statements) is None:
                return None
            count += len(rows.texts)
            words += sum(rows.lengths)
            size += rows.bytes
            space = rows.space or space
        return count, words, size, space

    @in_transaction
    def _while_claimed(self, job: Job, *statements: Statement) -> Transaction[Rows | None]:
        """Return the last statement's rows; None if the claim was lost."""
        if not (yield execute(_CLAIMED, job.row, job.claim)):
            return None
        rows: Rows = []
        for statement in statements:
            rows = yield statement
        return rows

    async def _text_of(self, store_id: str, file: int) -> list[str]:
        statement = "SELECT text FROM antiphon_chunks WHERE file = $1 ORDER BY number"
        return [text for (text,) in await self._tables.fetch(statement, file)]

    async def _found(
        self, store_id: str, search_query: EmbeddedText, limit: int, files: Sequence[int] | None
    ) -> list[FoundChunk]:
        scores, similarities = await asyncio.gather(
            self._by_words(store_id, search_query.text, limit, files),
            self._by_vector(store_id, search_query, limit, files),
        )
        keys = [*dict.fromkeys([*scores, *similarities])]
        if similarities:
            # Chunks found only by keywords need their similarity too.
            others = [key for key in keys if key not in similarities]
            columns = [file for file, _ in others], [number for _, number in others]
            similarities |= await self._similarities(_SIMILARITIES, search_query, *columns, search_query.space)
        rows = await self._tables.fetch(_TEXTS, [file for file, _ in keys], [number for _, number in keys])
        texts = {(file, number): text for file, number, text in rows}
        return [
            FoundChunk(f"{key[0]}:{key[1]}", key[0], texts[key], scores.get(key), similarities.get(key))
            for key in keys
            if key in texts  # otherwise just deleted
        ]

    async def _by_words(self, store: str, text: str, limit: int, files: Sequence[int] | None) -> dict[ChunkKey, float]:
        """Score the best chunks by BM25, as a fraction of the highest possible score."""
        wanted = [*dict.fromkeys(stems for term in terms(text) if (stems := stem(term)))]
        if not wanted:
            return {}
        ((total, words),) = await self._tables.fetch(_TOTALS, store)
        average = words / max(total, 1)
        counts = await self._counts(store, wanted, MAX_POSTINGS + 1)
        used = terms_within_posting_budget(counts)
        if not used or not words:
            return {}
        if counts[used[0]] > MAX_POSTINGS:
            counts |= await self._counts(store, used, total)
        total = max(total, *counts.values())  # counts include chunks being stored
        rows = await self._tables.fetch(
            _BEST,
            store,
            _hashes(store, used),
            [weight(total, counts[term]) for term in used for _ in FREQUENCIES],
            [float(frequency) for _ in used for frequency in FREQUENCIES],
            K1,
            LENGTH_WEIGHT,
            average,
            files,
            limit,
        )
        maximum = highest_score(total, counts)
        return {(file, number): min(1.0, score / maximum) for file, number, score in rows}

    async def _counts(self, store: str, wanted: Sequence[str], limit: int) -> dict[str, int]:
        ((counts,),) = await self._tables.fetch(_COUNT, _hashes(store, wanted), len(FREQUENCIES), limit)
        return dict(zip(wanted, counts, strict=True))

    async def _by_vector(
        self, store: str, search_query: EmbeddedText, limit: int, files: Sequence[int] | None
    ) -> dict[ChunkKey, float]:
        if search_query.vector is None:
            return {}
        await self._need_vectors()
        return await self._similarities(NEAREST, search_query, store, search_query.space, files, limit)

    async def _similarities(self, statement: str, search_query: EmbeddedText, *values: object) -> dict[ChunkKey, float]:
        """`statement` compares chunks with the query's vector, its first parameter."""
        assert search_query.vector is not None
        rows = await self._tables.fetch(statement, _vector(search_query.vector), *values)
        return {(file, number): similarity(distance) for file, number, distance in rows}

    async def prepare_vectors(self) -> None:
        if not self.has_vectors:
            await self._tables.transaction(create_vectors)
            self.has_vectors = True

    async def _need_vectors(self) -> None:
        try:
            await self.prepare_vectors()
        except VectorsUnsupported as error:
            raise self._tables.outage.begins(str(error)) from None


async def _next_rows(store: str, chunks: Iterator[EmbeddedText]) -> _Rows | None:
    """Return None at the end. Raises `FilesUnavailable`."""

    def read() -> _Rows | None:
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
            space=batch[0].space,
        )

    try:
        return await asyncio.to_thread(read)
    except OSError:
        raise FilesUnavailable from None


def _vector(vector: bytes) -> str:
    """Nine digits are exact for float32."""
    return f"[{','.join(f'{number:.9g}' for number in array.array('f', vector))}]"


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


def _hashes(store: str, wanted: Sequence[str]) -> list[int]:
    return [hashed(store, term, frequency) for term in wanted for frequency in FREQUENCIES]


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
