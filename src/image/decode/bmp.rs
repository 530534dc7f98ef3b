//! BMP. Of a cut file the rows are known that came, unless it is run-length coded.

use image::codecs::bmp::BmpDecoder;
use image::{ImageDecoder, RgbImage};

use super::super::ImageError;
use super::source::Filling;
use super::{Cause, Decoded, Job, MISSING, cause, exif_orientation, flatten};

/// A row, a palette and a run, in bytes.
const WORKING_BYTES: u64 = 512 << 10;

pub(super) fn decode(job: Job<'_>) -> Result<Decoded, ImageError> {
    let explained = |error: image::ImageError| match error {
        image::ImageError::Unsupported(_) => ImageError::UnsupportedFormat { format: "BMP of this kind" },
        error => job.failed(&error, cause(&error)),
    };
    // Before anything is filled in: a header of filling would say anything.
    if header_bytes(job.bytes).is_none_or(|header| (job.bytes.len() as u64) < header) {
        return Err(job.failed("the file ends inside its header", Cause::RanOut));
    }
    let rows = Rows::find(job.bytes);
    let end = rows.as_ref().map_or(0, |rows| rows.end);
    let decoder = BmpDecoder::new(job.source().filled_to(end, Filling::Grey)).map_err(explained)?;
    let (width, height) = decoder.dimensions();
    job.check(width, height, decoder.total_bytes() + WORKING_BYTES)?;
    let came = rows.as_ref().map_or(height, |rows| rows.came(job.bytes.len()).min(height));
    if came < height {
        job.limits.check_rows(u64::from(came), u64::from(height))?;
    }

    let samples = usize::from(decoder.color_type().channel_count());
    let mut pixels = vec![0; usize::try_from(decoder.total_bytes()).unwrap_or_default()];
    decoder.read_image(&mut pixels).map_err(explained)?;
    let mut pixels = if samples == 4 { flatten(pixels) } else { pixels };
    if samples < 3 {
        return Err(ImageError::UnsupportedFormat { format: "BMP of this kind" });
    }
    let missing = (height - came) as usize * width as usize * 3;
    let missing = match rows {
        Some(Rows { top_down: true, .. }) => pixels.len() - missing..pixels.len(),
        _ => 0..missing,
    };
    pixels[missing].fill(MISSING);
    let rgb = RgbImage::from_raw(width, height, pixels).ok_or_else(|| job.failed("pixels", Cause::Content))?;
    Ok(Decoded { rgb, icc: None, orientation: exif_orientation(None), truncated: came < height })
}

/// Length in bytes of both headers, the masks and the palette. None where the file ends before it says so.
fn header_bytes(bytes: &[u8]) -> Option<u64> {
    let size = number(bytes, 14)?;
    let (bits, compression, colours, entry_bytes) = match size {
        12 => (short(bytes, 24)?, 0, 0, 3),
        40.. => (short(bytes, 28)?, number(bytes, 30)?, number(bytes, 46)?, 4),
        _ => return Some(14 + u64::from(size)),
    };
    // Later headers have the masks in themselves.
    let masks = match (size, compression) {
        (40, 3) => 12,
        (40, 6) => 16,
        _ => 0,
    };
    let colours = match (bits, colours) {
        (9.., _) => 0,
        (bits, 0) => 1 << bits,
        (_, colours) => colours.min(256),
    };
    Some(14 + u64::from(size) + masks + u64::from(colours) * entry_bytes)
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn short(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?)))
}

/// Where the rows of an uncompressed bitmap lie.
struct Rows {
    start: u64,
    /// Bytes from one row to the next, and of a row's pixels.
    stride: u64,
    bytes: u64,
    end: u64,
    top_down: bool,
}

impl Rows {
    fn find(bytes: &[u8]) -> Option<Self> {
        let (number, short) = (|at| number(bytes, at), |at| short(bytes, at));
        let start = u64::from(number(10)?);
        let (width, height, bits, compression) = match number(14)? {
            12 => (short(18)?, short(20)?, short(24)?, 0),
            _ => (number(18)?, number(22)?, short(28)?, number(30)?),
        };
        // Run lengths and embedded JPEG or PNG have no rows of a fixed size.
        if !matches!(compression, 0 | 3 | 6) {
            return None;
        }
        let height_rows = u64::from(height.cast_signed().unsigned_abs());
        let bits = u64::from(width) * u64::from(bits);
        let stride = bits.div_ceil(32) * 4;
        let end = start.saturating_add(stride.saturating_mul(height_rows));
        Some(Rows { start, stride, bytes: bits.div_ceil(8), end, top_down: height.cast_signed() < 0 })
    }

    /// Whole rows in a file of this length. The last row can do without its padding.
    fn came(&self, length: usize) -> u32 {
        let padding = self.stride - self.bytes;
        let rows = (length as u64 + padding).saturating_sub(self.start).checked_div(self.stride);
        rows.map_or(u32::MAX, |rows| u32::try_from(rows).unwrap_or(u32::MAX))
    }
}
