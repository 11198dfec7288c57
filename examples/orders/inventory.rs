//! The inventory: reserves what was ordered, or rejects it. What it says of that is an event of the same order.

use diesel::prelude::*;
use diesel_async::RunQueryDsl;
use tidings::{Consumer, Handle, HandlerError, Received, Tx};

use crate::messages::{OrderCreated, OrderRejected, StockReserved};
use crate::tables::{reservation, stock};

/// Decides about each order once: a second decision would take a second share of the stock.
#[derive(Consumer)]
#[consumer(name = "inventory", source = "academy.orders", events(OrderCreated))]
pub(crate) struct Inventory;

impl Handle<OrderCreated> for Inventory {
    async fn handle(&self, event: Received<OrderCreated>, tx: &mut Tx<'_>) -> Result<(), HandlerError> {
        let OrderCreated { order_id, customer, product, quantity } = event.event;
        let enough = diesel::update(stock::table.find(&product))
            .filter(stock::available.ge(quantity))
            .set(stock::available.eq(stock::available - quantity))
            .execute(tx.conn())
            .await?;
        if enough == 0 {
            let reason = format!("there are not {quantity} of {product} left");
            tx.append(&OrderRejected { order_id, customer, reason }).await?;
            return Ok(());
        }
        diesel::insert_into(reservation::table)
            .values((
                reservation::order_id.eq(&order_id),
                reservation::product.eq(&product),
                reservation::quantity.eq(quantity),
            ))
            .execute(tx.conn())
            .await?;
        tx.append(&StockReserved { order_id, customer, product, quantity }).await?;
        Ok(())
    }
}
