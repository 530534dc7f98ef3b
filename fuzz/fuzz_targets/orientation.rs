//! Any bytes as the EXIF data of a picture that is whole: they may turn it, and never spoil it.
//!
//! `cargo fuzz run orientation -- -dict=fuzz/dictionaries/tiff.dict` (nightly, or `RUSTC_BOOTSTRAP=1`). The seeds are EXIF
//! segments of `fixtures/formats`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use stoker::image::prepare;
use stoker_fuzz::{limits, preprocess};

const PICTURE: &[u8] = include_bytes!("../../fixtures/formats/jpeg/tiny-9.jpg");
/// A segment's length is 16 bits and counts itself.
const MOST: usize = 0xFFFF - 2 - 6;

fuzz_target!(|bytes: &[u8]| {
    let exif = &bytes[..bytes.len().min(MOST)];
    let length = u16::try_from(exif.len() + 8).expect("a segment's length").to_be_bytes();
    let file = [&PICTURE[..2], b"\xFF\xE1", &length, b"Exif\0\0", exif, &PICTURE[2..]].concat();
    let prepared = prepare(&file, &limits(), &preprocess()).expect("a picture whatever its EXIF data");
    assert!((1..=8).contains(&prepared.info.orientation));
    assert_eq!((prepared.info.width, prepared.info.height, prepared.info.truncated), (9, 7, false));
});
