//! Foreign bytes to 8-bit RGB in stored orientation.
//!
//! Alpha is composited on white, 16 bits are scaled to 8, grey, palette and CMYK become RGB, and of many frames the
//! first is taken.

use std::io::{Cursor, ErrorKind};

use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, Rgb, RgbImage, Rgba, RgbaImage};

use super::{Format, ImageError, Limits, avif, heic, jpeg};

/// A decoded picture, as it is stored.
pub(super) struct Decoded {
    pub(super) rgb: RgbImage,
    /// Colour profile of the pixels.
    pub(super) icc: Option<Vec<u8>>,
    /// How to turn it upright.
    pub(super) orientation: Orientation,
    /// The file ends early.
    pub(super) truncated: bool,
}

/// Decodes the first picture of a file of this format. Its dimensions are checked before a pixel is allocated.
pub(super) fn decode(bytes: &[u8], format: Format, limits: &Limits) -> Result<Decoded, ImageError> {
    match format {
        Format::Avif => return avif::decode(bytes, limits),
        Format::Heic => return heic::decode(bytes, limits),
        _ => {}
    }
    let truncated = format == Format::Jpeg && !jpeg::is_complete(bytes);
    let explained = |error| explain(error, format, truncated, limits);
    let mut reader = ImageReader::with_format(Cursor::new(bytes), crate_format(format));
    let mut decoder_limits = image::Limits::no_limits();
    decoder_limits.max_alloc = Some(limits.decoder_bytes);
    reader.limits(decoder_limits);
    let mut decoder = reader.into_decoder().map_err(explained)?;
    let (width, height) = decoder.dimensions();
    limits.check(width, height, decoder.total_bytes())?;
    // Broken metadata is no reason to refuse a picture.
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let image = DynamicImage::from_decoder(decoder).map_err(explained)?;
    if width == 0 || height == 0 {
        return Err(ImageError::Corrupt(format!("a picture of {width} × {height} pixels")));
    }
    Ok(Decoded { rgb: on_white(image), icc: None, orientation, truncated })
}

fn crate_format(format: Format) -> ImageFormat {
    match format {
        Format::Avif | Format::Heic => ImageFormat::Avif,
        Format::Bmp => ImageFormat::Bmp,
        Format::Gif => ImageFormat::Gif,
        Format::Jpeg => ImageFormat::Jpeg,
        Format::Png => ImageFormat::Png,
        Format::Tiff => ImageFormat::Tiff,
        Format::WebP => ImageFormat::WebP,
    }
}

fn on_white(image: DynamicImage) -> RgbImage {
    if image.color().has_alpha() { composite(&image.into_rgba8()) } else { image.into_rgb8() }
}

fn composite(image: &RgbaImage) -> RgbImage {
    let mut rgb = RgbImage::new(image.width(), image.height());
    for (Rgb(to), Rgba([red, green, blue, alpha])) in rgb.pixels_mut().zip(image.pixels()) {
        *to = [red, green, blue].map(|colour| over_white(*colour, *alpha));
    }
    rgb
}

fn over_white(colour: u8, alpha: u8) -> u8 {
    let (colour, alpha) = (u32::from(colour), u32::from(alpha));
    let blended = (colour * alpha + 255 * (255 - alpha) + 127) / 255;
    u8::try_from(blended).unwrap_or(u8::MAX)
}

fn explain(error: image::ImageError, format: Format, truncated: bool, limits: &Limits) -> ImageError {
    match error {
        image::ImageError::Limits(_) => ImageError::TooManyPixels {
            what: "decoder memory",
            // The decoder asked for more than it was told that it may have, and does not say how much.
            found: limits.decoder_bytes.saturating_add(1),
            limit: limits.decoder_bytes,
        },
        image::ImageError::Unsupported(_) => ImageError::UnsupportedFormat { format: variant(format) },
        error if truncated || ran_out(&error) => ImageError::Truncated(error.to_string()),
        error => ImageError::Corrupt(error.to_string()),
    }
}

/// Names a kind of a format that its decoder leaves out, such as TIFF with floating-point samples.
fn variant(format: Format) -> &'static str {
    match format {
        Format::Avif | Format::Heic => "HEIF of this kind",
        Format::Bmp => "a BMP of this kind",
        Format::Gif => "a GIF of this kind",
        Format::Jpeg => "a JPEG of this kind",
        Format::Png => "a PNG of this kind",
        Format::Tiff => "a TIFF of this kind",
        Format::WebP => "a WebP of this kind",
    }
}

/// Some decoders say that the bytes ran out as an I/O error, the GIF one in words of its own.
fn ran_out(error: &image::ImageError) -> bool {
    match error {
        image::ImageError::IoError(error) => error.kind() == ErrorKind::UnexpectedEof,
        error => error.to_string().to_lowercase().contains("unexpected end of file"),
    }
}
