-- Removes what version 4 brought. Retired partitions stay as rows: programs of before serve them like the others.
ALTER TABLE tidings.partition DROP COLUMN retired_at;
ALTER TABLE tidings.setting DROP COLUMN paused_at, DROP COLUMN paused_by, DROP COLUMN paused_reason;
ALTER TABLE tidings.node DROP COLUMN ttl;
