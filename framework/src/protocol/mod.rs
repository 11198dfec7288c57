//! Decisions only: values and `now` in, values out. No async, no diesel, no NATS, no actix, no clock, no randomness.

pub mod alarm;
pub mod anchor;
pub mod attempt;
pub mod backoff;
pub mod breaker;
pub mod chain;
pub mod lanes;
pub mod lease;
pub mod outcome;
pub mod pace;
pub mod sweep;
pub mod token;
