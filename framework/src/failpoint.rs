//! Named points of both roads at which a test stops, delays or kills the process, or leaves a check out. Nothing in a
//! normal build.

/// Runs what a test configured for this point through the `fail` crate; expands to nothing without the feature
/// `failpoints`.
macro_rules! failpoint {
    ($name:literal) => {
        #[cfg(feature = "failpoints")]
        ::fail::fail_point!($name);
    };
}

/// Whether a test leaves a check out, to see that its absence is noticed; always `false` without the feature
/// `failpoints`.
macro_rules! left_out {
    ($name:literal) => {{
        #[cfg(feature = "failpoints")]
        let left_out = (|| {
            ::fail::fail_point!($name, |_| true);
            false
        })();
        #[cfg(not(feature = "failpoints"))]
        let left_out = false;
        left_out
    }};
}

pub(crate) use {failpoint, left_out};
