use serde::{Deserialize, Serialize};
use tidings::Event;

#[derive(Event, Serialize, Deserialize)]
#[event(type = "orders.paid", aggregate = "order", key = order)]
struct OrderPaid {
    order_id: String,
    total: i64,
}

fn main() {}
