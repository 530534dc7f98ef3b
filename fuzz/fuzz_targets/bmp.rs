//! Any bytes as a BMP.
//!
//! `cargo fuzz run bmp` (nightly, or `RUSTC_BOOTSTRAP=1`). The seeds are files of `fixtures/formats`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use stoker_fuzz::{check, forced};

fuzz_target!(|bytes: &[u8]| {
    // The second header has one of the sizes that exist, by its first byte.
    let sizes = [12, 40, 52, 56, 64, 108, 124];
    let size = bytes.get(14).map_or(40, |size| sizes.into_iter().find(|exists| exists == size).unwrap_or(40));
    check(&forced(&forced(bytes, b"BM", 0), &[size, 0, 0, 0], 14));
});
