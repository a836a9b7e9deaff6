"""
PostgreSQL tables for files and vector stores, and their migrations.

Deleting a file, or removing it from a vector store, deletes a single row; the file then disappears from every query.
Triggers add its content and chunks to `antiphon_removed`, from which a sweep deletes them in batches.
"""

from __future__ import annotations

import asyncpg

from app.storage.postgres import in_postgres
from app.storage.tables import Connection, Migrations, migrate
from app.tools.files import VectorsUnsupported
from app.tools.files.records.tables import FILE_TABLES

_LOCK = 0x66696C65  # for migrations; other programs may use advisory locks too
_VECTORS_LOCK = _LOCK + 1

POSTGRES_NAMES = {
    "{row}": "number",
    "{identity}": "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
}

_CHUNKS = """
ALTER TABLE antiphon_pieces ALTER COLUMN data SET STORAGE EXTERNAL;  -- compression costs more than it saves
ALTER TABLE antiphon_store_files
    ADD COLUMN chunks integer NOT NULL DEFAULT 0,
    ADD COLUMN words bigint NOT NULL DEFAULT 0,
    ADD COLUMN embeddings text;  -- the model and the number of dimensions

-- `file` is the number of a row in antiphon_store_files.
CREATE TABLE antiphon_chunks (
    file bigint NOT NULL,
    number integer NOT NULL,
    length integer NOT NULL,  -- in words
    terms bigint[] NOT NULL,
    text text NOT NULL,
    PRIMARY KEY (file, number)
) WITH (toast_tuple_target = 128);  -- terms and texts are stored apart: a search reads the lengths of many chunks
ALTER TABLE antiphon_chunks ALTER COLUMN terms SET STORAGE EXTERNAL;  -- hashes cannot be compressed
CREATE INDEX antiphon_chunks_by_terms ON antiphon_chunks USING gin (terms) WITH (fastupdate = off);

-- What remains to be deleted: the content of a file, or the chunks of a row of antiphon_store_files.
CREATE TABLE antiphon_removed (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    content text,
    chunks bigint
);
CREATE FUNCTION antiphon_file_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO antiphon_removed (content) SELECT id FROM deleted;
    RETURN NULL;
END $$;
CREATE TRIGGER antiphon_deleted AFTER DELETE ON antiphon_files REFERENCING OLD TABLE AS deleted
FOR EACH STATEMENT EXECUTE FUNCTION antiphon_file_deleted();
CREATE FUNCTION antiphon_store_file_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO antiphon_removed (chunks) SELECT number FROM deleted;
    RETURN NULL;
END $$;
CREATE TRIGGER antiphon_deleted AFTER DELETE ON antiphon_store_files REFERENCING OLD TABLE AS deleted
FOR EACH STATEMENT EXECUTE FUNCTION antiphon_store_file_deleted();

-- The number of chunks that have each term, at most `_most`; a term has `_width` hashes, one for each frequency.
-- Without statistics of the terms, the planner would read the whole table for some queries.
CREATE FUNCTION antiphon_count_terms(_terms bigint[], _width integer, _most bigint) RETURNS bigint[]
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET jit = off AS $$
DECLARE
    first integer;
    counts bigint[] := '{}';
BEGIN
    FOR first IN SELECT generate_series(1, cardinality(_terms), _width) LOOP
        counts := counts || (
            SELECT count(*) FROM (
                SELECT FROM antiphon_chunks WHERE terms && _terms[first : first + _width - 1] LIMIT _most
            ) AS chunks
        );
    END LOOP;
    RETURN counts;
END $$;

-- The best chunks by BM25. Each term comes with its weight and the number of times that it occurs in a chunk.
CREATE FUNCTION antiphon_best_by_terms(
    _store text, _terms bigint[], _weights float8[], _frequencies float8[],
    _k1 float8, _b float8, _average float8, _files bigint[], _most bigint
) RETURNS TABLE (file bigint, number integer, score float8)
LANGUAGE sql STABLE SET enable_seqscan = off SET jit = off AS $$
    -- Materialized, so that chunks are found by their terms whatever the planner knows of the tables.
    WITH found AS MATERIALIZED (
        SELECT chunks.file, chunks.number,
            weight * frequency * (_k1 + 1) / (frequency + _k1 * (1 - _b + _b * length / _average)) AS score
        FROM unnest(_terms, _weights, _frequencies) AS wanted (term, weight, frequency)
        JOIN antiphon_chunks AS chunks ON terms @> ARRAY[term]
    )
    SELECT found.file, found.number, sum(score) AS score
    FROM found JOIN antiphon_store_files AS files ON files.number = found.file
    WHERE store = _store AND status = 'completed' AND (_files IS NULL OR found.file = ANY (_files))
    GROUP BY found.file, found.number ORDER BY score DESC, found.file, found.number LIMIT _most
$$;
"""

_PARTS_REMOVED = """
CREATE OR REPLACE FUNCTION antiphon_file_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO antiphon_removed (content) SELECT id FROM deleted;
    WITH parts AS (DELETE FROM antiphon_upload_parts WHERE file IN (SELECT id FROM deleted) RETURNING id)
    INSERT INTO antiphon_removed (content) SELECT id FROM parts;
    RETURN NULL;
END $$;
"""

# Rows are read sequentially. With 8,160 bytes, vectors up to 2,000 dimensions stay out of the TOAST table. Databases of
# 0.2.0 also contain the function `antiphon_nearest`, which processes of that version use until they are replaced.
_VECTORS = """
CREATE EXTENSION IF NOT EXISTS vector;
CREATE TABLE antiphon_vectors (
    file bigint NOT NULL,
    number integer NOT NULL,
    vector vector NOT NULL,
    PRIMARY KEY (file, number),
    FOREIGN KEY (file, number) REFERENCES antiphon_chunks (file, number) ON DELETE CASCADE
) WITH (toast_tuple_target = 8160);
ALTER TABLE antiphon_vectors ALTER COLUMN vector SET STORAGE EXTERNAL;
"""

_OWN_TABLES = (_CHUNKS, "", _PARTS_REMOVED, "", "", "")
_MIGRATIONS = Migrations(
    [in_postgres(tables, POSTGRES_NAMES) + own for tables, own in zip(FILE_TABLES, _OWN_TABLES, strict=True)]
)

# Errors raised by CREATE EXTENSION, and for a type in no schema of the search path.
_NO_EXTENSION = (
    asyncpg.FeatureNotSupportedError,
    asyncpg.UndefinedFileError,
    asyncpg.InsufficientPrivilegeError,
    asyncpg.UndefinedObjectError,
)


async def migrate_files(connection: Connection) -> None:
    await migrate(connection, "antiphon_files_schema", _LOCK, _MIGRATIONS)


async def create_vectors(connection: Connection) -> None:
    """Raises `VectorsUnsupported`."""
    try:
        await migrate(connection, "antiphon_vectors_schema", _VECTORS_LOCK, Migrations([_VECTORS]))
    except _NO_EXTENSION as error:
        reason = str(error).splitlines()[0]
        raise VectorsUnsupported(
            f"embeddings need the extension `vector` (pgvector), which is not available: {reason}. Install pgvector on "
            "the database server, and run CREATE EXTENSION vector in the database as a user who may."
        ) from None


def storable(value: object) -> object:
    """Replace characters that PostgreSQL rejects in text: NUL and lone surrogates."""
    if isinstance(value, list):
        return [*map(storable, value)]
    if not isinstance(value, str):
        return value
    return value.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
