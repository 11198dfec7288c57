//! What the messages at the end of a stream are to the database.

use diesel::sql_types::{BigInt, Integer, Nullable, Text};
use diesel_async::{AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection};

use super::{Error, Found, InTheWay, SHOWN, Unknown};
use crate::event::{Aggregate, Version};
use crate::postgres::statement;

/// Before anything else is locked: whoever changes the number of partitions takes these two first, and the partitions' rows
/// after them.
pub(super) async fn close(connection: &mut AsyncPgConnection) -> Result<(), Error> {
    Ok(connection.batch_execute(CLOSE).await?)
}

/// The heads of all aggregates in the tail, made where they are missing, in the order of append; then the pending rows that
/// may be changed, in the order in which operators' decisions take them.
pub(super) async fn lock(connection: &mut AsyncPgConnection, partition: i32) -> Result<(), Error> {
    let _: usize = RunQueryDsl::execute(MakeHeads { partition }, connection).await?;
    Ok(connection.batch_execute(LOCK).await?)
}

/// Judges each message, and says what was found.
pub(super) async fn judge(connection: &mut AsyncPgConnection, partition: i32, found: &mut Found) -> Result<(), Error> {
    let _: usize = RunQueryDsl::execute(Judge { partition }, connection).await?;
    let rows = i64::try_from(SHOWN).unwrap_or(i64::MAX);
    let (known, unknown, in_the_way): (i64, i64, i64) = RunQueryDsl::get_result(Sums {}, connection).await?;
    let number = |number: i64| u64::try_from(number).unwrap_or(0);
    (found.known, found.unknown, found.in_the_way) = (number(known), number(unknown), number(in_the_way));
    let adopted: Vec<Row> = RunQueryDsl::load(ListUnknown { rows }, connection).await?;
    found.first_unknown = adopted.into_iter().map(unknown_of).collect();
    let others: Vec<(i64, String)> = RunQueryDsl::load(ListOthers { rows }, connection).await?;
    let other = |(stream_seq, why)| InTheWay { stream_seq: number(stream_seq), why };
    found.first_in_the_way = others.into_iter().map(other).collect();
    Ok(())
}

type Row = (i64, String, String, Option<String>, Option<String>, Option<i64>);

