//! Any bytes as a JPEG.
//!
//! `cargo fuzz run jpeg -- -dict=fuzz/dictionaries/jpeg.dict` (nightly, or `RUSTC_BOOTSTRAP=1`). The seeds are files of `fixtures/formats`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use stoker_fuzz::{check, forced};

fuzz_target!(|bytes: &[u8]| {
    check(&forced(bytes, b"\xFF\xD8\xFF", 0));
});
