//! Any bytes: their start alone decides the format, and with no pixels allowed no reader gets further than a header.
//!
//! `cargo fuzz run sniff` (nightly, or `RUSTC_BOOTSTRAP=1`). The seeds are the starts of files of `fixtures/formats`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use stoker::image::{ImageError, Limits, prepare};
use stoker_fuzz::{contained, preprocess};

/// No signature, brand or root element is looked for further on, in bytes.
const START: usize = 4096;

fuzz_target!(|bytes: &[u8]| {
    let limits = Limits { width: 0, height: 0, pixels: 0, decoder_bytes: 1 << 20, ..Limits::default() };
    let of = |bytes: &[u8]| prepare(bytes, &limits, &preprocess()).expect_err("no picture is so small");
    let (all, start) = (of(bytes), of(&bytes[..bytes.len().min(START)]));
    contained(&all);
    assert_eq!(matches!(all, ImageError::NotAnImage), matches!(start, ImageError::NotAnImage));
    // What its own name refuses was refused without a reader, so its rest does not matter.
    if let ImageError::UnsupportedFormat { format: "HEIC" | "PDF" | "SVG" | "JPEG XL" } = start {
        assert_eq!(all.to_string(), start.to_string());
    }
});
