use diesel_async::AsyncPgConnection;
use tidings::NewEvent;

async fn say(conn: &mut AsyncPgConnection) {
    let _ = conn.append(NewEvent::raw("exports.completed", "{}")).await;
}

fn main() {}
