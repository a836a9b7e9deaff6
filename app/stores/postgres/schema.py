"""
PostgreSQL tables and functions, and their migrations.

Atomic operations are functions: one round trip, in which each statement sees earlier commits. A function first locks
the row of its bucket, run or pool.
"""

from __future__ import annotations

from app.storage.tables import Connection, Migrations, migrate

_LOCK = 0x616E7469  # for migrations

_BUCKETS = """
CREATE TABLE antiphon_buckets (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE,
    expires timestamptz NOT NULL
);
CREATE INDEX antiphon_buckets_by_expiry ON antiphon_buckets (expires);
CREATE TABLE antiphon_records (
    bucket bigint NOT NULL REFERENCES antiphon_buckets (id) ON DELETE CASCADE,
    name text NOT NULL,
    entry bytea,
    record bytea NOT NULL,
    PRIMARY KEY (bucket, name)
);
CREATE TABLE antiphon_listed (
    owner text NOT NULL,
    position bigint GENERATED ALWAYS AS IDENTITY,
    bucket bigint NOT NULL,
    name text NOT NULL,
    PRIMARY KEY (owner, position),
    UNIQUE (bucket, name),
    FOREIGN KEY (bucket, name) REFERENCES antiphon_records (bucket, name) ON DELETE CASCADE
);

-- Records to put and delete are arrays; `_put` and `_deleted` hold each record's bucket, as an index into `_buckets`.
CREATE FUNCTION antiphon_apply(
    _ttl float8, _slack float8, _owner text, _buckets text[], _givens text[],
    _put int[], _put_names text[], _records bytea[], _entries bytea[], _deleted int[], _deleted_names text[]
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    place int;
    until timestamptz := clock_timestamp() + make_interval(secs => _ttl);
    this antiphon_buckets;
    at bigint;
    there bigint[] := array_fill(NULL::bigint, ARRAY[cardinality(_buckets)]);
BEGIN
    -- In order, to prevent deadlocks between concurrent changes to the same buckets.
    FOR place IN SELECT n FROM generate_subscripts(_buckets, 1) n ORDER BY _buckets[n] LOOP
        SELECT * INTO this FROM antiphon_buckets
        WHERE name = _buckets[place] AND expires > clock_timestamp() FOR UPDATE;
        IF _givens[place] IS NOT NULL AND NOT EXISTS (
            SELECT FROM antiphon_records WHERE bucket = this.id AND name = _givens[place]
        ) THEN
            RETURN false;
        END IF;
        IF this.expires > until - make_interval(secs => _slack) THEN
            there[place] := this.id;  -- exists, and need not be renewed
        END IF;
    END LOOP;
    FOR place IN SELECT n FROM generate_subscripts(_buckets, 1) n ORDER BY _buckets[n] LOOP
        at := there[place];
        IF at IS NULL THEN
            DELETE FROM antiphon_buckets WHERE name = _buckets[place] AND expires <= clock_timestamp();
            INSERT INTO antiphon_buckets (name, expires) VALUES (_buckets[place], until)
            ON CONFLICT (name) DO UPDATE SET expires = excluded.expires RETURNING id INTO at;
        END IF;
        INSERT INTO antiphon_records AS stored (bucket, name, entry, record)
        SELECT at, _put_names[n], _entries[n], _records[n]
        FROM generate_subscripts(_put, 1) n WHERE _put[n] = place
        ON CONFLICT (bucket, name) DO UPDATE
        SET entry = coalesce(excluded.entry, stored.entry), record = excluded.record;
        INSERT INTO antiphon_listed (owner, bucket, name)
        SELECT _owner, at, _put_names[n]
        FROM generate_subscripts(_put, 1) n WHERE _put[n] = place AND _entries[n] IS NOT NULL
        ON CONFLICT (bucket, name) DO NOTHING;
        IF place = ANY (_deleted) THEN
            DELETE FROM antiphon_records WHERE bucket = at AND name IN (
                SELECT _deleted_names[n] FROM generate_subscripts(_deleted, 1) n WHERE _deleted[n] = place
            );
            DELETE FROM antiphon_buckets WHERE id = at
            AND NOT EXISTS (SELECT FROM antiphon_records WHERE bucket = at);
        END IF;
    END LOOP;
    RETURN true;
END $$;

CREATE FUNCTION antiphon_delete(_bucket text, _name text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    this bigint;
    deleted boolean;
BEGIN
    SELECT id INTO this FROM antiphon_buckets WHERE name = _bucket AND expires > clock_timestamp() FOR UPDATE;
    DELETE FROM antiphon_records WHERE bucket = this AND name = _name;
    deleted := FOUND;
    DELETE FROM antiphon_buckets WHERE id = this AND NOT EXISTS (SELECT FROM antiphon_records WHERE bucket = this);
    RETURN deleted;
END $$;
"""

