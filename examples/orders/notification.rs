//! The notifications: one for each order, whatever became of it.

use diesel::prelude::*;
use diesel_async::RunQueryDsl;
use tidings::{Consumer, Handle, HandlerError, Received, Tx};

use crate::messages::{OrderRejected, StockReserved};
use crate::tables::notification;

/// Notes down whom to tell what.
#[derive(Consumer)]
#[consumer(name = "notification", source = "academy.orders", events(StockReserved, OrderRejected))]
pub(crate) struct Notification;

impl Handle<StockReserved> for Notification {
    async fn handle(&self, event: Received<StockReserved>, tx: &mut Tx<'_>) -> Result<(), HandlerError> {
        let text = format!("{} of {} are yours", event.quantity, event.product);
        note(tx, &event.order_id, &event.customer, text).await
    }
}

impl Handle<OrderRejected> for Notification {
    async fn handle(&self, event: Received<OrderRejected>, tx: &mut Tx<'_>) -> Result<(), HandlerError> {
        note(tx, &event.order_id, &event.customer, format!("we are sorry: {}", event.reason)).await
    }
}

async fn note(tx: &mut Tx<'_>, order_id: &str, customer: &str, text: String) -> Result<(), HandlerError> {
    diesel::insert_into(notification::table)
        .values((notification::order_id.eq(order_id), notification::customer.eq(customer), notification::text.eq(text)))
        .execute(tx.conn())
        .await?;
    Ok(())
}
