//! Foreign bytes to 8-bit RGB in stored orientation.
//!
//! Alpha is composited on white, of 16 bits the upper 8 are taken, grey, palette and CMYK become RGB, and of many
//! frames the first is taken. Pillow is the reference for all of it (`fixtures/make`).
//!
//! A file that ends early still gives a picture once enough of its rows came; the others are mid grey. What a decoder
//! needs is added up and checked before it allocates, and it reads through a [`Source`] that ends with the time.

mod bmp;
mod gif;
mod png;
mod source;
mod tiff;
mod webp;

use std::io::ErrorKind;

use image::RgbImage;
use image::metadata::Orientation;

use super::limits::Deadline;
use super::structure::{self, Structure};
use super::{Format, ImageError, Limits, avif, heic, jpeg};
use source::Source;

/// What stands for a sample that did not come.
const MISSING: u8 = 128;

/// A decoded picture, as it is stored.
pub(super) struct Decoded {
    pub(super) rgb: RgbImage,
    /// Colour profile of the pixels, for [`colour::rgb`](super::colour::rgb).
    pub(super) icc: Option<Vec<u8>>,
    /// How to turn it upright.
    pub(super) orientation: Orientation,
    /// The file ends early.
    pub(super) truncated: bool,
}

/// A file, and what its decoder may spend.
#[derive(Clone, Copy)]
struct Job<'a> {
    bytes: &'a [u8],
    structure: Structure<'a>,
    limits: &'a Limits,
    deadline: Deadline,
}

/// Decodes the first picture of a file of this format.
pub(super) fn decode(bytes: &[u8], format: Format, limits: &Limits) -> Result<Decoded, ImageError> {
    let deadline = Deadline::start(limits);
    let job = || Ok(Job { bytes, structure: structure::walk(bytes, format, limits)?, limits, deadline });
    let decoded = match format {
        Format::Avif => avif::decode(bytes, limits),
        Format::Heic => heic::decode(bytes, limits),
        Format::Jpeg => jpeg::decode_whole(bytes, limits),
        Format::Bmp => bmp::decode(job()?),
        Format::Gif => gif::decode(job()?),
        Format::Png => png::decode(job()?),
        Format::Tiff => tiff::decode(job()?),
        Format::WebP => webp::decode(job()?),
    };
    // A decoder that ran out of time says so in words of its own.
    deadline.check()?;
    decoded
}

impl<'a> Job<'a> {
    fn source(&self) -> Source<'a> {
        Source::new(self.bytes, self.deadline)
    }

    /// Checks a picture's size in pixels, and all that its decoder needs in bytes.
    fn check(&self, width: u32, height: u32, decoder_bytes: u64) -> Result<(), ImageError> {
        if width == 0 || height == 0 {
            return Err(ImageError::Corrupt(format!("a picture of {width} × {height} pixels")));
        }
        self.limits.check(width, height, decoder_bytes)
    }

    /// The error for what a decoder says that went wrong.
    fn failed(&self, problem: impl std::fmt::Display, cause: Cause) -> ImageError {
        match cause {
            Cause::Memory => ImageError::TooManyPixels {
                what: "decoder memory",
                // The decoder asked for more than it may have, and does not say how much.
                found: self.limits.decoder_bytes.saturating_add(1),
                limit: self.limits.decoder_bytes,
            },
            Cause::RanOut => ImageError::Truncated(problem.to_string()),
            Cause::Content => ImageError::Corrupt(problem.to_string()),
        }
    }
}

/// Why a decoder gave up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    Memory,
    RanOut,
    Content,
}

/// Causes of the decoders that the `image` crate wraps.
fn cause(error: &image::ImageError) -> Cause {
    match error {
        image::ImageError::Limits(_) => Cause::Memory,
        image::ImageError::IoError(error) if error.kind() == ErrorKind::UnexpectedEof => Cause::RanOut,
        _ => Cause::Content,
    }
}

/// Bytes of an RGB picture of this size.
fn rgb_bytes(width: u32, height: u32) -> u64 {
    (u64::from(width) * u64::from(height)).saturating_mul(3).min(u64::MAX / 2)
}

/// A picture of which nothing came yet.
fn missing(width: u32, height: u32) -> RgbImage {
    RgbImage::from_pixel(width, height, image::Rgb([MISSING; 3]))
}

/// Writes a row of 1 to 4 samples a pixel (grey, grey and alpha, RGB, RGBA) as RGB on white.
fn to_rgb(samples: usize, from: &[u8], to: &mut [u8]) {
    let to = to.as_chunks_mut::<3>().0.iter_mut();
    match samples {
        1 => to.zip(from).for_each(|(to, grey)| *to = [*grey; 3]),
        2 => to.zip(from.as_chunks::<2>().0).for_each(|(to, [grey, alpha])| *to = [over_white(*grey, *alpha); 3]),
        3 => to.zip(from.as_chunks::<3>().0).for_each(|(to, from)| *to = *from),
        _ => to.zip(from.as_chunks::<4>().0).for_each(|(to, from)| *to = pixel_over_white(*from)),
    }
}

/// Turns RGBA into RGB on white, in the same memory.
fn flatten(mut rgba: Vec<u8>) -> Vec<u8> {
    let pixels = rgba.len() / 4;
    for pixel in 0..pixels {
        let from = [0, 1, 2, 3].map(|sample| rgba[pixel * 4 + sample]);
        rgba[pixel * 3..pixel * 3 + 3].copy_from_slice(&pixel_over_white(from));
    }
    rgba.truncate(pixels * 3);
    rgba
}

fn pixel_over_white([red, green, blue, alpha]: [u8; 4]) -> [u8; 3] {
    [red, green, blue].map(|colour| over_white(colour, alpha))
}

/// Rounded to the nearest, which is what Pillow's `alpha_composite` comes to.
fn over_white(colour: u8, alpha: u8) -> u8 {
    let (colour, alpha) = (u32::from(colour), u32::from(alpha));
    let blended = (colour * alpha + 255 * (255 - alpha) + 127) / 255;
    u8::try_from(blended).unwrap_or(u8::MAX)
}

fn exif_orientation(exif: Option<&[u8]>) -> Orientation {
    exif.and_then(Orientation::from_exif_chunk).unwrap_or(Orientation::NoTransforms)
}
