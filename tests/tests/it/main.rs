//! The integration tests: one binary, a file or folder for each part of the framework.

mod adopt;
mod alarms;
mod alone;
mod append;
mod broker;
mod consumer;
mod dead;
mod examples;
mod migrate;
mod relay;
mod road;
mod services;
mod tidy;
