-- Membership: nodes with leases of different length, relays that are paused, and another number of partitions.

-- How long the node's leases last: it is not gone before that, whatever the leases of whoever asks.
ALTER TABLE tidings.node ADD COLUMN ttl interval NOT NULL DEFAULT interval '15 seconds';

-- Since when all relays rest, by whom and why; null while they work.
ALTER TABLE tidings.setting
    ADD COLUMN paused_at      timestamptz,
    ADD COLUMN paused_by      text,
    ADD COLUMN paused_reason  text;

-- Not one of the number any more. The row stays, since its epoch and its anchor belong to the stream, which stays too;
-- and it is served as long as something is pending in it.
ALTER TABLE tidings.partition ADD COLUMN retired_at timestamptz;
