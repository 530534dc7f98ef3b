//! In-process Pub/Sub and Cloud Storage, for `stoker demo` and the tests.
