//! Generates the gRPC service glue of the in-process Pub/Sub (feature `local`); message types come from a crate.
fn main() {}