# For waiting readers; a notification names the run.
CHANNEL = "antiphon_events"

_RUNS = f"""
CREATE TABLE antiphon_runs (
    bucket text NOT NULL,
    response text NOT NULL,
    worker text NOT NULL,
    leased timestamptz NOT NULL,
    expires timestamptz NOT NULL,
    cancelled boolean NOT NULL DEFAULT false,
    ended boolean NOT NULL DEFAULT false,
    last bigint NOT NULL DEFAULT -1,
    PRIMARY KEY (bucket, response)
);
CREATE INDEX antiphon_runs_by_lease ON antiphon_runs (leased) WHERE NOT ended;
CREATE INDEX antiphon_runs_by_expiry ON antiphon_runs (expires);
CREATE TABLE antiphon_batches (
    bucket text NOT NULL,
    response text NOT NULL,
    last bigint NOT NULL,
    first bigint NOT NULL,
    ends boolean NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (bucket, response, last),
    FOREIGN KEY (bucket, response) REFERENCES antiphon_runs (bucket, response) ON DELETE CASCADE
);

CREATE FUNCTION antiphon_run_begin(_bucket text, _response text, _worker text, _lease float8, _ttl float8)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM antiphon_runs WHERE bucket = _bucket AND response = _response;
    INSERT INTO antiphon_runs (bucket, response, worker, leased, expires) VALUES (
        _bucket, _response, _worker,
        clock_timestamp() + make_interval(secs => _lease), clock_timestamp() + make_interval(secs => _ttl)
    );
END $$;

-- Without data only the lease is renewed.
CREATE FUNCTION antiphon_run_append(
    _bucket text, _response text, _worker text, _lease float8, _ttl float8,
    _first bigint DEFAULT NULL, _last bigint DEFAULT NULL, _ends boolean DEFAULT false, _data bytea DEFAULT NULL
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    this antiphon_runs;
    added boolean;
BEGIN
    SELECT * INTO this FROM antiphon_runs
    WHERE bucket = _bucket AND response = _response AND expires > clock_timestamp() FOR UPDATE;
    IF NOT FOUND OR this.worker <> _worker THEN
        RETURN 'lost';
    END IF;
    IF NOT this.ended THEN
        added := _data IS NOT NULL AND _first > this.last;
        IF added THEN
            INSERT INTO antiphon_batches (bucket, response, last, first, ends, data)
            VALUES (_bucket, _response, _last, _first, _ends, _data);
            PERFORM pg_notify('{CHANNEL}', _bucket || ' ' || _response);
        END IF;
        UPDATE antiphon_runs SET
            last = CASE WHEN added THEN _last ELSE last END,
            ended = added AND _ends,
            leased = clock_timestamp() + make_interval(secs => _lease),
            expires = clock_timestamp() + make_interval(secs => _ttl)
        WHERE bucket = _bucket AND response = _response;
    END IF;
    RETURN CASE WHEN this.cancelled THEN 'cancelled' ELSE 'held' END;
END $$;

CREATE FUNCTION antiphon_run_claim(_bucket text, _response text, _worker text, _lease float8, _ttl float8)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    this antiphon_runs;
BEGIN
    -- The row to lock may not exist.
    PERFORM pg_advisory_xact_lock(hashtextextended('antiphon ' || _bucket || ' ' || _response, 0));
    SELECT * INTO this FROM antiphon_runs
    WHERE bucket = _bucket AND response = _response AND expires > clock_timestamp() FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM antiphon_run_begin(_bucket, _response, _worker, _lease, _ttl);
        RETURN true;
    END IF;
    IF this.ended OR this.leased > clock_timestamp() THEN
        RETURN false;
    END IF;
    UPDATE antiphon_runs SET
        worker = _worker,
        leased = clock_timestamp() + make_interval(secs => _lease),
        expires = clock_timestamp() + make_interval(secs => _ttl)
    WHERE bucket = _bucket AND response = _response;
    RETURN true;
END $$;
"""

