//! What is to be published, written to the tables of either side beforehand.

use crate::ground::{Error, Ground};

/// So many events, round and round over so many aggregates.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) events: i64,
    pub(crate) aggregates: i64,
    pub(crate) bytes: i64,
}

/// What stands in the way of the load, and is older than it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Obstacle {
    None,
    /// One aggregate with a dead head and so many events behind it.
    BehindOneDead(i64),
    /// So many events, each of an aggregate of its own, that are due tomorrow.
    DueTomorrow(i64),
}

impl Load {
    pub(crate) async fn fill_outbox(self, ground: &Ground, obstacle: Obstacle) -> Result<(), Error> {
        match obstacle {
            Obstacle::None => {}
            Obstacle::BehindOneDead(events) => {
                Load { events, aggregates: 1, ..self }.append(ground, "stuck").await?;
                let dead = "UPDATE tidings.pending SET state = 'dead', attempts = 1, last_error = 'too large'
                             WHERE seq = (SELECT min(seq) FROM tidings.pending)";
                ground.admin.batch_execute(dead).await?;
                let letter = "INSERT INTO tidings.dead_letter (seq, partition, event_id, reason, attempts, epoch)
                              SELECT p.seq, p.partition, e.id, 'too large', 1, 0
                                FROM tidings.pending p JOIN tidings.event e USING (seq) WHERE p.state = 'dead'";
                ground.admin.batch_execute(letter).await?;
            }
            Obstacle::DueTomorrow(events) => {
                Load { events, aggregates: events, ..self }.append(ground, "later").await?;
                let delayed =
                    "UPDATE tidings.pending SET state = 'delayed', next_attempt_at = now() + interval '1 day';
                               UPDATE tidings.event SET not_before = now() + interval '1 day'";
                ground.admin.batch_execute(delayed).await?;
            }
        }
        self.append(ground, "order").await?;
        ground.settle().await
    }

    pub(crate) async fn fill_bare(self, ground: &Ground) -> Result<(), Error> {
        let Load { events, aggregates, bytes } = self;
        let fill = format!(
            "INSERT INTO outbox (event_id, partition, type, aggregate_type, aggregate_id, version, content_type, data)
             SELECT gen_random_uuid()::text, tidings.partition_of(tidings.lane('order', 'order-' || i % {aggregates}, NULL), 4),
                    'order.created', 'order', 'order-' || i % {aggregates}, i / {aggregates} + 1, 'application/json',
                    convert_to(repeat('x', {bytes}), 'UTF8')
               FROM generate_series(0, {events}::bigint - 1) i ORDER BY i"
        );
        ground.admin.batch_execute(&fill).await?;
        ground.settle().await
    }

    /// What `tidings.append` leaves behind, by way of fewer statements.
    async fn append(self, ground: &Ground, aggregate: &str) -> Result<(), Error> {
        let Load { events, aggregates, bytes } = self;
        let first = ground.number("SELECT coalesce(max(seq), 0) FROM tidings.event").await?;
        let fill = format!(
            "INSERT INTO tidings.aggregate (type, id, head_version, partition)
             SELECT '{aggregate}', '{aggregate}-' || a, ({events} - 1 - a) / {aggregates} + 1,
                    tidings.partition_of(tidings.lane('{aggregate}', '{aggregate}-' || a, NULL), s.partitions)
               FROM generate_series(0, {aggregates}::bigint - 1) a, tidings.setting s;
             INSERT INTO tidings.event (id, type, schema_version, kind, aggregate_type, aggregate_id, version, previous,
                                        partition, content_type, data, occurred_at)
             SELECT gen_random_uuid()::text, '{aggregate}.created', 1, 'event', '{aggregate}', a.id, i / {aggregates} + 1,
                    nullif(i / {aggregates}, 0), a.partition, 'application/json',
                    convert_to(repeat('x', {bytes}), 'UTF8'), now()
               FROM generate_series(0, {events}::bigint - 1) i
               JOIN tidings.aggregate a ON a.type = '{aggregate}' AND a.id = '{aggregate}-' || i % {aggregates}
              ORDER BY i;
             INSERT INTO tidings.pending (partition, seq, lane, id_hash)
             SELECT e.partition, e.seq, tidings.lane(e.aggregate_type, e.aggregate_id, e.id), hashtextextended(e.id, 0)
               FROM tidings.event e WHERE e.seq > {first} ORDER BY e.seq"
        );
        ground.admin.batch_execute(&fill).await?;
        Ok(())
    }
}
