//! Migrating works from any runtime, or none.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use tidings::postgres::migrations;
use tidings::{migrate, testing};

async fn migrate_a_new_one() {
    let database = testing::empty_database().await.unwrap();
    assert_eq!(migrate(&database.database()).await.unwrap().len(), migrations().len());
    assert!(migrate(&database.database()).await.unwrap().is_empty());
}

#[tokio::test(flavor = "current_thread")]
async fn under_tokio_with_one_thread() {
    migrate_a_new_one().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_tokio_with_many_threads() {
    tokio::spawn(migrate_a_new_one()).await.unwrap();
}

#[test]
fn in_an_actix_system() {
    actix::System::new().block_on(async {
        migrate_a_new_one().await;
        actix_rt::spawn(migrate_a_new_one()).await.unwrap();
    });
}

#[test]
fn without_a_runtime() {
    block_on(migrate_a_new_one());
}

/// The smallest executor there is.
fn block_on(future: impl Future<Output = ()>) {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    while future.as_mut().poll(&mut Context::from_waker(&waker)) == Poll::Pending {
        std::thread::park();
    }
}
