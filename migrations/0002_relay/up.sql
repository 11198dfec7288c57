-- Tidings, version 2: a relay whose cost does not grow with what is held.

-- What holds a lane is found by its lane now, whatever its state; these two find what has come due. Whoever changes a
-- row that is there already (redrive, discard) sets next_attempt_at with it, so that it is found at once.
DROP INDEX tidings.pending_held;
CREATE INDEX pending_due ON tidings.pending (partition, next_attempt_at) WHERE next_attempt_at IS NOT NULL AND state <> 'delayed';
CREATE INDEX pending_delayed ON tidings.pending (partition, next_attempt_at) WHERE state = 'delayed';

-- The evidence of the last minutes, for a broker that lost what it had confirmed. Rows come in the order of time.
CREATE INDEX confirmation_time ON tidings.confirmation USING brin (confirmed_at, stream_seq) WITH (pages_per_range = 16, autosummarize = on);
