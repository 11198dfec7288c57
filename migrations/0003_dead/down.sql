-- Back to version 2. What waits for its time waits on, and is never moved: cancel or wait before you revert.
DROP FUNCTION tidings.cancel, tidings.append, tidings.append_batch, tidings.faulty_field, tidings.refuse_field;

ALTER TABLE tidings.event
    ADD CONSTRAINT event_id_check CHECK (octet_length(id) BETWEEN 1 AND 256),
    ADD CONSTRAINT event_type_check CHECK (octet_length(type) BETWEEN 1 AND 256),
    ADD CONSTRAINT event_schema_version_check CHECK (schema_version > 0),
    ADD CONSTRAINT event_kind_check CHECK (kind IN ('event', 'command')),
    ADD CONSTRAINT event_recipient_check CHECK (octet_length(recipient) BETWEEN 1 AND 256),
    ADD CONSTRAINT event_aggregate_type_check CHECK (octet_length(aggregate_type) BETWEEN 1 AND 256),
    ADD CONSTRAINT event_aggregate_id_check CHECK (octet_length(aggregate_id) BETWEEN 1 AND 256),
    ADD CONSTRAINT event_check CHECK ((aggregate_type IS NULL) = (aggregate_id IS NULL) AND (aggregate_type IS NULL) = (version IS NULL)),
    ADD CONSTRAINT event_check1 CHECK (kind = 'event' OR (recipient IS NOT NULL AND aggregate_type IS NULL)),
    ADD CONSTRAINT event_check2 CHECK (kind = 'command' OR recipient IS NULL);

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

DROP VIEW tidings.event_state;
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

DROP TABLE tidings.discarded;
ALTER TABLE tidings.dead_letter DROP COLUMN redriven, DROP COLUMN resolved_why, DROP COLUMN resolved_by;
ALTER TABLE tidings.event DROP COLUMN version_given;
