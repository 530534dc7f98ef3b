//! What must hold for any bytes as an object, shared by the targets.

use stoker::image::{Filter, Format, ImageError, Limits, Preprocess, Resize, decode, prepare};

/// Side of the model's input in pixels.
const SIDE: u32 = 32;

/// Small enough for thousands of pictures a second.
#[must_use]
pub fn limits() -> Limits {
    Limits { width: 2048, height: 2048, pixels: 1 << 20, decoder_bytes: 32 << 20, ..Limits::default() }
}

/// How the targets have pictures cut and scaled.
#[must_use]
pub fn preprocess() -> Preprocess {
    Preprocess { width: SIDE, height: SIDE, resize: Resize::CropFraction(0.875), filter: Filter::Bicubic }
}

/// Preparing ends, in pixels of the model's size or an error, within the limits; decoding alone ends as it does, and no
/// reader panics.
pub fn check(bytes: &[u8]) {
    let limits = limits();
    match prepare(bytes, &limits, &preprocess()) {
        Ok(prepared) => {
            let info = prepared.info;
            assert_eq!(prepared.pixels.rgb.len(), (SIDE * SIDE * 3) as usize);
            assert!(u64::from(info.width) * u64::from(info.height) <= limits.pixels);
            assert!((1..=8).contains(&info.orientation));
            let whole = match decode(bytes, &limits) {
                Ok(whole) => whole,
                // Of a JPEG less is read for the input, and so less of it may be damaged or too much.
                Err(error) if info.format == Format::Jpeg => return contained(&error),
                Err(error) => panic!("what can be prepared can be decoded: {error}"),
            };
            let upright = (whole.width as u32, whole.height as u32);
            let stored = (info.width, info.height);
            assert!(upright == stored || upright == (stored.1, stored.0), "{upright:?}, stored {stored:?}");
            assert_eq!(whole.rgb.len(), whole.width * whole.height * 3);
        }
        Err(error) => contained(&error),
    }
}

/// The program survives a reader's panic; a fuzz target shall find it.
pub fn contained(error: &ImageError) {
    assert!(!error.to_string().contains("in an unforeseen way"), "a reader panicked");
}

/// The bytes with this signature at their start, so that they reach one reader.
#[must_use]
pub fn forced(bytes: &[u8], signature: &[u8], at: usize) -> Vec<u8> {
    let mut forced = bytes.to_vec();
    forced.resize(forced.len().max(at + signature.len()), 0);
    forced[at..at + signature.len()].copy_from_slice(signature);
    forced
}
