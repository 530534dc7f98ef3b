//! Any bytes as an object: preparing it ends, in pixels of the model's size or an error, within the limits.
//!
//! `cargo fuzz run image` (nightly, or `RUSTC_BOOTSTRAP=1`).

#![no_main]

use libfuzzer_sys::fuzz_target;
use stoker::image::{Filter, Limits, Preprocess, prepare};

fuzz_target!(|bytes: &[u8]| {
    let limits = Limits { width: 4096, height: 4096, pixels: 1 << 22, decoder_bytes: 64 << 20 };
    let preprocess = Preprocess { width: 32, height: 32, crop_fraction: 0.875, filter: Filter::Bicubic };
    if let Ok(prepared) = prepare(bytes, &limits, &preprocess) {
        assert_eq!(prepared.pixels.rgb.len(), 32 * 32 * 3);
        assert!(u64::from(prepared.info.width) * u64::from(prepared.info.height) <= limits.pixels);
        assert!((1..=8).contains(&prepared.info.orientation));
    }
});
