-- Tidings, version 1: the road of one event. Everything lives in the schema `tidings`, every name is qualified.
-- The schema itself and the ledger `tidings.migration` are made by whoever applies this file (see README.md here).

-- One row: what is true of the whole database.
CREATE TABLE tidings.setting (
    only_row    boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    source      text COLLATE "C",                       -- the CloudEvents source of this database; set once, by the first relay
    partitions  integer NOT NULL CHECK (partitions BETWEEN 1 AND 1024)
);
INSERT INTO tidings.setting (partitions) VALUES (4);

-- The authority for versions, and the row lock that orders the writers of one aggregate. Never retired: a version 1
-- that comes again would look old.
CREATE TABLE tidings.aggregate (
    type          text COLLATE "C" NOT NULL,
    id            text COLLATE "C" NOT NULL,
    head_version  bigint NOT NULL DEFAULT 0,
    partition     integer NOT NULL,
    PRIMARY KEY (type, id)
) WITH (fillfactor = 70);

-- Immutable. CACHE 1: with a larger cache two sessions hand out numbers that interleave out of commit order.
CREATE TABLE tidings.event (
    seq             bigint GENERATED ALWAYS AS IDENTITY (CACHE 1) PRIMARY KEY,
    id              text COLLATE "C" NOT NULL UNIQUE CHECK (octet_length(id) BETWEEN 1 AND 256),
    type            text COLLATE "C" NOT NULL CHECK (octet_length(type) BETWEEN 1 AND 256),
    schema_version  integer NOT NULL CHECK (schema_version > 0),
    kind            text COLLATE "C" NOT NULL CHECK (kind IN ('event', 'command')),
    recipient       text COLLATE "C" CHECK (octet_length(recipient) BETWEEN 1 AND 256),
    aggregate_type  text COLLATE "C" CHECK (octet_length(aggregate_type) BETWEEN 1 AND 256),
    aggregate_id    text COLLATE "C" CHECK (octet_length(aggregate_id) BETWEEN 1 AND 256),
    version         bigint,
    previous        bigint,                             -- the version before; null for the first
    partition       integer NOT NULL,
    content_type    text NOT NULL,
    data            bytea NOT NULL,                     -- byte-exact, whatever it is
    headers         jsonb,                              -- the user's own, an object of strings
    correlation_id  text,
    causation_id    text,
    traceparent     text,
    tracestate      text,
    occurred_at     timestamptz NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now(),
    not_before      timestamptz,
    UNIQUE (aggregate_type, aggregate_id, version),
    CHECK ((aggregate_type IS NULL) = (aggregate_id IS NULL) AND (aggregate_type IS NULL) = (version IS NULL)),
    CHECK (kind = 'event' OR (recipient IS NOT NULL AND aggregate_type IS NULL)),
    CHECK (kind = 'command' OR recipient IS NULL)
);

CREATE TYPE tidings.pending_state AS ENUM ('ready', 'retrying', 'delayed', 'dead', 'tombstone');

-- The duty to publish one event. Narrow: a held snapshot leaves only narrow dead rows behind.
CREATE TABLE tidings.pending (
    partition        integer NOT NULL,
    seq              bigint NOT NULL,
    lane             bigint NOT NULL,                   -- hash of the aggregate, or of the id where there is none
    id_hash          bigint NOT NULL,                   -- a reused seq never confirms another event
    state            tidings.pending_state NOT NULL DEFAULT 'ready',
    attempts         integer NOT NULL DEFAULT 0,
    next_attempt_at  timestamptz,
    last_error       text,
    PRIMARY KEY (partition, seq)
);
CREATE INDEX pending_lane ON tidings.pending (partition, lane, seq);
-- What may hold a lane.
CREATE INDEX pending_held ON tidings.pending (partition, lane, seq) WHERE state <> 'ready';

