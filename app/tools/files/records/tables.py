"""Tables that the SQLite and PostgreSQL file stores share, in the syntax of `app.storage.tables`."""

from __future__ import annotations

_FILES = """
CREATE TABLE antiphon_files (
    {row} {identity},
    id text NOT NULL UNIQUE,
    owner text NOT NULL,
    filename text NOT NULL,
    purpose text NOT NULL,
    bytes bigint NOT NULL,
    created_at bigint NOT NULL,
    expires_at bigint
);
CREATE INDEX antiphon_files_by_owner ON antiphon_files (owner, {row});
CREATE INDEX antiphon_files_by_expiry ON antiphon_files (expires_at) WHERE expires_at IS NOT NULL;
CREATE TABLE antiphon_pieces (
    file text NOT NULL,
    number integer NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (file, number)
);
CREATE TABLE antiphon_uploads (file text PRIMARY KEY, touched timestamptz NOT NULL);

CREATE TABLE antiphon_vector_stores (
    {row} {identity},
    id text NOT NULL UNIQUE,
    owner text NOT NULL,
    name text NOT NULL,
    description text,
    metadata text,
    expires_days integer,
    created_at bigint NOT NULL,
    last_active_at bigint NOT NULL
);
CREATE INDEX antiphon_vector_stores_by_owner ON antiphon_vector_stores (owner, {row});
CREATE TABLE antiphon_file_batches (
    {row} {identity},
    id text NOT NULL UNIQUE,
    store text NOT NULL REFERENCES antiphon_vector_stores (id) ON DELETE CASCADE,
    created_at bigint NOT NULL,
    cancelled boolean NOT NULL DEFAULT false
);
CREATE INDEX antiphon_file_batches_by_store ON antiphon_file_batches (store);
CREATE TABLE antiphon_store_files (
    {row} {identity},
    store text NOT NULL REFERENCES antiphon_vector_stores (id) ON DELETE CASCADE,
    id text NOT NULL REFERENCES antiphon_files (id) ON DELETE CASCADE,
    batch bigint REFERENCES antiphon_file_batches ({row}) ON DELETE SET NULL,
    created_at bigint NOT NULL,
    status text NOT NULL DEFAULT 'in_progress',
    error_code text,
    error_message text,
    usage_bytes bigint NOT NULL DEFAULT 0,
    attributes text,
    max_tokens integer NOT NULL,
    overlap integer NOT NULL,
    claim text,
    claimed_until timestamptz NOT NULL DEFAULT '-infinity',
    attempts integer NOT NULL DEFAULT 0,
    UNIQUE (store, id)
);
CREATE INDEX antiphon_store_files_by_file ON antiphon_store_files (id);
CREATE INDEX antiphon_store_files_by_batch ON antiphon_store_files (batch) WHERE batch IS NOT NULL;
"""

# Each owner's files wait in a separate queue; `key` names the key that added the file.
_QUEUES = """
ALTER TABLE antiphon_store_files ADD COLUMN queue text NOT NULL DEFAULT '';
ALTER TABLE antiphon_store_files ADD COLUMN key text NOT NULL DEFAULT '';
UPDATE antiphon_store_files
SET queue = (SELECT owner FROM antiphon_vector_stores AS stores WHERE stores.id = store) WHERE status = 'in_progress';
CREATE INDEX antiphon_store_files_by_queue ON antiphon_store_files (queue, {row}) WHERE status = 'in_progress';
DROP INDEX IF EXISTS antiphon_store_files_to_read;
CREATE TABLE antiphon_turns (queue text PRIMARY KEY, served timestamptz NOT NULL);
"""

_MULTIPART_UPLOADS = """
CREATE TABLE antiphon_multipart_uploads (
    {row} {identity},
    id text NOT NULL UNIQUE,
    owner text NOT NULL,
    filename text NOT NULL,
    purpose text NOT NULL,
    bytes bigint NOT NULL,
    created_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    lifetime integer,
    status text NOT NULL DEFAULT 'pending',
    received bigint NOT NULL DEFAULT 0,
    file text
);
CREATE INDEX antiphon_multipart_uploads_by_owner ON antiphon_multipart_uploads (owner) WHERE status = 'pending';
CREATE INDEX antiphon_multipart_uploads_by_expiry ON antiphon_multipart_uploads (expires_at) WHERE status = 'pending';
CREATE INDEX antiphon_multipart_uploads_by_time ON antiphon_multipart_uploads (created_at);
CREATE TABLE antiphon_upload_parts (
    id text PRIMARY KEY,
    upload text NOT NULL,
    bytes bigint NOT NULL,
    created_at bigint NOT NULL,
    file text,
    position integer
);
CREATE INDEX antiphon_upload_parts_by_upload ON antiphon_upload_parts (upload);
CREATE INDEX antiphon_upload_parts_by_file ON antiphon_upload_parts (file, position) WHERE file IS NOT NULL;
"""

