-- Removes everything of version 1. The ledger and the schema stay: they belong to whoever applies this file.
DROP FUNCTION tidings.append, tidings.append_batch, tidings.same_or_refuse, tidings.refuse_append;
DROP TYPE tidings.appended;
DROP FUNCTION tidings.partition_of, tidings.lane;
DROP VIEW tidings.event_state;
DROP TABLE tidings.consumer_dead_letter, tidings.attempt, tidings.inbox, tidings.consumer,
           tidings.dead_letter, tidings.node, tidings.partition, tidings.confirmation, tidings.pending,
           tidings.event, tidings.aggregate, tidings.setting;
DROP TYPE tidings.inbox_outcome, tidings.pending_state;
