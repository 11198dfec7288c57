//! Decisions only: values and `now` in, values out. No async, no diesel, no NATS, no actix, no clock, no randomness.
pub mod token;