# `/v1/batches` requests, deleted when their batch ends.
_BATCHES = """
CREATE TABLE antiphon_request_batches (
    {row} {identity},
    id text NOT NULL UNIQUE,
    owner text NOT NULL,
    key text NOT NULL,
    endpoint text NOT NULL,
    input_file text NOT NULL,
    created_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    metadata text,
    output_lifetime integer NOT NULL,
    status text NOT NULL DEFAULT 'validating',
    times text,
    errors text,
    total integer NOT NULL DEFAULT 0,
    completed integer NOT NULL DEFAULT 0,
    failed integer NOT NULL DEFAULT 0,
    output_file text,
    error_file text,
    model text,
    input_tokens bigint NOT NULL DEFAULT 0,
    cached_tokens bigint NOT NULL DEFAULT 0,
    output_tokens bigint NOT NULL DEFAULT 0,
    reasoning_tokens bigint NOT NULL DEFAULT 0,
    claim text,
    claimed_until float8 NOT NULL DEFAULT 0  -- Unix time, by the clock of the database
);
CREATE INDEX antiphon_request_batches_by_owner ON antiphon_request_batches (owner, {row});
CREATE INDEX antiphon_request_batches_open ON antiphon_request_batches ({row})
    WHERE status NOT IN ('completed', 'failed', 'expired', 'cancelled');
CREATE TABLE antiphon_batch_requests (
    batch text NOT NULL,
    line integer NOT NULL,
    custom_id text NOT NULL,
    body bytea,
    status text NOT NULL DEFAULT 'waiting',
    attempts integer NOT NULL DEFAULT 0,
    claim text,
    claimed_until float8 NOT NULL DEFAULT 0,
    result bytea,
    PRIMARY KEY (batch, line)
);
CREATE INDEX antiphon_batch_requests_waiting ON antiphon_batch_requests (batch, line) WHERE status = 'waiting';
CREATE INDEX antiphon_batch_requests_claimed ON antiphon_batch_requests (claim) WHERE claim IS NOT NULL;
"""

# The object is claimed by the row `file` or `part`, until that row is deleted.
_OBJECTS = """
CREATE TABLE antiphon_objects (
    content text PRIMARY KEY,
    file text REFERENCES antiphon_files (id) ON DELETE SET NULL,
    part text REFERENCES antiphon_upload_parts (id) ON DELETE SET NULL
);
CREATE INDEX antiphon_objects_by_file ON antiphon_objects (file) WHERE file IS NOT NULL;
CREATE INDEX antiphon_objects_by_part ON antiphon_objects (part) WHERE part IS NOT NULL;
CREATE INDEX antiphon_objects_unclaimed ON antiphon_objects (content) WHERE file IS NULL AND part IS NULL;
"""

# `checker` is the id of the store that decides whether a record still needs the attachment.
_ATTACHMENTS = """
CREATE TABLE antiphon_attachments (
    {row} {identity},
    id text NOT NULL UNIQUE,
    owner text NOT NULL,
    place text NOT NULL,
    name text NOT NULL,
    bytes bigint NOT NULL,
    created_at bigint NOT NULL,
    detail text NOT NULL,
    expires_at bigint,
    checker text,
    check_at bigint
);
CREATE INDEX antiphon_attachments_by_place ON antiphon_attachments (place, name);
CREATE INDEX antiphon_attachments_by_owner ON antiphon_attachments (owner);
CREATE INDEX antiphon_attachments_by_expiry ON antiphon_attachments (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX antiphon_attachments_by_check ON antiphon_attachments (check_at) WHERE check_at IS NOT NULL;
ALTER TABLE antiphon_objects ADD COLUMN attachment text REFERENCES antiphon_attachments (id) ON DELETE SET NULL;
CREATE INDEX antiphon_objects_by_attachment ON antiphon_objects (attachment) WHERE attachment IS NOT NULL;
DROP INDEX antiphon_objects_unclaimed;
CREATE INDEX antiphon_objects_unclaimed ON antiphon_objects (content)
WHERE file IS NULL AND part IS NULL AND attachment IS NULL;
"""

# In version order.
FILE_TABLES = (_FILES, _QUEUES, _MULTIPART_UPLOADS, _BATCHES, _OBJECTS, _ATTACHMENTS)
