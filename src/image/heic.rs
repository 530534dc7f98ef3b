//! HEIC: HEVC pictures in HEIF files, as phones take them.
//!
//! The decoder is that of heic-rs, in safe Rust: exact for 4:2:0 and monochrome pictures, which is what phones write.
//! Of 4:2:2 and 4:4:4 it gets some wrong, and so both are refused by name. HEVC is patented, and running a decoder may
//! take a licence: without the feature `heic`, which is off by default, the format is refused by name.

use super::decode::Decoded;
use super::{ImageError, Limits};

#[cfg(not(feature = "heic"))]
pub(super) fn decode(_bytes: &[u8], _limits: &Limits) -> Result<Decoded, ImageError> {
    Err(ImageError::UnsupportedFormat { format: "HEIC" })
}

/// Decodes the picture that the file wants shown.
#[cfg(feature = "heic")]
pub(super) fn decode(bytes: &[u8], limits: &Limits) -> Result<Decoded, ImageError> {
    super::heif::decode(bytes, limits, &hevc::CODEC)
}

#[cfg(feature = "heic")]
mod hevc;
