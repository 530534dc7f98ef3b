//! Arguments → config → telemetry → command → exit code.

fn main() {}
