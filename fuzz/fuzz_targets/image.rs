//! Any bytes as an object.
//!
//! `cargo fuzz run image` (nightly, or `RUSTC_BOOTSTRAP=1`).

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    stoker_fuzz::check(bytes);
});
