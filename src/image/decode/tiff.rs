//! TIFF: the first page, one strip or tile at a time.
//!
//! The `tiff` crate undoes compression and prediction; what the samples mean is decided here. To it, every picture is
//! shown as grey with so many samples a pixel, as it refuses palettes and leaves out what it takes for extra.

mod colour;

use std::io::ErrorKind;

use image::metadata::Orientation;
use tiff::decoder::Decoder;
use tiff::tags::CompressionMethod;
use tiff::{TiffError, TiffUnsupportedError};

use super::super::ImageError;
use super::super::structure::{Directory, Tag};
use super::{Cause, Decoded, Job, missing, rgb_bytes};
use colour::{Colours, Samples};

/// Directory, tables and a decompressor, in bytes.
const WORKING_BYTES: u64 = 4 << 20;
/// Tags whose values may lie outside of the directory, and without which the picture cannot be read.
const NEEDED: [Tag; 6] =
    [Tag::BitsPerSample, Tag::StripOffsets, Tag::TileOffsets, Tag::ColorMap, Tag::ExtraSamples, Tag::SampleFormat];
const UNCOMPRESSED: u64 = 1;
const JPEG: u64 = 7;
/// PhotometricInterpretation of grey samples.
const BLACK_IS_ZERO: u16 = 1;
const PLANAR: u64 = 2;

pub(super) fn decode(job: Job<'_>) -> Result<Decoded, ImageError> {
    let explained = |error: TiffError| explain(&job, &error);
    let cut = || job.failed("the file ends before its first page's directory", Cause::RanOut);
    let page = Directory::first(job.bytes).ok_or_else(cut)?;
    if NEEDED.iter().any(|tag| page.lacks(*tag)) {
        return Err(cut());
    }
    let samples = Samples::find(&page)?;
    let mut colours = Colours::find(&page, &samples, job.structure.icc())?;
    let compression = page.number(Tag::Compression).unwrap_or(UNCOMPRESSED);

    let mut source = job.source();
    if let Some(photometric) = page.get(Tag::Photometric).filter(|values| values.width() == 2) {
        source = source.with_patch(photometric.at, photometric.short(BLACK_IS_ZERO).to_vec());
    }
    let offsets = page.get(Tag::StripOffsets).or_else(|| page.get(Tag::TileOffsets));
    let (Some(width), Some(height), Some(offsets)) = (size(&page, Tag::Width), size(&page, Tag::Height), offsets)
    else {
        return Err(job.failed("no size or no strips", Cause::Content));
    };
    job.check(width, height, rgb_bytes(width, height) + WORKING_BYTES)?;
    let mut decoder = Decoder::new(if compression == UNCOMPRESSED { source.filled_to(u64::MAX >> 1) } else { source })
        .map_err(explained)?;
    let mut limits = tiff::decoder::Limits::default();
    limits.decoding_buffer_size = usize::try_from(job.limits.decoder_bytes).unwrap_or(usize::MAX);
    // Of this many compressed bytes, as it turns out; they are streamed.
    limits.intermediate_buffer_size = usize::MAX;
    decoder = decoder.with_limits(limits);

    let (chunk_width, chunk_height) = decoder.chunk_dimensions();
    let (across, down) = (width.div_ceil(chunk_width.max(1)), height.div_ceil(chunk_height.max(1)));
    let planes = if page.number(Tag::PlanarConfiguration) == Some(PLANAR) { samples.count } else { 1 };
    let chunk = decoder.image_chunk_buffer_layout(0).map_err(explained)?.len;
    // A JPEG is held as coefficients, as planes and as samples.
    let copies = planes as u64 + if compression == JPEG { 4 } else { 0 };
    job.check(width, height, rgb_bytes(width, height) + WORKING_BYTES + chunk as u64 * copies)?;

    let mut picture = missing(width, height);
    let mut came = 0;
    let mut buffer = vec![0; chunk * planes];
    for index in 0..across * down {
        job.deadline.check()?;
        let (left, top) = (index % across * chunk_width, index / across * chunk_height);
        let (chunk_width, chunk_height) = decoder.chunk_data_dimensions(index);
        let row_bytes = samples.row_bytes(chunk_width, planes);
        let mut rows = chunk_height;
        for plane in 0..planes {
            let number = index + u32::try_from(plane).unwrap_or_default() * across * down;
            let start = offsets.nth(number as usize).unwrap_or(u64::MAX);
            if compression == JPEG {
                check_jpeg(&job, start, decoder.chunk_dimensions())?;
            }
            let into = &mut buffer[plane * chunk..][..chunk];
            match decoder.read_chunk_bytes(number, into) {
                Ok(()) if compression == UNCOMPRESSED => rows = rows.min(whole_rows(&job, start, row_bytes as u64)),
                Ok(()) => {}
                Err(error) if cause(&error) == Cause::RanOut => rows = 0,
                Err(error) => return Err(explained(error)),
            }
        }
        for row in 0..rows {
            let from = |plane: usize| &buffer[plane * chunk + row as usize * row_bytes..][..row_bytes];
            let at = (u64::from(top + row) * u64::from(width) + u64::from(left)) * 3;
            let at = usize::try_from(at).unwrap_or(usize::MAX);
            let to = &mut picture.as_mut()[at..][..chunk_width as usize * 3];
            colours.convert(&samples, planes, from, to);
        }
        came += u64::from(rows) * u64::from(chunk_width);
    }
    let pixels = u64::from(width) * u64::from(height);
    if came < pixels {
        job.limits.check_rows(came, pixels)?;
    }
    let truncated = came < pixels || !job.structure.complete;
    let orientation = page.number(Tag::Orientation).and_then(|value| u8::try_from(value).ok());
    let orientation = orientation.and_then(Orientation::from_exif).unwrap_or(Orientation::NoTransforms);
    Ok(Decoded { rgb: picture, icc: colours.into_icc(), orientation, truncated })
}

