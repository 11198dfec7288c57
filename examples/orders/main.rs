//! Say it once.
fn main() {}
