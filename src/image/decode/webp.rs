//! WebP. Of an animation the first frame is taken, on a transparent canvas.
//!
//! A picture that is cut cannot be shown in part: the decoder keeps nothing of it.

use image::codecs::webp::WebPDecoder;
use image::{ImageDecoder, RgbImage};

use super::super::ImageError;
use super::{Cause, Decoded, Job, cause, exif_orientation, flatten};

/// Where the extended header keeps its flags.
const FLAGS_AT: usize = 20;
const ALPHA: u8 = 0x10;
const EXIF: u8 = 0x08;
const XMP: u8 = 0x04;
const ANIMATION: u8 = 0x02;

pub(super) fn decode(job: Job<'_>) -> Result<Decoded, ImageError> {
    let cut = !job.structure.complete;
    let explained = |error: image::ImageError| job.failed(&error, if cut { Cause::RanOut } else { cause(&error) });
    let flags = if job.structure.webp.extended { job.bytes.get(FLAGS_AT).copied() } else { None };
    let source = match flags {
        Some(flags) => job.source().with_patch(FLAGS_AT, vec![believable(flags, &job)]),
        None => job.source(),
    };
    let decoder = WebPDecoder::new(source).map_err(explained)?;
    let (width, height) = decoder.dimensions();
    let animated = flags.is_some_and(|flags| flags & ANIMATION != 0);
    job.check(width, height, needed_bytes(u64::from(width) * u64::from(height), animated, &job))?;

    let alpha = decoder.color_type().has_alpha();
    let mut pixels = vec![0; usize::try_from(decoder.total_bytes()).unwrap_or_default()];
    decoder.read_image(&mut pixels).map_err(explained)?;
    let pixels = if alpha { flatten(pixels) } else { pixels };
    let rgb = RgbImage::from_raw(width, height, pixels).ok_or_else(|| job.failed("pixels", Cause::Content))?;
    let orientation = exif_orientation(job.structure.exif);
    Ok(Decoded { rgb, icc: job.structure.icc(), orientation, truncated: cut })
}

/// The header's flags without those that the file does not live up to: the decoder refuses it for metadata that is
/// missing, which is no loss, and for alpha that is missing, which is opaque.
fn believable(flags: u8, job: &Job<'_>) -> u8 {
    let webp = job.structure.webp;
    let opaque = flags & ANIMATION == 0 && webp.lossy && !webp.alpha;
    flags & !(EXIF | XMP) & if opaque { !ALPHA } else { !0 }
}

/// What the decoder allocates at its peak, in bytes, from its source: the result, the planes of a lossy picture (1.5
/// bytes a pixel), four bytes a pixel for a lossless one or for alpha, and a frame and a canvas for an animation.
fn needed_bytes(pixels: u64, animated: bool, job: &Job<'_>) -> u64 {
    let webp = job.structure.webp;
    let half_bytes = match (animated, webp.lossy, webp.alpha) {
        (true, ..) => 29,
        (false, true, false) => 9,
        (false, true, true) => 23,
        (false, false, _) => 18,
    };
    pixels * half_bytes / 2 + (1 << 20)
}
