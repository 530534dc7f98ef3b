//! PNG, row by row, so that what came of a cut file is not lost.
//!
//! Of an APNG the default image is taken: it is the first frame, or stands for all of them.

use std::io::ErrorKind;

use png::{DecodingError, Transformations};

use super::super::ImageError;
use super::{Cause, Decoded, Job, exif_orientation, missing, rgb_bytes, to_rgb};

/// Rows that the decoder holds at a time, unfiltered and converted, its window, and the EXIF chunk, in bytes.
fn working_bytes(width: u32, exif: u64) -> u64 {
    // A buffer that doubles as it fills, and a copy.
    u64::from(width) * 8 * 4 + (1 << 20) + exif.saturating_mul(3)
}

pub(super) fn decode(job: Job<'_>) -> Result<Decoded, ImageError> {
    let explained = |error: DecodingError| job.failed(&error, cause(&error));
    let exif = longest_exif(job.bytes);
    // The decoder cannot be told to pass over EXIF, and its limit counts the buffer.
    let most = (2 * exif + (1 << 20)).min(job.limits.decoder_bytes);
    let most = png::Limits { bytes: usize::try_from(most).unwrap_or(usize::MAX) };
    let mut decoder = png::Decoder::new_with_limits(job.source(), most);
    // The walk found what matters of it; inflating the rest is all that a bomb could want.
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
    let (width, height) = decoder.read_header_info().map_err(explained)?.size();
    job.check(width, height, rgb_bytes(width, height) + working_bytes(width, exif))?;

    let mut reader = decoder.read_info().map_err(explained)?;
    let samples = reader.output_color_type().0.samples();
    let mut row = vec![0; reader.output_line_size(width).unwrap_or_default()];
    let mut rgb_row = vec![0; width as usize * 3];
    let mut rgb = missing(width, height);
    let stride = width as usize * 3;
    let interlaced = reader.info().interlaced;
    // A pixel of an early pass stands for its block until a later pass refines it.
    let paint = if job.structure.complete { png::expand_interlaced_row } else { png::splat_interlaced_row };
    let mut came = 0;
    let mut ended = Ok(());
    for Row { pass, line, pixels } in rows(width, height, interlaced) {
        if let Err(error) = reader.read_row(&mut row) {
            ended = Err(error);
            break;
        }
        job.deadline.check()?;
        if interlaced {
            to_rgb(samples, &row[..pixels * samples], &mut rgb_row);
            paint(rgb.as_mut(), stride, &rgb_row[..pixels * 3], &png::Adam7Info::new(pass, line, width), 24);
            came = rows_seen(pass, line, height);
        } else {
            to_rgb(samples, &row, &mut rgb.as_mut()[line as usize * stride..][..stride]);
            came = line + 1;
        }
    }
    // What follows the last row holds the checksums.
    let ended = ended.and_then(|()| reader.read_row(&mut row).map(drop));
    match ended {
        Err(error) if cause(&error) != Cause::RanOut => return Err(explained(error)),
        Err(_) => job.limits.check_rows(u64::from(came), u64::from(height))?,
        Ok(()) => {}
    }
    let truncated = !job.structure.complete || ended.is_err();
    let orientation = exif_orientation(job.structure.exif);
    Ok(Decoded { rgb, icc: job.structure.icc(), orientation, truncated })
}

/// Length in bytes of the longest EXIF chunk, as far as the file has it.
fn longest_exif(bytes: &[u8]) -> u64 {
    let (mut at, mut longest) = (8_usize, 0);
    while let Some((length, rest)) = bytes.get(at..).and_then(|rest| rest.split_first_chunk()) {
        let length = u32::from_be_bytes(*length) as usize;
        if let Some(data) = rest.strip_prefix(b"eXIf") {
            longest = longest.max(length.min(data.len()));
        }
        // Length, kind and checksum.
        at = at.saturating_add(length).saturating_add(12);
    }
    longest as u64
}

/// A row as it is stored.
struct Row {
    /// Of an interlaced picture: 1 to 7.
    pass: u8,
    /// Within the pass.
    line: u32,
    pixels: usize,
}

/// First column and row, and the steps from there, of each pass of Adam7 (W3C PNG, third edition, section 8.1).
const ADAM7: [(u32, u32, u32, u32); 7] =
    [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)];

/// The rows in the order in which they are stored.
fn rows(width: u32, height: u32, interlaced: bool) -> impl Iterator<Item = Row> {
    let passes: &[_] = if interlaced { &ADAM7 } else { &[(0, 0, 1, 1)] };
    (1..).zip(passes).flat_map(move |(pass, (left, top, across, down))| {
        let pixels = width.saturating_sub(*left).div_ceil(*across) as usize;
        let lines = if pixels == 0 { 0 } else { height.saturating_sub(*top).div_ceil(*down) };
        (0..lines).map(move |line| Row { pass, line, pixels })
    })
}

/// Rows of an interlaced picture that are there at half resolution or better. The fifth pass completes the even
/// columns of every second row, four rows a line.
fn rows_seen(pass: u8, line: u32, height: u32) -> u32 {
    match pass {
        0..5 => 0,
        5 => (line + 1).saturating_mul(4).min(height),
        _ => height,
    }
}

fn cause(error: &DecodingError) -> Cause {
    match error {
        DecodingError::LimitsExceeded => Cause::Memory,
        DecodingError::IoError(error) if error.kind() == ErrorKind::UnexpectedEof => Cause::RanOut,
        _ => Cause::Content,
    }
}
