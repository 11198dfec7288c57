//! Named points of both roads at which a test stops, delays or kills the process. Nothing in a normal build.

/// Runs what a test configured for this point through the `fail` crate; expands to nothing without the feature
/// `failpoints`.
macro_rules! failpoint {
    ($name:literal) => {
        #[cfg(feature = "failpoints")]
        ::fail::fail_point!($name);
    };
}

pub(crate) use failpoint;
