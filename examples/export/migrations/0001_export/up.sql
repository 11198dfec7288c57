-- The tables of the example `export`, beside the schema `tidings` in the same database: that is what lets a job, its
-- command and its event commit together. Safe to run again.
CREATE SCHEMA IF NOT EXISTS export;

-- What was asked for. The key is the promise: one intent of a client is one job, however often it is sent.
CREATE TABLE IF NOT EXISTS export.job (
    id               text PRIMARY KEY,
    idempotency_key  text NOT NULL UNIQUE CHECK (octet_length(idempotency_key) BETWEEN 1 AND 200),
    tenant           text NOT NULL,
    dataset          text NOT NULL,
    rows             integer NOT NULL,
    state            text NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'succeeded')),
    file             text,                              -- the result, a name in the folder of the worker
    created_at       timestamptz NOT NULL DEFAULT now(),
    completed_at     timestamptz,
    CHECK ((state = 'succeeded') = (file IS NOT NULL AND completed_at IS NOT NULL))
);
CREATE INDEX IF NOT EXISTS job_tenant ON export.job (tenant);

-- The effect of the consumer `statistics`: a counter, which would count an event twice that is applied twice.
CREATE TABLE IF NOT EXISTS export.statistics (
    tenant   text PRIMARY KEY,
    exports  bigint NOT NULL,
    rows     bigint NOT NULL
);

-- The effect of the consumer `search`. Nothing here is unique but the row's own number, on purpose: an event that is
-- applied twice would be found twice.
CREATE TABLE IF NOT EXISTS export.search_entry (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant  text NOT NULL,
    job_id  text NOT NULL,
    title   text NOT NULL,
    file    text NOT NULL
);
CREATE INDEX IF NOT EXISTS search_entry_tenant ON export.search_entry (tenant);
