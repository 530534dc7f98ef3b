//! WebP. Of an animation the first frame is taken, on a transparent canvas.
//!
//! A picture that is cut is decoded twice.

mod tables;

use image::codecs::webp::WebPDecoder;
use image::{ImageDecoder, RgbImage};

use super::super::ImageError;
use super::source::{Filling, Source};
use super::{Cause, Decoded, Job, MISSING, cause, exif_orientation, flatten};

/// Where the extended header keeps its flags.
const FLAGS_AT: usize = 20;
const ALPHA: u8 = 0x10;
const EXIF: u8 = 0x08;
const XMP: u8 = 0x04;
const ANIMATION: u8 = 0x02;
/// Of a cut picture, up to this many times what came may be missing.
const MOST_MISSING: u64 = 4;

pub(super) fn decode(job: Job<'_>) -> Result<Decoded, ImageError> {
    let cut = !job.structure.complete;
    let explained = |error: image::ImageError| job.failed(&error, if cut { Cause::RanOut } else { cause(&error) });
    let decoder = WebPDecoder::new(source(&job)).map_err(explained)?;
    let (width, height) = decoder.dimensions();
    let samples = usize::from(decoder.color_type().channel_count());
    check(&job, (width, height), 0, source(&job))?;

    let (pixels, truncated) = match read(decoder) {
        Ok(pixels) => (pixels, cut),
        Err(error) if !cut => return Err(explained(error)),
        Err(_) => {
            let row_bytes = width as usize * samples;
            let (mut pixels, came) = read_in_part(&job, (width, height), row_bytes)?;
            for pixel in pixels[came as usize * row_bytes..].chunks_exact_mut(samples) {
                // Opaque where there is alpha.
                pixel.fill(u8::MAX);
                pixel[..3].fill(MISSING);
            }
            (pixels, true)
        }
    };
    let pixels = if samples == 4 { flatten(pixels) } else { pixels };
    let rgb = RgbImage::from_raw(width, height, pixels).ok_or_else(|| job.failed("pixels", Cause::Content))?;
    let orientation = exif_orientation(job.structure.exif);
    Ok(Decoded { rgb, icc: job.structure.icc(), orientation, truncated })
}

fn source<'a>(job: &Job<'a>) -> Source<'a> {
    match flags(job) {
        Some(flags) => job.source().with_patch(FLAGS_AT, vec![believable(flags, job)]),
        None => job.source(),
    }
}

/// Checks a picture's size in pixels, and that the decoder's memory is enough for these bytes and for what it allocates
/// to read this source.
fn check(job: &Job<'_>, size: (u32, u32), bytes: u64, source: Source<'_>) -> Result<(), ImageError> {
    let needed = needed_bytes(job, size.0, size.1) + bytes;
    job.check(size.0, size.1, needed)?;
    let cause = if job.structure.complete { Cause::Content } else { Cause::RanOut };
    let left = job.limits.decoder_bytes - needed;
    let tables = tables::read(source, size, left).map_err(|error| job.failed(error, cause))?;
    job.deadline.check()?;
    job.check(size.0, size.1, needed + tables.bytes)
}

fn read(decoder: WebPDecoder<Source<'_>>) -> Result<Vec<u8>, image::ImageError> {
    let mut pixels = vec![0; usize::try_from(decoder.total_bytes()).unwrap_or_default()];
    decoder.read_image(&mut pixels)?;
    Ok(pixels)
}

/// Pixels of a picture that is cut, and how many of its rows came.
///
/// The decoder keeps nothing of a picture that ends early, and does not say how far it got. So the missing bytes are
/// filled, in two ways: the rows that come out the same both times do not depend on them.
fn read_in_part(job: &Job<'_>, (width, height): (u32, u32), row_bytes: usize) -> Result<(Vec<u8>, u32), ImageError> {
    let explained = |error: image::ImageError| job.failed(&error, Cause::RanOut);
    let (chunk, end) = job.structure.webp.last;
    let came = job.bytes.len() as u64;
    let missing = end.saturating_sub(came);
    if missing > came.saturating_mul(MOST_MISSING) {
        return Err(job.failed("the file ends long before its picture", Cause::RanOut));
    }
    // What the filling stands for may take more bytes than what is missing, or the decoder runs out again.
    let end = came + missing * 4 + (64 << 10);
    let length = u32::try_from(end - chunk as u64 - 8).unwrap_or(u32::MAX).to_le_bytes().to_vec();
    let twice = row_bytes as u64 * u64::from(height) + end - came;
    let filled = |filling| {
        let source = || source(job).with_patch(chunk + 4, length.clone()).filled_to(end, filling);
        // The filling may stand for prefix codes.
        check(job, (width, height), twice, source())?;
        let pixels = WebPDecoder::new(source()).and_then(read).map_err(explained);
        job.deadline.check()?;
        pixels
    };
    let (pixels, other) = (filled(Filling::Zeros)?, filled(Filling::Grey)?);
    let rows = pixels.chunks_exact(row_bytes).zip(other.chunks_exact(row_bytes));
    let same = rows.take_while(|(row, other)| row == other).count();
    // What is missing shows up to three rows above its block, where blocks are smoothed.
    let came = u32::try_from(same).unwrap_or(height).saturating_sub(3);
    job.limits.check_rows(u64::from(came), u64::from(height))?;
    Ok((pixels, came))
}

fn flags(job: &Job<'_>) -> Option<u8> {
    if job.structure.webp.extended { job.bytes.get(FLAGS_AT).copied() } else { None }
}

/// The header's flags without those that the file does not live up to: the decoder refuses it for metadata that is
/// missing, which is no loss, and for alpha that is missing, which is opaque.
fn believable(flags: u8, job: &Job<'_>) -> u8 {
    let webp = job.structure.webp;
    let opaque = flags & ANIMATION == 0 && webp.lossy && !webp.alpha;
    flags & !(EXIF | XMP) & if opaque { !ALPHA } else { !0 }
}

/// What the decoder allocates at its peak, in bytes, from its source: the result, the planes of a lossy picture (1.5
/// bytes a pixel), four bytes a pixel for a lossless one or for alpha, with up to 7/8 for its transforms and its entropy
/// image, and a frame and a canvas for an animation. The [`tables`] of a lossless picture come on top.
fn needed_bytes(job: &Job<'_>, width: u32, height: u32) -> u64 {
    let webp = job.structure.webp;
    let animated = flags(job).is_some_and(|flags| flags & ANIMATION != 0);
    let half_bytes = match (animated, webp.lossy, webp.alpha) {
        (true, ..) => 29,
        (false, true, false) => 9,
        (false, true, true) => 23,
        (false, false, _) => 18,
    };
    (u64::from(width) * u64::from(height)).saturating_mul(half_bytes) / 2 + (1 << 20)
}
