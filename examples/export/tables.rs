//! The example's own tables, as Diesel sees them. They are made by `migrations/`.

diesel::table! {
    export.job (id) {
        id -> Text,
        idempotency_key -> Text,
        tenant -> Text,
        dataset -> Text,
        rows -> Integer,
        state -> Text,
        file -> Nullable<Text>,
        created_at -> Timestamptz,
        completed_at -> Nullable<Timestamptz>,
    }
}

diesel::table! {
    export.statistics (tenant) {
        tenant -> Text,
        exports -> BigInt,
        rows -> BigInt,
    }
}

diesel::table! {
    export.search_entry (id) {
        id -> BigInt,
        tenant -> Text,
        job_id -> Text,
        title -> Text,
        file -> Text,
    }
}

/// The statements that make them.
pub(crate) const MIGRATION: &str = include_str!("migrations/0001_export/up.sql");