# Unlogged, because counters can be lost if the server crashes.
_COUNTERS = """
CREATE UNLOGGED TABLE antiphon_limits (
    owner text NOT NULL,
    bucket text NOT NULL,
    full_at timestamptz NOT NULL,
    PRIMARY KEY (owner, bucket)
);
CREATE UNLOGGED TABLE antiphon_slots (
    pool text NOT NULL,
    holder text NOT NULL,
    expires timestamptz NOT NULL,
    PRIMARY KEY (pool, holder)
);

-- Returns 1 if all tokens were consumed, otherwise 0; then the tokens that each bucket needs to be full.
CREATE FUNCTION antiphon_take(_owner text, _buckets text[], _limits float8[], _amounts float8[], _needs float8[])
RETURNS float8[] LANGUAGE plpgsql AS $$
DECLARE
    place int;
    at timestamptz;
    result float8[] := ARRAY[1.0];
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('antiphon limits ' || _owner, 0));
    at := clock_timestamp();
    FOR place IN 1 .. cardinality(_buckets) LOOP
        result := result || coalesce((
            SELECT greatest(0, extract(epoch FROM full_at - at)) * _limits[place] / 60
            FROM antiphon_limits WHERE owner = _owner AND bucket = _buckets[place]
        ), 0)::float8;
        IF _needs[place] > 0 AND result[place + 1] + _needs[place] > _limits[place] THEN
            result[1] := 0;
        END IF;
    END LOOP;
    IF result[1] = 1 THEN
        FOR place IN 1 .. cardinality(_buckets) LOOP
            result[place + 1] := result[place + 1] + _amounts[place];
            INSERT INTO antiphon_limits (owner, bucket, full_at) VALUES (
                _owner, _buckets[place], at + make_interval(secs => result[place + 1] * 60 / _limits[place])
            ) ON CONFLICT (owner, bucket) DO UPDATE SET full_at = excluded.full_at;
        END LOOP;
    END IF;
    RETURN result;
END $$;

CREATE FUNCTION antiphon_acquire(_pool text, _holder text, _limit numeric, _lease float8)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('antiphon slots ' || _pool, 0));
    DELETE FROM antiphon_slots WHERE pool = _pool AND expires <= clock_timestamp();
    IF (SELECT count(*) FROM antiphon_slots WHERE pool = _pool) >= _limit THEN
        RETURN false;
    END IF;
    INSERT INTO antiphon_slots VALUES (_pool, _holder, clock_timestamp() + make_interval(secs => _lease))
    ON CONFLICT (pool, holder) DO UPDATE SET expires = excluded.expires;
    RETURN true;
END $$;
"""

_USAGE = """
CREATE TABLE antiphon_usage (
    day date NOT NULL,
    key text NOT NULL,
    model text NOT NULL,
    backend text NOT NULL,
    requests bigint NOT NULL,
    input_tokens bigint NOT NULL,
    cached_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    reasoning_tokens bigint NOT NULL,
    cost bigint NOT NULL,
    PRIMARY KEY (key, day, model, backend)
);
CREATE TABLE antiphon_usage_batches (batch text PRIMARY KEY, added timestamptz NOT NULL DEFAULT clock_timestamp());
"""

_MIGRATIONS = Migrations([_BUCKETS + _RUNS + _COUNTERS, _USAGE])


async def migrate_store(connection: Connection) -> None:
    await migrate(connection, "antiphon_schema", _LOCK, _MIGRATIONS)
