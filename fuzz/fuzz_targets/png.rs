//! Any bytes as a PNG.
//!
//! `cargo fuzz run png -- -dict=fuzz/dictionaries/png.dict` (nightly, or `RUSTC_BOOTSTRAP=1`). The seeds are files of `fixtures/formats`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use stoker_fuzz::{check, forced};

fuzz_target!(|bytes: &[u8]| {
    check(&forced(bytes, b"\x89PNG\r\n\x1A\n", 0));
});
