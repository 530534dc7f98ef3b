//! Any bytes as an AVIF: a still picture or a film.
//!
//! `cargo fuzz run avif -- -dict=fuzz/dictionaries/avif.dict` (nightly, or `RUSTC_BOOTSTRAP=1`). The seeds are files of `fixtures/formats`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use stoker_fuzz::{check, forced};

fuzz_target!(|bytes: &[u8]| {
    let brand = if bytes.get(11) == Some(&b's') { b"ftypavis" } else { b"ftypavif" };
    check(&forced(bytes, brand, 4));
});
