"""
The terms of chunks as PostgreSQL indexes them: 64-bit hashes of the vector store, the term, and its frequency.

With the store in the hash, a search reads only entries of its own store in the index of all chunks. With the frequency
in it, BM25 can be computed without reading the terms of a chunk. Terms are stemmed by the tokenizer of SQLite's FTS5,
so that a search finds the same chunks in both databases.
"""

from __future__ import annotations

import threading
from collections import Counter
from functools import lru_cache
from hashlib import blake2b

import apsw

from app.tools.files.vector_stores.words import stored_terms

# Of a term in a chunk; others are rounded to these, which changes BM25 by a few percent at most.
FREQUENCIES = (1, 2, 3, 4, 5, 6, 8, 10, 14, 24)

_local = threading.local()


@lru_cache(maxsize=50_000)
def stem(term: str) -> str:
    """Return the stems of a term's words, without accents; "" if there is no word in it."""
    if not hasattr(_local, "tokenizer"):  # one for each thread
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
    """Return the hash of a stemmed term that occurs so often, one of `FREQUENCIES`, in a chunk of a vector store."""
    digest = blake2b(f"{store} {frequency} {term}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)


def hashed_terms(store: str, text: str) -> tuple[list[int], int]:
    """Return the hashes of the terms of a chunk, and the number of words in it."""
    found, words = stored_terms(text)
    counts = Counter(stems for term in found if (stems := stem(term)))
    hashes = [hashed(store, term, min(FREQUENCIES, key=lambda f: abs(f - count))) for term, count in counts.items()]
    return hashes, words
