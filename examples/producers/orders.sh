#!/bin/sh
# A producer in plain SQL: an order, and the event that says so, in one transaction.
#
#   DATABASE_URL=postgres://user:password@host:port/name sh orders.sh order-7 1200
set -eu
: "${DATABASE_URL:?set it to the URL of the database that has the schema tidings}"
order=${1:?which order, for example order-7}
total=${2:?how much, in cents, for example 1200}

psql "$DATABASE_URL" --no-psqlrc --quiet --set=ON_ERROR_STOP=1 --set=order="$order" --set=total="$total" <<'SQL'
BEGIN;
CREATE TABLE IF NOT EXISTS public.orders (id text PRIMARY KEY, total bigint NOT NULL);
INSERT INTO public.orders VALUES (:'order', :'total');
-- If the transaction does not commit, there is no event; if it does, the event goes out, whatever dies meanwhile.
SELECT seq, version, outcome FROM tidings.append(
    type => 'orders.placed',
    data => convert_to(jsonb_build_object('order', :'order', 'total', :'total'::bigint)::text, 'UTF8'),
    aggregate_type => 'order',
    aggregate_id => :'order');
COMMIT;
SQL
