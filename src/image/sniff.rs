//! The format of an object, from its first bytes.
//!
//! Signatures: WHATWG MIME Sniffing for the web's formats, ISO 14496-12 for the `ftyp` brands, each format's own
//! specification for the rest. Formats that are not decoded here are still told apart, so that a result can say
//! `unsupported_format: HEIC` rather than leave people guessing.

mod raw;

use std::fmt;

use super::ImageError;

/// A format that is decoded here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// AV1 Image File Format; needs the feature `avif`.
    Avif,
    /// Windows bitmap.
    Bmp,
    /// Graphics Interchange Format.
    Gif,
    /// HEVC pictures in a High Efficiency Image File; needs the feature `heic`.
    Heic,
    /// JPEG, baseline or progressive.
    Jpeg,
    /// Portable Network Graphics.
    Png,
    /// Tagged Image File Format.
    Tiff,
    /// WebP, lossy or lossless.
    WebP,
}

impl Format {
    /// The name used in results: lower case, as in the media type.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Format::Avif => "avif",
            Format::Bmp => "bmp",
            Format::Gif => "gif",
            Format::Heic => "heic",
            Format::Jpeg => "jpeg",
            Format::Png => "png",
            Format::Tiff => "tiff",
            Format::WebP => "webp",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How far into a text the root element of an SVG is looked for, past comments and a doctype, in bytes.
const SVG_SEARCH_BYTES: usize = 1024;

const DECODED: [(&[u8], Format); 6] = [
    (b"\xFF\xD8\xFF", Format::Jpeg),
    (b"\x89PNG\r\n\x1A\n", Format::Png),
    (b"GIF87a", Format::Gif),
    (b"GIF89a", Format::Gif),
    (b"II+\0\x08\0\0\0", Format::Tiff),
    (b"MM\0+\0\x08\0\0", Format::Tiff),
];

const NAMED: [(&[u8], &str); 24] = [
    (b"\xFF\x0A", "JPEG XL"),
    (b"\0\0\0\x0CJXL \r\n\x87\n", "JPEG XL"),
    (b"\0\0\0\x0CjP  \r\n\x87\n", "JPEG 2000"),
    (b"\xFF\x4F\xFF\x51", "JPEG 2000"),
    (b"%PDF-", "PDF"),
    (b"%!PS", "PostScript"),
    (b"8BPS", "Photoshop"),
    (b"\0\0\x01\0", "ICO"),
    (b"qoif", "QOI"),
    (b"v/1\x01", "OpenEXR"),
    (b"DDS ", "DDS"),
    (b"#?RADIANCE", "Radiance HDR"),
    (b"\x1A\x45\xDF\xA3", "Matroska or WebM video"),
    // Fujifilm, Olympus, Panasonic and Leica, Sigma, Minolta, Canon before TIFF.
    (b"FUJIFILM", "camera raw"),
    (b"IIRO", "camera raw"),
    (b"IIRS", "camera raw"),
    (b"MMOR", "camera raw"),
    (b"IIU\0", "camera raw"),
    (b"\x46\x4F\x56\x62", "camera raw"),
    (b"\0MRM", "camera raw"),
    (b"II\x1A\0\0\0HEAPCCDR", "camera raw"),
    (b"II\xBC\x01", "JPEG XR"),
    (b"BPG\xFB", "BPG"),
    (b"FLIF", "FLIF"),
];

/// Finds the format that the bytes begin with.
///
/// # Errors
/// [`ImageError::UnsupportedFormat`] with a name, or [`ImageError::NotAnImage`].
pub(super) fn format(bytes: &[u8]) -> Result<Format, ImageError> {
    if let Some((_, format)) = DECODED.iter().find(|(signature, _)| bytes.starts_with(signature)) {
        return Ok(*format);
    }
    if bytes.starts_with(b"II*\0") || bytes.starts_with(b"MM\0*") {
        return match raw::is_camera_raw(bytes) {
            true => Err(ImageError::UnsupportedFormat { format: "camera raw" }),
            false => Ok(Format::Tiff),
        };
    }
    if bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") {
        return Ok(Format::WebP);
    }
    if is_bmp(bytes) {
        return Ok(Format::Bmp);
    }
    if let Some(format) = iso_media(bytes) {
        return format;
    }
    match unsupported(bytes) {
        Some(format) => Err(ImageError::UnsupportedFormat { format }),
        None => Err(ImageError::NotAnImage),
    }
}

/// Two letters alone would take many a text for a bitmap: its second header must have a size that exists.
fn is_bmp(bytes: &[u8]) -> bool {
    let header_size = bytes.get(14..18).and_then(|field| field.first_chunk()).map(|field| u32::from_le_bytes(*field));
    bytes.starts_with(b"BM") && matches!(header_size, Some(12 | 16 | 40 | 52 | 56 | 64 | 108 | 124))
}

fn unsupported(bytes: &[u8]) -> Option<&'static str> {
    if let Some((_, name)) = NAMED.iter().find(|(signature, _)| bytes.starts_with(signature)) {
        return Some(name);
    }
    if bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"AVI ") {
        return Some("AVI video");
    }
    let text = bytes.get(..SVG_SEARCH_BYTES).unwrap_or(bytes).trim_ascii_start();
    let text = text.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(text);
    (text.starts_with(b"<") && text.windows(4).any(|tag| tag == b"<svg")).then_some("SVG")
}

/// Tells the ISO base media files apart by their brands: the major one, then the compatible ones.
fn iso_media(bytes: &[u8]) -> Option<Result<Format, ImageError>> {
    let named = |format| Some(Err(ImageError::UnsupportedFormat { format }));
    if bytes.get(4..8) != Some(b"ftyp") {
        return None;
    }
    let declared = bytes.first_chunk().map_or(0, |size| u32::from_be_bytes(*size) as usize);
    let end = declared.clamp(8, 256).min(bytes.len());
    let brands = bytes.get(8..end).unwrap_or_default();
    // The second word is the minor version, which matches no brand.
    for brand in brands.chunks_exact(4) {
        match brand {
            b"avif" | b"avis" => return Some(Ok(Format::Avif)),
            b"heic" | b"heix" | b"heim" | b"heis" | b"hevc" | b"hevx" => return Some(Ok(Format::Heic)),
            b"crx " => return named("camera raw"),
            b"jxl " => return named("JPEG XL"),
            _ => {}
        }
    }
    match brands.get(..4) {
        Some(b"mif1" | b"msf1") => named("HEIF"),
        _ => named("MP4 or QuickTime video"),
    }
}
