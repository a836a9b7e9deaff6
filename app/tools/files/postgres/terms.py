"""
Chunk terms as indexed in PostgreSQL: 64-bit hashes of vector store, term and frequency.

Because hashes include the store, a search reads only its own store's entries in the shared index. Because they include
the frequency, BM25 needs no access to a chunk's terms. SQLite's FTS5 tokenizer stems the terms, so that both databases
find the same chunks.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b

import apsw

from app.tools.files.vector_stores.words import indexed_terms

# Other frequencies are rounded to these, which changes BM25 by a few percent at most.
FREQUENCIES = (1, 2, 3, 4, 5, 6, 8, 10, 14, 24)

# Occurrences read per search, rarest terms first. Without this limit, terms in nearly every one of 100,000 chunks take
# 440 ms instead of 80 ms; only English stop words are removed from queries.
MAX_POSTINGS = 20_000

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
