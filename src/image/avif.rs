//! AVIF: AV1 pictures in HEIF files.
//!
//! The decoder is rav1d in Rerun's packaging, the only one with a safe interface under a permissive licence. Its entry
//! points are `extern "C"`, so that a panic in it would end the process instead of its picture: what is sent to it is
//! bounded and looked through first, and a million mutated pictures (`fuzz/`) made it panic in none.
//!
//! Of an animation the still picture that the file names is taken. Without the feature `avif` the format is refused by
//! name.

use super::decode::Decoded;
use super::{ImageError, Limits};

#[cfg(not(feature = "avif"))]
pub(super) fn decode(_bytes: &[u8], _limits: &Limits) -> Result<Decoded, ImageError> {
    Err(ImageError::UnsupportedFormat { format: "AVIF" })
}

/// Decodes the picture that the file wants shown.
#[cfg(feature = "avif")]
pub(super) fn decode(bytes: &[u8], limits: &Limits) -> Result<Decoded, ImageError> {
    super::heif::decode(bytes, limits, &av1::CODEC)
}

#[cfg(feature = "avif")]
mod av1;
