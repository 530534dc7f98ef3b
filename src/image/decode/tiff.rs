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
use super::source::{Filling, Source};
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

    let offsets = page.get(Tag::StripOffsets).or_else(|| page.get(Tag::TileOffsets));
    let (Some(width), Some(height), Some(offsets)) = (size(&page, Tag::Width), size(&page, Tag::Height), offsets)
    else {
        return Err(job.failed("no size or no strips", Cause::Content));
    };
    job.check(width, height, rgb_bytes(width, height) + WORKING_BYTES)?;
    let mut decoder = Decoder::new(source(&job, &page, compression)).map_err(explained)?.with_limits(limits(&job));
    // A directory may hold a tag twice.
    if decoder.dimensions().map_err(explained)? != (width, height) {
        return Err(job.failed("two sizes", Cause::Content));
    }
    let planes = if page.number(Tag::PlanarConfiguration) == Some(PLANAR) { samples.count } else { 1 };
    let bytes = decoder.image_chunk_buffer_layout(0).map_err(explained)?.len;
    let whole = decoder.chunk_dimensions();
    // The planes, and a row of a tile, which may be wider than the picture.
    let needed = (bytes as u64).saturating_mul(planes as u64).saturating_add(samples.row_bytes(whole.0, planes) as u64);
    let needed = needed.saturating_add(rgb_bytes(width, height) + WORKING_BYTES);
    job.check(width, height, needed)?;

    let mut picture = missing(width, height);
    let mut came = 0;
    let mut buffer = vec![0; bytes * planes];
    let (across, down) = (width.div_ceil(whole.0.max(1)), height.div_ceil(whole.1.max(1)));
    for index in 0..across * down {
        job.deadline.check()?;
        let (chunk_width, chunk_height) = decoder.chunk_data_dimensions(index);
        let row_bytes = samples.row_bytes(chunk_width, planes);
        if (row_bytes as u64).saturating_mul(u64::from(chunk_height)) > bytes as u64 {
            return Err(job.failed("samples of another size than their strips", Cause::Content));
        }
        let mut rows = chunk_height;
        for (number, into) in (index..).step_by((across * down) as usize).zip(buffer.chunks_exact_mut(bytes)) {
            let start = offsets.nth(number as usize).unwrap_or(u64::MAX);
            if compression == JPEG {
                job.check(width, height, needed.saturating_add(jpeg_bytes(&job, start, whole)?))?;
            }
            match decoder.read_chunk_bytes(number, into) {
                Ok(()) if compression == UNCOMPRESSED => rows = rows.min(whole_rows(&job, start, row_bytes as u64)),
                Ok(()) => {}
                Err(error) if cause(&error) == Cause::RanOut => rows = 0,
                Err(error) => return Err(explained(error)),
            }
        }
        let (left, top) = (index % across * whole.0, index / across * whole.1);
        let lines = picture.as_mut().chunks_exact_mut(width as usize * 3).skip(top as usize);
        for (row, line) in lines.take(rows as usize).enumerate() {
            let plane = |plane: usize| &buffer[plane * bytes + row * row_bytes..][..row_bytes];
            colours.convert(&samples, planes, plane, &mut line[left as usize * 3..][..chunk_width as usize * 3]);
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

/// The file as the `tiff` crate is to see it: grey, and filled up where rows that did not come need no decompression.
fn source<'a>(job: &Job<'a>, page: &Directory<'a>, compression: u64) -> Source<'a> {
    let mut source = job.source();
    if let Some(photometric) = page.get(Tag::Photometric).filter(|values| values.width() == 2) {
        source = source.with_patch(photometric.at, photometric.short(BLACK_IS_ZERO).to_vec());
    }
    if compression == UNCOMPRESSED { source.filled_to(u64::MAX >> 1, Filling::Grey) } else { source }
}

fn limits(job: &Job<'_>) -> tiff::decoder::Limits {
    let mut limits = tiff::decoder::Limits::default();
    limits.decoding_buffer_size = usize::try_from(job.limits.decoder_bytes).unwrap_or(usize::MAX);
    // Of compressed bytes, which are streamed.
    limits.intermediate_buffer_size = usize::MAX;
    limits
}

fn size(page: &Directory<'_>, tag: Tag) -> Option<u32> {
    page.number(tag).and_then(|size| u32::try_from(size).ok())
}

/// Whole rows of an uncompressed strip or tile that begins at `start`.
fn whole_rows(job: &Job<'_>, start: u64, row_bytes: u64) -> u32 {
    let rows = (job.bytes.len() as u64).saturating_sub(start).checked_div(row_bytes);
    rows.map_or(0, |rows| u32::try_from(rows).unwrap_or(u32::MAX))
}

/// What the decoder of a JPEG takes, in bytes: it believes the JPEG's own size, which may not be beyond its tile's.
fn jpeg_bytes(job: &Job<'_>, start: u64, (width, height): (u32, u32)) -> Result<u64, ImageError> {
    let at = usize::try_from(start).unwrap_or(usize::MAX);
    let Some((found_width, found_height)) = job.bytes.get(at..).and_then(jpeg_size) else {
        return Ok(0);
    };
    // A whole number of blocks of 16 pixels.
    if u64::from(found_width) >= u64::from(width) + 16 || u64::from(found_height) >= u64::from(height) + 16 {
        let problem = format!("a JPEG of {found_width} × {found_height} pixels in a tile of {width} × {height}");
        return Err(job.failed(problem, Cause::Content));
    }
    // Up to four samples a pixel: coefficients of two bytes, planes, the result, and the crate's copy of it.
    Ok(u64::from(found_width) * u64::from(found_height) * 4 * 5)
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
