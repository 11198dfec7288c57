-- The schema `tidings` and its ledger: which migrations this database has. Safe to run again.
DO $$ BEGIN
    -- Asked first, since CREATE SCHEMA IF NOT EXISTS needs the right to create even where there is nothing to do.
    IF to_regnamespace('tidings') IS NULL THEN
        CREATE SCHEMA tidings;
    END IF;
END $$;
CREATE TABLE IF NOT EXISTS tidings.migration (
    version      integer PRIMARY KEY,
    name         text NOT NULL,
    serves_from  integer NOT NULL,                      -- the oldest version a program may know and still be served
    applied_at   timestamptz NOT NULL DEFAULT now()
);
