//! The shop: takes orders.

use diesel::prelude::*;
use diesel_async::{AsyncPgConnection, RunQueryDsl};
use stage::Error;
use uuid::Uuid;

use crate::messages::OrderCreated;
use crate::tables::{placed, stock};

/// Takes an order: the row and the event commit together, or neither does. What it means for the stock is not decided
/// here; the shop takes orders also while the inventory is down.
pub(crate) async fn place(
    conn: &mut AsyncPgConnection,
    customer: &str,
    product: &str,
    quantity: i32,
) -> Result<(), Error> {
    tidings::transaction(conn, async |tx| {
        let order_id = format!("order-{}", Uuid::now_v7());
        diesel::insert_into(placed::table)
            .values((
                placed::id.eq(&order_id),
                placed::customer.eq(customer),
                placed::product.eq(product),
                placed::quantity.eq(quantity),
            ))
            .execute(tx.conn())
            .await?;
        tx.append(&OrderCreated { order_id, customer: customer.into(), product: product.into(), quantity }).await?;
        Ok(())
    })
    .await
}

/// Puts a product on the shelf.
pub(crate) async fn stock_up(conn: &mut AsyncPgConnection, product: &str, available: i32) -> Result<(), Error> {
    diesel::insert_into(stock::table)
        .values((stock::product.eq(product), stock::available.eq(available)))
        .execute(conn)
        .await?;
    Ok(())
}
