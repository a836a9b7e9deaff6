"""
What is searched: the chunks of one vector store, in a SQLite file of its own.

A store has its own file, so that the words of one are never weighed by those of others, the work of reading files into
one locks no other, and deleting a store is deleting a file. What is in it can be made anew from the uploaded files.

Words are ranked by BM25 (FTS5). A vector is kept whole and, if it is long, as one bit for each dimension as well: of
many chunks those with the nearest bits are looked at first, and then compared exactly (`sqlite-vec`).

The id of a chunk is the row of its file among the files of stores, and its number in the file in the last 20 bits.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import apsw
import sqlite_vec

from app.tools.files.sqlite.database import connect, create_tables, empty_log, query, transaction
from app.tools.files.vector_stores.records import Query, TextChunk

_VERSION = 1
_SCHEMA = """
CREATE TABLE chunks (id INTEGER PRIMARY KEY, text TEXT NOT NULL);
CREATE VIRTUAL TABLE words USING fts5 (
    text, content = '', contentless_delete = 1, tokenize = 'porter unicode61 remove_diacritics 2'
);
CREATE TABLE codes (id INTEGER PRIMARY KEY, code BLOB NOT NULL);
CREATE TABLE vectors (id INTEGER PRIMARY KEY, vector BLOB NOT NULL);
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""

NUMBER_BITS = 20  # more than a file can have chunks
EXACT = 5_000  # vectors that are compared as they are; of more, the nearest by their bits
OVERSAMPLING = 10  # of those, how many times as many as are wanted
MIN_BITS = 256  # dimensions from which on bits tell enough
MAX_TERMS = 32  # of a query
MAX_POSTINGS = 20_000  # places of words that one search looks at; the rarest words come first
_K1 = 1.2  # of FTS5's bm25

# FTS5 takes a run of characters of a script without spaces for one word; here each is a word, and a run is a phrase.
_WIDE = re.compile(r"[\u0e00-\u0fff\u2e80-\u9fff\uac00-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff]")
_WORD = re.compile(r"[^\W_](?:[^\W_]|[\u0300-\u036f\u0900-\u0dff])*")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")

# What questions in English are made of, whatever they are about.
_QUESTION_WORDS = """
    a an and are as at be but by can could did do does for from had has have how i if in into is it its
    me my no not of on or our should so such than that the their them then there these they this to was
    we were what when where which who whom whose why will with would you your
"""
_STOP_WORDS = frozenset(f'"{word}"' for word in _QUESTION_WORDS.split())


class Match(NamedTuple):
    """A chunk that was found."""

    id: int
    file: int  # its row among the files of stores
    text: str
    text_score: float | None
    similarity: float | None


