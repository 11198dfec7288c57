use diesel_async::AsyncPgConnection;
use tidings::{NewEvent, Tx};

async fn say(conn: &mut AsyncPgConnection) {
    let mut kept: Option<&mut Tx<'_>> = None;
    let _ = tidings::transaction(conn, async |tx| {
        kept = Some(tx);
        Ok::<_, diesel::result::Error>(())
    })
    .await;
    let _ = kept.unwrap().append(NewEvent::raw("exports.completed", "{}")).await;
}

fn main() {}
