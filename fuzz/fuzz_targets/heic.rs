//! Any bytes as a HEIC picture.
//!
//! `cargo fuzz run heic -- -dict=fuzz/dictionaries/avif.dict` (nightly, or `RUSTC_BOOTSTRAP=1`). The seeds are files of `fixtures/heic`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use stoker_fuzz::{check, forced};

fuzz_target!(|bytes: &[u8]| {
    check(&forced(bytes, b"ftypheic", 4));
});
