//! Any bytes as a TIFF, in one order of bytes or the other, with offsets of 32 or 64 bits.
//!
//! `cargo fuzz run tiff -- -dict=fuzz/dictionaries/tiff.dict` (nightly, or `RUSTC_BOOTSTRAP=1`). The seeds are files of `fixtures/formats`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use stoker_fuzz::{check, forced};

fuzz_target!(|bytes: &[u8]| {
    let signature: &[u8; 4] = match bytes.first() {
        Some(b'M') => b"MM\0*",
        _ if bytes.get(2) == Some(&b'+') => b"II+\0",
        _ => b"II*\0",
    };
    check(&forced(bytes, signature, 0));
});