-- The evidence that the broker stored an event. An event is never deleted because it was published.
CREATE TABLE tidings.confirmation (
    seq           bigint NOT NULL,
    partition     integer NOT NULL,
    incarnation   bigint NOT NULL,                      -- the stream's creation time, nanoseconds since 1970
    stream_seq    bigint NOT NULL,
    epoch         bigint NOT NULL,
    confirmed_at  timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX confirmation_seq ON tidings.confirmation (seq);

CREATE TABLE tidings.partition (
    id                  integer PRIMARY KEY,
    owner               uuid,
    epoch               bigint NOT NULL DEFAULT 0,      -- grows by one with each change of owner
    lease_until         timestamptz,                    -- of the owner; without one, since when there is none
    lease_ttl           interval,                       -- as it was renewed: a lease longer than that means a clock was set back
    anchor_incarnation  bigint,                         -- of the last confirmation
    anchor_stream_seq   bigint,
    anchor_id_hash      bigint
) WITH (fillfactor = 20);
INSERT INTO tidings.partition (id) SELECT generate_series(0, 3);

-- The relays of this database.
CREATE TABLE tidings.node (
    id            uuid PRIMARY KEY,
    name          text NOT NULL,
    able          boolean NOT NULL,                     -- its relay is on and it reaches the broker
    started_at    timestamptz NOT NULL DEFAULT now(),
    heartbeat_at  timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);

CREATE TABLE tidings.dead_letter (
    seq          bigint PRIMARY KEY,
    partition    integer NOT NULL,
    event_id     text COLLATE "C" NOT NULL,
    reason       text NOT NULL,
    attempts     integer NOT NULL,
    epoch        bigint NOT NULL,
    died_at      timestamptz NOT NULL DEFAULT now(),
    resolved_at  timestamptz,
    resolution   text
);
CREATE INDEX dead_letter_unresolved ON tidings.dead_letter (died_at) WHERE resolved_at IS NULL;

-- The consumer's side. A generation is one life of a consumer's name; rows of an older one count for nothing.
CREATE TABLE tidings.consumer (
    name           text COLLATE "C" PRIMARY KEY,
    generation     integer NOT NULL DEFAULT 1,
    source         text COLLATE "C" NOT NULL,
    registered_at  timestamptz NOT NULL DEFAULT now()
);

CREATE TYPE tidings.inbox_outcome AS ENUM ('open', 'applied', 'passed', 'discarded', 'dead');

CREATE TABLE tidings.inbox (
    consumer     text COLLATE "C" NOT NULL,
    generation   integer NOT NULL,
    source       text COLLATE "C" NOT NULL,
    event_id     text COLLATE "C" NOT NULL,
    outcome      tidings.inbox_outcome NOT NULL DEFAULT 'open',
    xid          xid8 NOT NULL DEFAULT pg_current_xact_id(),
    received_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, generation, source, event_id)
) WITH (fillfactor = 90);

-- Failed attempts of the event itself, across all processes. Gone once it is applied or dead.
CREATE TABLE tidings.attempt (
    consumer    text COLLATE "C" NOT NULL,
    generation  integer NOT NULL,
    source      text COLLATE "C" NOT NULL,
    event_id    text COLLATE "C" NOT NULL,
    attempts    integer NOT NULL,
    last_error  text NOT NULL,
    first_at    timestamptz NOT NULL DEFAULT now(),
    last_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, generation, source, event_id)
);

-- The whole message, so that it can be applied after the broker has forgotten it.
CREATE TABLE tidings.consumer_dead_letter (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer     text COLLATE "C" NOT NULL,
    generation   integer NOT NULL,
    source       text COLLATE "C" NOT NULL,
    event_id     text COLLATE "C" NOT NULL,             -- stream/sequence where the message has no usable id
    class        text NOT NULL,
    reason       text NOT NULL,
    attempts     integer NOT NULL,
    stream       text NOT NULL,
    stream_seq   bigint NOT NULL,
    subject      text NOT NULL,
    headers      json NOT NULL,                         -- json, not jsonb: a foreign header may hold what jsonb refuses
    data         bytea NOT NULL,
    died_at      timestamptz NOT NULL DEFAULT now(),
    resolved_at  timestamptz,
    resolution   text,
    UNIQUE (consumer, generation, source, event_id)
);
CREATE INDEX consumer_dead_letter_unresolved ON tidings.consumer_dead_letter (consumer, died_at) WHERE resolved_at IS NULL;