fn unknown_of((stream_seq, event_id, event_type, aggregate_type, aggregate_id, version): Row) -> Unknown {
    Unknown {
        stream_seq: u64::try_from(stream_seq).unwrap_or(0),
        event_id,
        event_type,
        aggregate: aggregate_type.zip(aggregate_id).map(|(r#type, id)| Aggregate { r#type, id }),
        version: version.map(Version),
    }
}

statement! {
    /// Those that belong to another partition are not made: their messages are in the way.
    struct MakeHeads { partition: Integer = i32 } -> BigInt;
    "INSERT INTO tidings.aggregate (type, id, partition)
     SELECT t.aggregate_type, t.aggregate_id, {partition}
       FROM (SELECT DISTINCT aggregate_type, aggregate_id FROM pg_temp.tidings_tail WHERE aggregate_type IS NOT NULL) t
      WHERE tidings.partition_of(tidings.lane(t.aggregate_type, t.aggregate_id, NULL), (SELECT partitions FROM tidings.setting)) = {partition}
        AND NOT EXISTS (SELECT FROM tidings.aggregate a WHERE a.type = t.aggregate_type AND a.id = t.aggregate_id)
      ORDER BY 1, 2
     ON CONFLICT (type, id) DO NOTHING"
}

const CLOSE: &str = "LOCK TABLE tidings.aggregate, tidings.event IN ROW EXCLUSIVE MODE";

const LOCK: &str = "DO $$ BEGIN
    PERFORM FROM tidings.aggregate a
      WHERE (a.type, a.id) IN (SELECT t.aggregate_type, t.aggregate_id FROM pg_temp.tidings_tail t)
      ORDER BY a.type, a.id FOR NO KEY UPDATE;
    PERFORM FROM tidings.pending q
      WHERE (q.partition, q.seq) IN (
            SELECT e.partition, e.seq FROM tidings.event e JOIN pg_temp.tidings_tail t ON t.id = e.id
            UNION
            SELECT e.partition, e.seq FROM tidings.event e
              JOIN (SELECT DISTINCT aggregate_type, aggregate_id FROM pg_temp.tidings_tail) t
                ON e.aggregate_type = t.aggregate_type AND e.aggregate_id = t.aggregate_id)
      ORDER BY q.seq FOR UPDATE;
END $$";

statement! {
    /// An event that was appended anew under its old id and got another version, and was not published, is no contradiction:
    /// the one in the stream takes its place. `ended` is, once for each aggregate, the last version that the database knows to be
    /// in the stream.
    struct Judge { partition: Integer = i32 } -> BigInt;
    "WITH ended AS MATERIALIZED (
        SELECT a.aggregate_type, a.aggregate_id, h.partition, v.version
          FROM (SELECT DISTINCT aggregate_type, aggregate_id FROM pg_temp.tidings_tail WHERE aggregate_type IS NOT NULL) a
          LEFT JOIN tidings.aggregate h ON h.type = a.aggregate_type AND h.id = a.aggregate_id
          LEFT JOIN LATERAL (
               SELECT v.version FROM tidings.event v
                WHERE v.aggregate_type = a.aggregate_type AND v.aggregate_id = a.aggregate_id
                  AND (NOT EXISTS (SELECT FROM tidings.pending q WHERE q.partition = v.partition AND q.seq = v.seq)
                       OR EXISTS (SELECT FROM tidings.confirmation c WHERE c.seq = v.seq))
                ORDER BY v.version DESC LIMIT 1) v ON true
     )
     UPDATE pg_temp.tidings_tail t SET why = j.why,
            verdict = CASE WHEN j.why IS NOT NULL THEN NULL WHEN j.known THEN 'known' WHEN j.is_first THEN 'adopt' ELSE 'copy' END
       FROM (
        SELECT t.stream_seq, e.known, row_number() OVER (PARTITION BY t.id ORDER BY t.tombstone, t.stream_seq) = 1 AS is_first,
               CASE
                WHEN t.unread IS NOT NULL THEN t.unread
                WHEN coalesce(e.partition, ended.partition, tidings.partition_of(tidings.lane(t.aggregate_type, t.aggregate_id, t.id), s.partitions)) <> {partition}
                THEN 'it belongs to another partition of this database'
                WHEN NOT t.tombstone AND e.data <> t.data THEN 'its id belongs to an event with other data'
                WHEN (e.aggregate_type, e.aggregate_id) IS DISTINCT FROM (t.aggregate_type, t.aggregate_id) AND e.seq IS NOT NULL
                THEN 'its id belongs to an event of another aggregate'
                WHEN NOT e.known AND NOT e.unsent THEN 'its id belongs to an event with another version'
                WHEN NOT coalesce(e.known, false) AND t.version <= ended.version
                THEN 'its version is not above the last of its aggregate that is confirmed'
                WHEN EXISTS (SELECT FROM pg_temp.tidings_tail o
                              WHERE o.aggregate_type = t.aggregate_type AND o.aggregate_id = t.aggregate_id
                                AND o.version = t.version AND o.id <> t.id AND o.stream_seq < t.stream_seq)
                THEN 'its version stands in the stream before it, under another id'
                WHEN EXISTS (SELECT FROM pg_temp.tidings_tail o
                              WHERE o.id = t.id AND o.stream_seq < t.stream_seq
                                AND (o.version IS DISTINCT FROM t.version OR (o.data <> t.data AND NOT o.tombstone AND NOT t.tombstone)))
                THEN 'its id stands in the stream before it, with other content'
               END AS why
          FROM pg_temp.tidings_tail t
         CROSS JOIN tidings.setting s
          LEFT JOIN LATERAL (
                SELECT e.seq, e.partition, e.data, e.aggregate_type, e.aggregate_id, e.version IS NOT DISTINCT FROM t.version AS known,
                       EXISTS (SELECT FROM tidings.pending q WHERE q.partition = e.partition AND q.seq = e.seq)
                       AND NOT EXISTS (SELECT FROM tidings.confirmation c WHERE c.seq = e.seq) AS unsent
                  FROM tidings.event e WHERE e.id = t.id OFFSET 0) e ON true
          LEFT JOIN ended ON ended.aggregate_type = t.aggregate_type AND ended.aggregate_id = t.aggregate_id
       ) j WHERE j.stream_seq = t.stream_seq"
}

statement! {
    struct Sums {} -> (BigInt, BigInt, BigInt);
    "SELECT count(*) FILTER (WHERE verdict IN ('known', 'copy')), count(*) FILTER (WHERE verdict = 'adopt'),
            count(*) FILTER (WHERE verdict IS NULL) FROM pg_temp.tidings_tail"
}

statement! {
    struct ListUnknown { rows: BigInt = i64 }
    -> (BigInt, Text, Text, Nullable<Text>, Nullable<Text>, Nullable<BigInt>);
    "SELECT stream_seq, id, type, aggregate_type, aggregate_id, version FROM pg_temp.tidings_tail
      WHERE verdict = 'adopt' ORDER BY stream_seq LIMIT {rows}"
}

statement! {
    struct ListOthers { rows: BigInt = i64 } -> (BigInt, Text);
    "SELECT stream_seq, why FROM pg_temp.tidings_tail WHERE verdict IS NULL ORDER BY stream_seq LIMIT {rows}"
}
