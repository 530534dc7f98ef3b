//! Any bytes as a GIF.
//!
//! `cargo fuzz run gif` (nightly, or `RUSTC_BOOTSTRAP=1`). The seeds are files of `fixtures/formats`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use stoker_fuzz::{check, forced};

fuzz_target!(|bytes: &[u8]| {
    check(&forced(bytes, b"GIF89a", 0));
});
