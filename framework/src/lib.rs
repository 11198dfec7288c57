//! Tidings.

#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "services")]
pub mod services;
