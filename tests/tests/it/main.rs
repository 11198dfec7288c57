//! The integration tests: one binary, a file or folder for each part of the framework.

mod examples;
mod road;
mod services;