-- Each event in the words of the glossary.
CREATE VIEW tidings.event_state AS
SELECT e.seq, e.id, e.type, e.aggregate_type, e.aggregate_id, e.version, e.partition, e.created_at,
       CASE WHEN p.seq IS NOT NULL THEN p.state::text
            WHEN c.seq IS NOT NULL THEN 'confirmed'
            ELSE 'discarded' END AS state,
       p.attempts, p.next_attempt_at, p.last_error, c.stream_seq, c.confirmed_at
  FROM tidings.event e
  LEFT JOIN tidings.pending p ON p.partition = e.partition AND p.seq = e.seq
  LEFT JOIN LATERAL (SELECT * FROM tidings.confirmation c WHERE c.seq = e.seq ORDER BY c.confirmed_at DESC LIMIT 1) c ON true;

-- The lane of an aggregate, or of an event without one. A space stands in no name, so the two never meet.
CREATE FUNCTION tidings.lane(aggregate_type text, aggregate_id text, event_id text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT hashtextextended(coalesce($1 || ' ' || $2, ' ' || $3) COLLATE "C", 0)
$$;

CREATE FUNCTION tidings.partition_of(lane bigint, partitions integer) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ((($1 % $2) + $2) % $2)::integer
$$;

CREATE TYPE tidings.appended AS (
    seq       bigint,
    version   bigint,
    previous  bigint,
    outcome   text                                      -- 'appended', or 'already appended': same id, same content
);

-- Raised where an append cannot be: the constraint's name says which, in any language of the server.
CREATE FUNCTION tidings.refuse_append(field text, event_id text, message text, hint text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'integrity_constraint_violation',
        MESSAGE = format('tidings: cannot append event %L: %s', event_id, message),
        HINT = hint, SCHEMA = 'tidings', TABLE = 'event', CONSTRAINT = 'tidings_' || field;
END $$;

-- An id that exists already: the same content is nothing new, other content is an error.
CREATE FUNCTION tidings.same_or_refuse(event_id text, type text, data bytea, recipient text, aggregate_type text, aggregate_id text)
RETURNS tidings.appended
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    result  tidings.appended;
BEGIN
    SELECT e.seq, e.version, e.previous, 'already appended' INTO result FROM tidings.event e
     WHERE e.id = same_or_refuse.event_id AND e.type = same_or_refuse.type AND e.data = same_or_refuse.data
       AND e.recipient IS NOT DISTINCT FROM same_or_refuse.recipient
       AND e.aggregate_type IS NOT DISTINCT FROM same_or_refuse.aggregate_type
       AND e.aggregate_id IS NOT DISTINCT FROM same_or_refuse.aggregate_id;
    IF NOT FOUND THEN
        PERFORM tidings.refuse_append('id_conflict', same_or_refuse.event_id, 'the id is taken by an event with other content',
                                      'An id names one event for ever: use a new id, or append the same content again.');
    END IF;
    RETURN result;
END $$;

-- Many events in one call: two statements of locks in one order, one of inserts, whatever their number.
--
-- The order of locks is what keeps any two calls from deadlocking: first the aggregates by type and id, then the ids
-- of the events. `seq` is handed out by place in the call beforehand, since within a lane it must follow the version.
CREATE FUNCTION tidings.append_batch(
    ids text[], types text[], datas bytea[],
    aggregate_types text[], aggregate_ids text[], versions bigint[],
    schema_versions integer[], recipients text[], content_types text[], headers jsonb[],
    correlation_ids text[], causation_ids text[], traceparents text[], tracestates text[], occurred_ats timestamptz[]
) RETURNS SETOF tidings.appended
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    place       integer;
    partitions  integer := (SELECT s.partitions FROM tidings.setting s);
    bad         record;
    fresh       boolean[];                              -- by place: not known before this call
    raced       boolean[];
    seqs        bigint[];
    given       bigint[];
    befores     bigint[];
BEGIN
    INSERT INTO tidings.aggregate (type, id, partition)
    SELECT u.t, u.i, tidings.partition_of(tidings.lane(u.t, u.i, NULL), partitions)
      FROM (SELECT DISTINCT t COLLATE "C" AS t, i COLLATE "C" AS i FROM unnest(aggregate_types, aggregate_ids) AS x(t, i) WHERE t IS NOT NULL) u
     WHERE NOT EXISTS (SELECT 1 FROM tidings.aggregate a WHERE a.type = u.t AND a.id = u.i)
     ORDER BY u.t, u.i
    ON CONFLICT (type, id) DO NOTHING;

    PERFORM 1 FROM tidings.aggregate a
      WHERE (a.type, a.id) IN (SELECT t COLLATE "C", i COLLATE "C" FROM unnest(aggregate_types, aggregate_ids) AS x(t, i) WHERE t IS NOT NULL)
      ORDER BY a.type, a.id FOR NO KEY UPDATE;

    -- An id known already, or twice in this call: the same content is nothing new, other content is an error. Judged
    -- before any version, and moves no head: a head moved for nothing is a version that never exists.
    SELECT array_agg(e.id IS NULL AND n.ord = n.first ORDER BY n.ord),
           array_agg(e.seq ORDER BY n.ord), array_agg(e.version ORDER BY n.ord), array_agg(e.previous ORDER BY n.ord)
      INTO fresh, seqs, given, befores
      FROM (SELECT x.id, x.ord, min(x.ord) OVER (PARTITION BY x.id COLLATE "C") AS first
              FROM unnest(ids) WITH ORDINALITY AS x(id, ord)) n
      LEFT JOIN tidings.event e ON e.id = n.id;

    SELECT x.id INTO bad
      FROM unnest(ids, types, datas, recipients, aggregate_types, aggregate_ids) WITH ORDINALITY AS x(id, type, data, recipient, at, ai, ord)
      LEFT JOIN tidings.event e ON e.id = x.id
      LEFT JOIN LATERAL (SELECT f.* FROM unnest(ids, types, datas, recipients, aggregate_types, aggregate_ids)
                                         WITH ORDINALITY AS f(id, type, data, recipient, at, ai, ord)
                          WHERE NOT fresh[x.ord] AND e.id IS NULL AND f.id = x.id ORDER BY f.ord LIMIT 1) f ON true
     WHERE NOT fresh[x.ord]
       AND (x.type, x.data, x.recipient, x.at, x.ai) IS DISTINCT FROM
           (coalesce(e.type, f.type), coalesce(e.data, f.data), coalesce(e.recipient, f.recipient),
            coalesce(e.aggregate_type, f.at), coalesce(e.aggregate_id, f.ai))
     LIMIT 1;
    IF FOUND THEN
        PERFORM tidings.refuse_append('id_conflict', bad.id, 'the id is taken by an event with other content',
                                      'An id names one event for ever: use a new id, or append the same content again.');
    END IF;

    -- Explicit versions start a new run; the others count on from the event before them in the call, or from the head.
    WITH src AS (
        SELECT x.ord, x.at, x.ai, x.v, a.head_version AS head,
               count(x.v) OVER (PARTITION BY x.at, x.ai ORDER BY x.ord) AS run
          FROM unnest(aggregate_types, aggregate_ids, versions) WITH ORDINALITY AS x(at, ai, v, ord)
          JOIN tidings.aggregate a ON a.type = x.at AND a.id = x.ai
         WHERE fresh[x.ord]
    ), numbered AS (
        SELECT s.*, coalesce(first_value(s.v) OVER w, s.head + 1) + row_number() OVER w - 1 AS version
          FROM src s WINDOW w AS (PARTITION BY s.at, s.ai, s.run ORDER BY s.ord)
    ), placed AS (
        SELECT n.ord, n.version, n.head, lag(n.version, 1, n.head) OVER (PARTITION BY n.at, n.ai ORDER BY n.ord) AS before
          FROM numbered n
    )
    SELECT array_agg(CASE WHEN fresh[o.ord] THEN p.version ELSE given[o.ord] END ORDER BY o.ord),
           array_agg(CASE WHEN fresh[o.ord] THEN p.before ELSE befores[o.ord] END ORDER BY o.ord)
      INTO given, befores
      FROM generate_subscripts(ids, 1) AS o(ord) LEFT JOIN placed p ON p.ord = o.ord;

    SELECT o.ord, given[o.ord] AS version, befores[o.ord] AS before INTO bad
      FROM generate_subscripts(ids, 1) AS o(ord)
     WHERE fresh[o.ord] AND (given[o.ord] <= befores[o.ord] OR (given[o.ord] IS NULL AND versions[o.ord] IS NOT NULL))
     ORDER BY o.ord LIMIT 1;
    IF FOUND AND bad.version IS NULL THEN
        PERFORM tidings.refuse_append('version_without_aggregate', ids[bad.ord],
            format('version %s is given, but the event has no aggregate', versions[bad.ord]),
            'Versions count within an aggregate: give its type and id, or leave the version out.');
    ELSIF FOUND THEN
        PERFORM tidings.refuse_append('version_conflict', ids[bad.ord],
            format('version %s is not above the head %s of aggregate %L %L', bad.version, bad.before, aggregate_types[bad.ord], aggregate_ids[bad.ord]),
            'Another writer was faster, or the version is wrong: read the aggregate again, or leave the version out.');
    END IF;

    FOR place IN 1 .. cardinality(ids) LOOP
        IF fresh[place] THEN
            seqs[place] := nextval('tidings.event_seq_seq');
            befores[place] := nullif(befores[place], 0);
        END IF;
    END LOOP;

    WITH src AS (
        SELECT x.*, coalesce(a.partition, tidings.partition_of(tidings.lane(NULL, NULL, x.id), partitions)) AS partition
          FROM unnest(ids, types, datas, aggregate_types, aggregate_ids, given, befores, seqs, schema_versions, recipients,
                      content_types, headers, correlation_ids, causation_ids, traceparents, tracestates, occurred_ats)
               WITH ORDINALITY AS x(id, type, data, at, ai, version, previous, seq, schema_version, recipient,
                      content_type, headers, correlation_id, causation_id, traceparent, tracestate, occurred_at, ord)
          LEFT JOIN tidings.aggregate a ON a.type = x.at AND a.id = x.ai
         WHERE fresh[x.ord]
    ), inserted AS (
        INSERT INTO tidings.event (seq, id, type, schema_version, kind, recipient, aggregate_type, aggregate_id, version, previous,
               partition, content_type, data, headers, correlation_id, causation_id, traceparent, tracestate, occurred_at)
        OVERRIDING SYSTEM VALUE
        SELECT s.seq, s.id, s.type, s.schema_version, CASE WHEN s.recipient IS NULL THEN 'event' ELSE 'command' END, s.recipient,
               s.at, s.ai, s.version, s.previous, s.partition, s.content_type, s.data, s.headers,
               s.correlation_id, s.causation_id, s.traceparent, s.tracestate, coalesce(s.occurred_at, now())
          FROM src s ORDER BY s.id COLLATE "C"
        ON CONFLICT (id) DO NOTHING
        RETURNING seq, id, aggregate_type, aggregate_id, partition, version
    ), pended AS (
        INSERT INTO tidings.pending (partition, seq, lane, id_hash)
        SELECT i.partition, i.seq, tidings.lane(i.aggregate_type, i.aggregate_id, i.id), hashtextextended(i.id, 0) FROM inserted i
    ), headed AS (
        UPDATE tidings.aggregate a SET head_version = m.version
          FROM (SELECT i.aggregate_type AS t, i.aggregate_id AS i, max(i.version) AS version FROM inserted i
                 WHERE i.aggregate_type IS NOT NULL GROUP BY 1, 2) m
         WHERE a.type = m.t AND a.id = m.i
    )
    SELECT array_agg(fresh[o.ord] AND i.seq IS NULL ORDER BY o.ord) INTO raced
      FROM generate_subscripts(ids, 1) AS o(ord) LEFT JOIN inserted i ON i.seq = seqs[o.ord];

    -- Raced: another transaction inserted the id while we waited for it. Such an event can only be an unordered one; in
    -- an aggregate it was visible above, since whoever wrote it held the lock that we hold now.
    FOR place IN 1 .. cardinality(ids) LOOP
        IF raced[place] THEN
            PERFORM tidings.same_or_refuse(ids[place], types[place], datas[place], recipients[place],
                                           aggregate_types[place], aggregate_ids[place]);
        END IF;
    END LOOP;

    RETURN QUERY
    SELECT e.seq, e.version, e.previous,
           CASE WHEN fresh[o.ord] AND NOT raced[o.ord] THEN 'appended' ELSE 'already appended' END
      FROM generate_subscripts(ids, 1) AS o(ord) JOIN tidings.event e ON e.id = ids[o.ord]
     ORDER BY o.ord;
END $$;

-- One event, for any language: SELECT * FROM tidings.append('orders.created', convert_to('{"n":1}', 'UTF8'),
-- aggregate_type => 'order', aggregate_id => 'order-7'). Call it in the transaction that makes the event true.
CREATE FUNCTION tidings.append(
    type text, data bytea, id text DEFAULT gen_random_uuid()::text,
    aggregate_type text DEFAULT NULL, aggregate_id text DEFAULT NULL, version bigint DEFAULT NULL,
    schema_version integer DEFAULT 1, recipient text DEFAULT NULL, content_type text DEFAULT 'application/json',
    headers jsonb DEFAULT NULL, correlation_id text DEFAULT NULL, causation_id text DEFAULT NULL,
    traceparent text DEFAULT NULL, tracestate text DEFAULT NULL, occurred_at timestamptz DEFAULT NULL
) RETURNS tidings.appended
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    result  tidings.appended;
    part    integer;
    lane    bigint := tidings.lane(append.aggregate_type, append.aggregate_id, append.id);
BEGIN
    IF append.version IS NOT NULL THEN
        SELECT * INTO result FROM tidings.append_batch(
            ARRAY[append.id], ARRAY[append.type], ARRAY[append.data], ARRAY[append.aggregate_type], ARRAY[append.aggregate_id],
            ARRAY[append.version], ARRAY[append.schema_version], ARRAY[append.recipient], ARRAY[append.content_type],
            ARRAY[append.headers], ARRAY[append.correlation_id], ARRAY[append.causation_id], ARRAY[append.traceparent],
            ARRAY[append.tracestate], ARRAY[append.occurred_at]);
        RETURN result;
    END IF;

    -- The short way: the next version of one aggregate. The head is updated, not only locked, so that a writer at
    -- REPEATABLE READ gets a serialization failure instead of a fork.
    IF append.aggregate_type IS NOT NULL AND append.aggregate_id IS NOT NULL THEN
        UPDATE tidings.aggregate a SET head_version = a.head_version + 1
         WHERE a.type = append.aggregate_type AND a.id = append.aggregate_id
        RETURNING a.head_version, a.partition INTO result.version, part;
        IF NOT FOUND THEN
            INSERT INTO tidings.aggregate (type, id, partition)
            SELECT append.aggregate_type, append.aggregate_id, tidings.partition_of(lane, s.partitions) FROM tidings.setting s
            ON CONFLICT (type, id) DO NOTHING;
            UPDATE tidings.aggregate a SET head_version = a.head_version + 1
             WHERE a.type = append.aggregate_type AND a.id = append.aggregate_id
            RETURNING a.head_version, a.partition INTO result.version, part;
        END IF;
        result.previous := nullif(result.version - 1, 0);
    ELSE
        SELECT tidings.partition_of(lane, s.partitions) INTO part FROM tidings.setting s;
    END IF;

    INSERT INTO tidings.event (id, type, schema_version, kind, recipient, aggregate_type, aggregate_id, version, previous,
           partition, content_type, data, headers, correlation_id, causation_id, traceparent, tracestate, occurred_at)
    VALUES (append.id, append.type, append.schema_version, CASE WHEN append.recipient IS NULL THEN 'event' ELSE 'command' END,
            append.recipient, append.aggregate_type, append.aggregate_id, result.version, result.previous, part,
            append.content_type, append.data, append.headers, append.correlation_id, append.causation_id,
            append.traceparent, append.tracestate, coalesce(append.occurred_at, now()))
    ON CONFLICT (id) DO NOTHING
    RETURNING seq INTO result.seq;

    IF result.seq IS NULL THEN
        -- The lock is ours, so the head goes back to where it was: a version handed out for nothing never exists.
        UPDATE tidings.aggregate a SET head_version = a.head_version - 1
         WHERE a.type = append.aggregate_type AND a.id = append.aggregate_id;
        RETURN tidings.same_or_refuse(append.id, append.type, append.data, append.recipient,
                                      append.aggregate_type, append.aggregate_id);
    END IF;

    INSERT INTO tidings.pending (partition, seq, lane, id_hash) VALUES (part, result.seq, lane, hashtextextended(append.id, 0));
    result.outcome := 'appended';
    RETURN result;
END $$;
