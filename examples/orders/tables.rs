//! The example's own tables, as Diesel sees them. They are made by `migrations/`.

diesel::table! {
    orders.placed (id) {
        id -> Text,
        customer -> Text,
        product -> Text,
        quantity -> Integer,
    }
}

diesel::table! {
    orders.stock (product) {
        product -> Text,
        available -> Integer,
    }
}

diesel::table! {
    orders.reservation (id) {
        id -> BigInt,
        order_id -> Text,
        product -> Text,
        quantity -> Integer,
    }
}

diesel::table! {
    orders.notification (id) {
        id -> BigInt,
        order_id -> Text,
        customer -> Text,
        text -> Text,
    }
}

/// The statements that make them.
pub(crate) const MIGRATION: &str = include_str!("migrations/0001_orders/up.sql");
