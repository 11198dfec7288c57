//! What an error of the database means for what follows.

use diesel::result::{DatabaseErrorKind, Error};

/// What a database error means. The driver gives no SQLSTATE, so what has no kind of its own stays `Other`, which is
/// transient and capped, never permanent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Roll back and run again; nothing was wrong with the event.
    Serialization,
    /// A unique constraint said no.
    Unique { table: Option<String>, constraint: Option<String> },
    /// Another constraint said no.
    Constraint,
    /// The session may not write: a standby, or a switched-over primary.
    ReadOnly,
    /// No connection any more. What was asked last may or may not have happened.
    ConnectionLost,
    /// Anything else: deadlock, lock or statement timeout, a fault in a statement.
    Other,
}

pub(crate) fn classify(error: &Error) -> Fault {
    match error {
        Error::DatabaseError(kind, information) => match kind {
            DatabaseErrorKind::SerializationFailure => Fault::Serialization,
            DatabaseErrorKind::UniqueViolation => Fault::Unique {
                table: information.table_name().map(Into::into),
                constraint: information.constraint_name().map(Into::into),
            },
            DatabaseErrorKind::ReadOnlyTransaction => Fault::ReadOnly,
            DatabaseErrorKind::ClosedConnection | DatabaseErrorKind::UnableToSendCommand => Fault::ConnectionLost,
            DatabaseErrorKind::ForeignKeyViolation
            | DatabaseErrorKind::RestrictViolation
            | DatabaseErrorKind::NotNullViolation
            | DatabaseErrorKind::CheckViolation
            | DatabaseErrorKind::ExclusionViolation => Fault::Constraint,
            _ => Fault::Other,
        },
        // The cause of the failed commit decides, not that the rollback after it failed too.
        Error::RollbackErrorOnCommit { commit_error, .. } => classify(commit_error),
        Error::BrokenTransactionManager => Fault::ConnectionLost,
        _ => Fault::Other,
    }
}
