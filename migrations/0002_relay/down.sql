DROP INDEX tidings.confirmation_time;
DROP INDEX tidings.pending_delayed;
DROP INDEX tidings.pending_due;
CREATE INDEX pending_held ON tidings.pending (partition, lane, seq) WHERE state <> 'ready';
