-- The tables of the example `orders`, beside the schema `tidings` in the same database. Safe to run again.
CREATE SCHEMA IF NOT EXISTS orders;

CREATE TABLE IF NOT EXISTS orders.placed (
    id        text PRIMARY KEY,
    customer  text NOT NULL,
    product   text NOT NULL,
    quantity  integer NOT NULL CHECK (quantity > 0),
    placed_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX IF NOT EXISTS placed_customer ON orders.placed (customer);

-- What the consumer `inventory` guards: nothing is sold that is not there.
CREATE TABLE IF NOT EXISTS orders.stock (
    product    text PRIMARY KEY,
    available  integer NOT NULL CHECK (available >= 0)
);

-- Its decisions. Nothing here is unique but the row's own number, on purpose: an order that is decided twice would be
-- seen twice.
CREATE TABLE IF NOT EXISTS orders.reservation (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    order_id  text NOT NULL,
    product   text NOT NULL,
    quantity  integer NOT NULL
);
CREATE INDEX IF NOT EXISTS reservation_product ON orders.reservation (product);

-- What the consumer `notification` has to tell, one row for each mail. Sending them is not part of the transaction and
-- not part of this example.
CREATE TABLE IF NOT EXISTS orders.notification (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    order_id  text NOT NULL,
    customer  text NOT NULL,
    text      text NOT NULL
);
CREATE INDEX IF NOT EXISTS notification_customer ON orders.notification (customer);
