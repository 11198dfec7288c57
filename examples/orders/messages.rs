//! What travels: three events of one aggregate, so an order's events keep their order.

use serde::{Deserialize, Serialize};
use tidings::Event;

/// Whose events they are. One database is one source.
pub(crate) const SOURCE: &str = "academy.orders";

/// Somebody wants something.
#[derive(Debug, Event, Serialize, Deserialize)]
#[event(type = "orders.created", aggregate = "order", key = order_id)]
pub(crate) struct OrderCreated {
    pub(crate) order_id: String,
    pub(crate) customer: String,
    pub(crate) product: String,
    pub(crate) quantity: i32,
}

/// It is put aside for them.
#[derive(Debug, Event, Serialize, Deserialize)]
#[event(type = "orders.stock-reserved", aggregate = "order", key = order_id)]
pub(crate) struct StockReserved {
    pub(crate) order_id: String,
    pub(crate) customer: String,
    pub(crate) product: String,
    pub(crate) quantity: i32,
}

/// There is not enough of it.
#[derive(Debug, Event, Serialize, Deserialize)]
#[event(type = "orders.rejected", aggregate = "order", key = order_id)]
pub(crate) struct OrderRejected {
    pub(crate) order_id: String,
    pub(crate) customer: String,
    pub(crate) reason: String,
}
