"""A producer in Python: an order, and the event that says so, in one transaction.

DATABASE_URL=postgres://user:password@host:port/name python3 orders.py order-8 1200

It needs psycopg: pip install "psycopg[binary]"
"""

import json
import os
import sys

try:
    import psycopg
except ModuleNotFoundError:
    sys.exit('orders.py needs psycopg: pip install "psycopg[binary]"')


def place(connection, order, total):
    """Says the fact in the transaction that makes it true."""
    with connection.transaction():
        connection.execute("CREATE TABLE IF NOT EXISTS public.orders (id text PRIMARY KEY, total bigint NOT NULL)")
        connection.execute("INSERT INTO public.orders VALUES (%s, %s)", (order, total))
        data = json.dumps({"order": order, "total": total}).encode()
        return connection.execute(
            """SELECT seq, version, outcome FROM tidings.append(
                   type => 'orders.placed', data => %s, aggregate_type => 'order', aggregate_id => %s)""",
            (data, order),
        ).fetchone()


def main():
    if "DATABASE_URL" not in os.environ or len(sys.argv) != 3:
        sys.exit("usage: DATABASE_URL=postgres://… python3 orders.py ORDER TOTAL_IN_CENTS")
    with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
        seq, version, outcome = place(connection, sys.argv[1], int(sys.argv[2]))
    print(f"{outcome}: number {seq}, version {version} of the order")


if __name__ == "__main__":
    main()
