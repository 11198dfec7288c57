//! The same program under every host, from an append to the effect, and to a good end.

use diesel_async::{AsyncConnection, AsyncPgConnection};
use tidings_tests::consumer::Said;

use super::Bench;

async fn under(host: &str) {
    let mut bench = Bench::without_stream().await;
    let node = bench.node("node", &[("HOST", host), ("RELAY", "1")]).started().await;
    let mut conn = AsyncPgConnection::establish(&bench.url).await.unwrap();
    let appending = tidings::transaction(&mut conn, async |tx| {
        for n in 0..10 {
            tx.append(&Said { lane: format!("lane {n}").replace(' ', "-"), n }).await?;
        }
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    });
    appending.await.unwrap();
    bench.eventually_heard(&(0..10).collect::<Vec<_>>()).await;
    node.terminate();
    let (status, log) = node.ended().await;
    assert!(status.success(), "{log}");
    assert_eq!(bench.number("SELECT count(*) FROM tidings.pending").await, 0);
    assert_eq!(bench.number("SELECT count(*) FROM tidings.partition WHERE owner IS NOT NULL").await, 0);
}

#[tokio::test]
async fn actix() {
    under("actix").await;
}

#[tokio::test]
async fn actix_web() {
    under("actix-web").await;
}

#[tokio::test]
async fn tokio_with_many_threads() {
    under("tokio").await;
}

#[tokio::test]
async fn tokio_with_one_thread() {
    under("tokio current").await;
}
