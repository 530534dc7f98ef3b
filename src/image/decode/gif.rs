//! GIF: the first frame on its canvas, row by row.

use std::io::ErrorKind;
use std::num::NonZeroU64;

use gif::{ColorOutput, DecodeOptions, DecodingError, MemoryLimit};
use image::Rgb;

use super::super::ImageError;
use super::{Cause, Decoded, Job, MISSING, exif_orientation, rgb_bytes};

/// Palettes, code tables, a row, and the numbers of those that did not come, in bytes.
const WORKING_BYTES: u64 = 512 << 10;

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
    let at = |y: u32| ((top + y) as usize * width as usize + left as usize) * 3;
    let mut came = 0;
    // Rows of an interlaced frame that did not come.
    let mut late = Vec::new();
    let mut ended = Ok(true);
    for (pass, y) in row_order(frame_height, interlaced) {
        ended = if matches!(ended, Ok(true)) && !row.is_empty() { decoder.fill_buffer(&mut row) } else { ended };
        let there = matches!(ended, Ok(true));
        if there {
            came = if interlaced { rows_seen(pass, y, frame_height) } else { y + 1 };
        } else if interlaced {
            late.push(y);
        }
        let to = at(y);
        let to = rgb.as_mut()[to..to + row.len() * 3].as_chunks_mut::<3>().0;
        to.iter_mut().zip(&row).for_each(|(to, index)| *to = if there { colour(*index) } else { [MISSING; 3] });
        job.deadline.check()?;
    }
    let truncated = !job.structure.complete || !matches!(ended, Ok(true));
    match ended {
        Err(error) if cause(&error) != Cause::RanOut => return Err(explained(error)),
        Ok(true) => {}
        _ => job.limits.check_rows(u64::from(came), u64::from(frame_height))?,
    }
    // A row of an early pass stands for the rows below it until a later pass brings them.
    late.sort_unstable();
    for y in late.into_iter().filter(|y| *y > 0) {
        let above = at(y - 1);
        rgb.as_mut().copy_within(above..above + row.len() * 3, at(y));
    }
    Ok(Decoded { rgb, icc: None, orientation: exif_orientation(None), truncated })
}

/// The rows in the order in which they are stored, each with its pass (GIF89a, appendix E).
fn row_order(height: u32, interlaced: bool) -> impl Iterator<Item = (usize, u32)> {
    let passes: &[(u32, usize)] = if interlaced { &[(0, 8), (4, 8), (2, 4), (1, 2)] } else { &[(0, 1)] };
    let rows =
        move |(pass, (first, step)): (usize, &(u32, usize))| (*first..height).step_by(*step).map(move |y| (pass, y));
    passes.iter().enumerate().flat_map(rows)
}

/// Rows of an interlaced frame that are there at half resolution or better, once this one came. The third pass completes
/// every second row, four rows a line, as the fifth of a PNG does.
fn rows_seen(pass: usize, y: u32, height: u32) -> u32 {
    match pass {
        0 | 1 => 0,
        2 => (y + 2).min(height),
        _ => height,
    }
}

fn cause(error: &DecodingError) -> Cause {
    match error {
        DecodingError::OutOfMemory | DecodingError::MemoryLimit => Cause::Memory,
        DecodingError::UnexpectedEof => Cause::RanOut,
        DecodingError::Io(error) if error.kind() == ErrorKind::UnexpectedEof => Cause::RanOut,
        _ => Cause::Content,
    }
}
