//! Any bytes as a WebP.
//!
//! `cargo fuzz run webp -- -dict=fuzz/dictionaries/webp.dict` (nightly, or `RUSTC_BOOTSTRAP=1`). The seeds are files of `fixtures/formats`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use stoker_fuzz::{check, forced};

fuzz_target!(|bytes: &[u8]| {
    check(&forced(&forced(bytes, b"RIFF", 0), b"WEBP", 8));
});