fn size(page: &Directory<'_>, tag: Tag) -> Option<u32> {
    page.number(tag).and_then(|size| u32::try_from(size).ok())
}

/// Whole rows of an uncompressed strip or tile that begins at `start`.
fn whole_rows(job: &Job<'_>, start: u64, row_bytes: u64) -> u32 {
    let rows = (job.bytes.len() as u64).saturating_sub(start).checked_div(row_bytes);
    rows.map_or(0, |rows| u32::try_from(rows).unwrap_or(u32::MAX))
}

/// Refuses a JPEG that is larger than the strip or tile that it fills: its decoder believes it, and allocates.
fn check_jpeg(job: &Job<'_>, start: u64, (width, height): (u32, u32)) -> Result<(), ImageError> {
    let at = usize::try_from(start).unwrap_or(usize::MAX);
    let Some((found_width, found_height)) = job.bytes.get(at..).and_then(jpeg_size) else {
        return Ok(());
    };
    // A whole number of blocks of 16 pixels.
    if u64::from(found_width) < u64::from(width) + 16 && u64::from(found_height) < u64::from(height) + 16 {
        return Ok(());
    }
    let problem = format!("a JPEG of {found_width} × {found_height} pixels in a tile of {width} × {height}");
    Err(job.failed(problem, Cause::Content))
}

/// Width and height from a JPEG's frame header (ITU-T T.81, B.2.2).
fn jpeg_size(jpeg: &[u8]) -> Option<(u16, u16)> {
    let number = |at: usize| jpeg.get(at..)?.first_chunk().copied().map(u16::from_be_bytes);
    let mut at = 2;
    while let Some([0xFF, marker]) = jpeg.get(at..at + 2) {
        match marker {
            0xC0..=0xC3 | 0xC5..=0xC7 | 0xC9..=0xCB | 0xCD..=0xCF => return Some((number(at + 7)?, number(at + 5)?)),
            0xFF => at += 1,
            0x01 | 0xD0..=0xD8 => at += 2,
            _ => at += 2 + usize::from(number(at + 2)?),
        }
    }
    None
}

fn explain(job: &Job<'_>, error: &TiffError) -> ImageError {
    match error {
        TiffError::UnsupportedError(TiffUnsupportedError::UnsupportedCompressionMethod(method)) => {
            ImageError::UnsupportedFormat { format: compression_name(*method) }
        }
        TiffError::UnsupportedError(_) => ImageError::UnsupportedFormat { format: "TIFF of this kind" },
        error => job.failed(error, cause(error)),
    }
}

fn compression_name(method: CompressionMethod) -> &'static str {
    match method {
        CompressionMethod::Huffman | CompressionMethod::Fax3 => "TIFF compressed with CCITT Group 3",
        CompressionMethod::JPEG => "TIFF compressed with JPEG in the old style",
        CompressionMethod::ZSTD => "TIFF compressed with Zstandard",
        CompressionMethod::WebP => "TIFF compressed with WebP",
        _ => "TIFF of an unusual compression",
    }
}

fn cause(error: &TiffError) -> Cause {
    match error {
        TiffError::LimitsExceeded => Cause::Memory,
        TiffError::IoError(error) if error.kind() == ErrorKind::UnexpectedEof => Cause::RanOut,
        _ => Cause::Content,
    }
}