class Index:
    """The chunks of one vector store. Every method blocks, and raises `apsw.Error`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def replace(self, file: int, chunks: Iterable[TextChunk], model: str, alive: Collection[int]) -> int:
        """
        Keep the chunks of a file in place of those it had, all or none, and return how many bytes they are.

        What is there of files that are not `alive` any more is removed.
        """
        size = 0
        with self._open() as db, transaction(db):
            for old in [*_files(db)]:
                if old == file or old not in alive:
                    _remove(db, old)
            for number, chunk in enumerate(chunks):
                id = (file << NUMBER_BITS) + number
                db.execute("INSERT INTO chunks VALUES (?, ?)", (id, chunk.text))
                db.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (id, searchable(chunk.text)))
                size += len(chunk.text.encode())
                if chunk.vector is not None:
                    if not number:
                        _use_model(db, f"{model} {len(chunk.vector) // 4}")
                    _add_vector(db, id, chunk.vector)
                    size += len(chunk.vector)
        return size

    def remove(self, file: int) -> None:
        """Forget the chunks of a file."""
        if self._path.exists():
            with self._open() as db, transaction(db):
                _remove(db, file)

    def clean(self) -> None:
        """Let go of the words of what was removed: the index of words keeps them until it is put together anew."""
        with self._open() as db:
            if query(db, "DELETE FROM facts WHERE name = 'removed' RETURNING value"):
                db.execute("INSERT INTO words (words) VALUES ('optimize')")
                empty_log(db)

    def text(self, file: int) -> list[str]:
        """Return the chunks of a file."""
        if not self._path.exists():
            return []
        with self._open() as db:
            return [text for (text,) in query(db, f"SELECT text FROM chunks {_OF_FILE} ORDER BY id", _range(file))]

    def search(self, wanted: Query, limit: int, files: Collection[int] | None) -> list[Match]:
        """Return the best `limit` chunks by words, and by embedding, of some files, or of all (None)."""
        if not self._path.exists():
            return []
        with self._open() as db:
            chosen = None if files is None else json.dumps([*files])
            scores = _by_words(db, wanted.text, limit, chosen)
            similarities: dict[int, float] = {}
            if wanted.vector is not None and _model(db) == f"{wanted.model} {len(wanted.vector) // 4}":
                similarities = _by_vector(db, wanted.vector, limit, chosen)
            ids = [*dict.fromkeys([*scores, *similarities])]
            if similarities:
                # A chunk that one of the two has found has a place in the other as well.
                assert wanted.vector is not None
                similarities |= _similarities(db, wanted.vector, [id for id in ids if id not in similarities])
            statement = "SELECT id, text FROM chunks WHERE id IN (SELECT value FROM json_each(?))"
            rows = query(db, statement, (json.dumps(ids),))
            return [Match(id, id >> NUMBER_BITS, text, scores.get(id), similarities.get(id)) for id, text in rows]

    @contextmanager
    def _open(self) -> Iterator[apsw.Connection]:
        with closing(connect(self._path)) as db:
            db.enable_load_extension(True)
            db.load_extension(sqlite_vec.loadable_path())
            db.enable_load_extension(False)
            db.execute(
                "PRAGMA cache_size = -65536"
            )  # KiB, as far as they are needed; for so short a time mmap is dearer
            create_tables(db, _SCHEMA, _VERSION)
            yield db


def delete_index(path: Path) -> None:
    """Delete the file of an index, and what SQLite keeps beside it."""
    for name in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
        name.unlink(missing_ok=True)


def last_change(path: Path) -> int:
    """Return when an index was last written to, in nanoseconds; 0 if it is not there."""
    times = [0]
    for name in (path, path.with_name(f"{path.name}-wal")):
        with suppress(FileNotFoundError):
            times.append(name.stat().st_mtime_ns)
    return max(times)


def searchable(text: str) -> str:
    """Return a text as it is indexed: characters of scripts without spaces apart, and `camelCase` also in parts."""
    text = _WIDE.sub(r" \g<0> ", text)
    parts = [" ".join(_CAMEL.split(word)) for word in _WORD.findall(text) if _CAMEL.search(word)]
    return f"{text}\n{' '.join(parts)}" if parts else text


def terms(text: str) -> list[str]:
    """Return what is searched for in a query, as phrases of FTS5, each once: words, and pairs of wide characters."""
    found: dict[str, None] = {}
    for word in _WORD.findall(text):
        wide = "".join(_WIDE.findall(word))
        if len(wide) > 1:
            found |= dict.fromkeys(f'"{one} {other}"' for one, other in pairwise(wide))
        elif wide:
            found[f'"{wide}"'] = None
        if narrow := _WIDE.sub("", word):
            found |= dict.fromkeys(f'"{part.lower()}"' for part in [narrow, *_CAMEL.split(narrow)])
    telling = [term for term in found if term not in _STOP_WORDS] or [*found]
    return telling[:MAX_TERMS]


def _by_words(db: apsw.Connection, text: str, limit: int, files: str | None) -> dict[int, float]:
    """
    Return the best chunks by BM25, with scores from 0 to 1: how much of what BM25 could give for these words they have.

    The rarest words decide. Those that so many chunks have that it would take long to look at them all are left out,
    unless there are no others: BM25 gives little for them.
    """
    counts = {term: _count(db, term, MAX_POSTINGS + 1) for term in terms(text)}
    total = query(db, "SELECT count(*) FROM words_docsize")[0][0]  # one small row for each chunk
    used: list[str] = []
    postings = 0
    for term, count in sorted(counts.items(), key=lambda item: item[1]):
        if not count or (used and postings + count > MAX_POSTINGS):
            continue
        used.append(term)
        postings += count
    if not used:
        return {}
    if postings > MAX_POSTINGS:
        counts[used[0]] = _count(db, used[0], total)
    # A word that no chunk has weighs most: what lacks it does not fit well.
    most = sum(_weight(total, count) for count in counts.values()) * (_K1 + 1)
    where = "" if files is None else f"AND rowid >> {NUMBER_BITS} IN (SELECT value FROM json_each(:files))"
    # FTS5 makes a word worth nothing that half of the chunks have, and in a store of three notes many are such. So each
    # word is weighed here.
    scores: list[str] = []
    values: dict[str, object] = {"files": files, "limit": limit}
    for index, term in enumerate(used):
        values |= {
            f"term{index}": term,
            f"weight{index}": _weight(total, counts[term]) / _fts5_weight(total, counts[term]),
        }
        score = f"rank * :weight{index} AS score"
        scores.append(f"SELECT rowid AS id, {score} FROM words WHERE words MATCH :term{index} {where}")
    statement = f"""
        SELECT id, sum(score) AS total FROM ({" UNION ALL ".join(scores)}) GROUP BY id ORDER BY total LIMIT :limit
    """
    return {id: min(1.0, -score / most) for id, score in query(db, statement, values)}


def _count(db: apsw.Connection, term: str, most: int) -> int:
    """Return in how many chunks a term is, or `most` if it is in more."""
    some = f"SELECT 1 FROM words WHERE words MATCH ? LIMIT {most}"
    return int(query(db, f"SELECT count(*) FROM ({some})", (term,))[0][0])


def _weight(total: int, count: int) -> float:
    """Return what a word tells that is in `count` of `total` chunks, as Lucene has it: always a little."""
    return math.log(1 + (total - count + 0.5) / (count + 0.5))


def _fts5_weight(total: int, count: int) -> float:
    """Return what FTS5 takes the same for."""
    return max(math.log((total - count + 0.5) / (count + 0.5)), 1e-6)


def _by_vector(db: apsw.Connection, vector: bytes, limit: int, files: str | None) -> dict[int, float]:
    """Return the nearest chunks with their cosine similarity, from 0 to 1."""
    values: dict[str, object] = {"vector": vector, "files": files, "limit": limit, "sample": limit * OVERSAMPLING}
    where = "" if files is None else f"WHERE id >> {NUMBER_BITS} IN (SELECT value FROM json_each(:files))"
    if query(db, f"SELECT count(*) FROM (SELECT 1 FROM codes {where} LIMIT {EXACT + 1})", values)[0][0] > EXACT:
        near = "ORDER BY vec_distance_hamming(vec_bit(code), vec_quantize_binary(:vector)) LIMIT :sample"
        where = f"WHERE id IN (SELECT id FROM codes {where} {near})"
    statement = f"""
        SELECT id, vec_distance_cosine(vector, :vector) AS distance FROM vectors {where} ORDER BY distance LIMIT :limit
    """
    return {id: _similarity(distance) for id, distance in query(db, statement, values)}


def _similarities(db: apsw.Connection, vector: bytes, ids: list[int]) -> dict[int, float]:
    statement = """
        SELECT id, vec_distance_cosine(vector, ?) FROM vectors WHERE id IN (SELECT value FROM json_each(?))
    """
    return {id: _similarity(distance) for id, distance in query(db, statement, (vector, json.dumps(ids)))}


def _similarity(distance: float | None) -> float:
    return 0.0 if distance is None else min(1.0, max(0.0, 1.0 - distance))


def _add_vector(db: apsw.Connection, id: int, vector: bytes) -> None:
    db.execute("INSERT INTO vectors VALUES (?, ?)", (id, vector))
    if len(vector) // 4 >= MIN_BITS and len(vector) % 32 == 0:  # bits come in bytes
        db.execute("INSERT INTO codes VALUES (?, vec_quantize_binary(?))", (id, vector))


def _model(db: apsw.Connection) -> str | None:
    rows = query(db, "SELECT value FROM facts WHERE name = 'embeddings'")
    return str(rows[0][0]) if rows else None


def _use_model(db: apsw.Connection, model: str) -> None:
    """Note whose vectors these are; those of another model cannot be compared with them, and are dropped."""
    if _model(db) != model:
        db.execute("DELETE FROM codes; DELETE FROM vectors")
        db.execute("INSERT OR REPLACE INTO facts VALUES ('embeddings', ?)", (model,))


def _files(db: apsw.Connection) -> Iterator[int]:
    """Yield the files that have chunks, without looking at each chunk."""
    id = 0
    while rows := query(db, "SELECT id FROM chunks WHERE id >= ? ORDER BY id LIMIT 1", (id,)):
        file = rows[0][0] >> NUMBER_BITS
        yield file
        id = (file + 1) << NUMBER_BITS


_OF_FILE = "WHERE id BETWEEN ? AND ?"


def _range(file: int) -> tuple[int, int]:
    """Return the first and the last id that a chunk of a file can have."""
    return file << NUMBER_BITS, ((file + 1) << NUMBER_BITS) - 1


def _remove(db: apsw.Connection, file: int) -> None:
    db.execute(f"DELETE FROM words WHERE rowid IN (SELECT id FROM chunks {_OF_FILE})", _range(file))
    db.execute("INSERT OR REPLACE INTO facts VALUES ('removed', 'yes')")
    for table in ("codes", "vectors", "chunks"):
        db.execute(f"DELETE FROM {table} {_OF_FILE}", _range(file))
