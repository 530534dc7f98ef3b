//! GIF: the first frame on its canvas, row by row.

use std::io::ErrorKind;
use std::num::NonZeroU64;

use gif::{ColorOutput, DecodeOptions, DecodingError, MemoryLimit};
use image::Rgb;

use super::super::ImageError;
use super::{Cause, Decoded, Job, MISSING, exif_orientation, rgb_bytes};

/// Palettes, code tables and a row, in bytes.
const WORKING_BYTES: u64 = 256 << 10;

pub(super) fn decode(job: Job<'_>) -> Result<Decoded, ImageError> {
    let explained = |error: DecodingError| job.failed(&error, cause(&error));
    let mut options = DecodeOptions::new();
    options.set_color_output(ColorOutput::Indexed);
    let memory = NonZeroU64::new(job.limits.decoder_bytes).unwrap_or(NonZeroU64::MIN);
    options.set_memory_limit(MemoryLimit::Bytes(memory));
    let mut decoder = options.read_info(job.source()).map_err(explained)?;
    let screen = (u32::from(decoder.width()), u32::from(decoder.height()));
    job.check(screen.0.max(1), screen.1.max(1), rgb_bytes(screen.0, screen.1) + WORKING_BYTES)?;

    let no_frame = || job.failed("no frame", if job.structure.complete { Cause::Content } else { Cause::RanOut });
    let frame = decoder.next_frame_info().map_err(explained)?.ok_or_else(no_frame)?;
    let (left, top) = (u32::from(frame.left), u32::from(frame.top));
    let (frame_width, frame_height) = (u32::from(frame.width), u32::from(frame.height));
    let (interlaced, transparent) = (frame.interlaced, frame.transparent);
    // A frame that sticks out makes the canvas larger, as in Pillow and browsers.
    let (width, height) = (screen.0.max(left + frame_width), screen.1.max(top + frame_height));
    job.check(width, height, rgb_bytes(width, height) + WORKING_BYTES)?;

    let palette = decoder.palette().map_err(explained)?.to_vec();
    let colour = |index: u8| match palette.get(usize::from(index) * 3..).and_then(|rest| rest.first_chunk()) {
        _ if Some(index) == transparent => [255; 3],
        Some(colour) => *colour,
        None => [0; 3],
    };
    // Around the frame shows what is transparent, else the palette's first colour, as in Pillow.
    let mut rgb = image::RgbImage::from_pixel(width, height, Rgb(colour(transparent.unwrap_or(0))));
    let mut row = vec![0; frame_width as usize];
    let mut came = 0;
    let mut ended = Ok(true);
    let order = row_order(frame_height, interlaced);
    for y in order.clone() {
        ended = if matches!(ended, Ok(true)) && !row.is_empty() { decoder.fill_buffer(&mut row) } else { ended };
        let there = matches!(ended, Ok(true));
        came += u64::from(there);
        let at = (((top + y) * width + left) * 3) as usize;
        let to = rgb.as_mut()[at..at + row.len() * 3].as_chunks_mut::<3>().0;
        to.iter_mut().zip(&row).for_each(|(to, index)| *to = if there { colour(*index) } else { [MISSING; 3] });
        job.deadline.check()?;
    }
    match ended {
        Err(error) if cause(&error) != Cause::RanOut => return Err(explained(error)),
        Ok(true) => {}
        _ => job.limits.check_rows(came, u64::from(frame_height))?,
    }
    let truncated = !job.structure.complete || came < u64::from(frame_height);
    Ok(Decoded { rgb, icc: None, orientation: exif_orientation(None), truncated })
}

/// The rows in the order in which they are stored (GIF89a, appendix E).
fn row_order(height: u32, interlaced: bool) -> impl Iterator<Item = u32> + Clone {
    let passes: &[(u32, usize)] = if interlaced { &[(0, 8), (4, 8), (2, 4), (1, 2)] } else { &[(0, 1)] };
    passes.iter().flat_map(move |(first, step)| (*first..height).step_by(*step))
}

fn cause(error: &DecodingError) -> Cause {
    match error {
        DecodingError::OutOfMemory | DecodingError::MemoryLimit => Cause::Memory,
        DecodingError::UnexpectedEof => Cause::RanOut,
        DecodingError::Io(error) if error.kind() == ErrorKind::UnexpectedEof => Cause::RanOut,
        _ => Cause::Content,
    }
}
