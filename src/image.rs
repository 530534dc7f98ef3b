//! Object bytes in, the model's input pixels out.
//!
//! [`prepare`] trusts the content alone, never a name or a declared type. It reads the dimensions before it allocates
//! for a pixel, decodes the first frame to 8-bit RGB on white, and crops and resizes as the model was trained. It
//! never panics: a decoder that does costs its own image only. Pure CPU work, for a thread that may block.
//!
//! `sniff → limits → decode → crop → resize → colour → orientation`: the crop is found on the upright image but cut from the
//! stored one, so that only the small result is converted to sRGB and turned. A JPEG is decoded in a scale for that crop
//! (`jpeg`), every other format whole (`decode`).

mod avif;
mod colour;
mod crop;
mod decode;
mod heic;
#[cfg(any(feature = "avif", feature = "heic"))]
mod heif;
mod jpeg;
mod limits;
mod orientation;
mod resize;
mod sniff;
mod structure;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ::image::RgbImage;
use ::image::metadata::Orientation;

use crate::event::FailureCode;
use crop::Window;
use resize::Scaling;

pub use limits::Limits;
pub use sniff::Format;

/// An upright RGB image of the size the model takes.
#[derive(Clone, PartialEq, Eq)]
pub struct Pixels {
    /// Height in pixels.
    pub height: usize,
    /// Width in pixels.
    pub width: usize,
    /// `height × width × 3` bytes, row by row, red, green, blue.
    pub rgb: Vec<u8>,
}

/// Its size: the values would fill a log.
impl fmt::Debug for Pixels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pixels").field("height", &self.height).field("width", &self.width).finish_non_exhaustive()
    }
}

/// How the model's training code cut and scaled its images.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Preprocess {
    /// Width of the model's input in pixels.
    pub width: u32,
    /// Height of the model's input in pixels.
    pub height: u32,
    /// What of the picture becomes the input.
    pub resize: Resize,
    /// Filter that scales it.
    pub filter: Filter,
}

/// What of an upright picture becomes the model's input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Resize {
    /// TensorFlow's EfficientNet: the central square that keeps this share of the short side, in `(0, 1]`, is scaled to
    /// the input's size.
    CropFraction(f64),
    /// torchvision and timm: the picture is scaled so that its short side has this many pixels, at least the input's
    /// longer side, and the input is cut from the middle.
    ShortSide(u32),
    /// All of the picture is scaled to the input's size, whatever its shape.
    Squash,
}

/// An antialiased resampling filter, as Pillow defines it: its support grows with the reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Filter {
    /// Triangle, support 1.
    Bilinear,
    /// Cubic with a = −0.5 (Catmull-Rom), support 2.
    Bicubic,
    /// Lanczos, support 3.
    Lanczos,
}

impl Filter {
    /// How far the filter reaches from its middle, in samples of the smaller of its two pictures.
    fn support(self) -> f64 {
        match self {
            Filter::Bilinear => 1.0,
            Filter::Bicubic => 2.0,
            Filter::Lanczos => 3.0,
        }
    }
}

/// An image ready for the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// The model's input.
    pub pixels: Pixels,
    /// What the object held.
    pub info: ImageInfo,
}

/// What an object held, for its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageInfo {
    /// Format found in the content.
    pub format: Format,
    /// Width in pixels as stored, before the orientation is applied.
    pub width: u32,
    /// Height in pixels as stored, before the orientation is applied.
    pub height: u32,
    /// EXIF orientation, 1 to 8; 1 where there is none.
    pub orientation: u8,
    /// The file ends early. Rows that did not come are filled.
    pub truncated: bool,
}

/// An object that cannot be labelled. Trying again cannot help.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// No known image format.
    #[error("not an image: no known format begins like this")]
    NotAnImage,
    /// A picture, film or document of a format that is not decoded here.
    #[error("unsupported format: {format}")]
    UnsupportedFormat {
        /// Its common name, such as `HEIC`.
        format: &'static str,
    },
    /// Larger than [`Limits`] allow.
    #[error("too many pixels: {what} {found} exceeds the limit of {limit}")]
    TooManyPixels {
        /// What is too large: `width`, `height`, `pixels`, `decoder memory`.
        what: &'static str,
        /// The image's figure, in pixels or bytes.
        found: u64,
        /// The limit, in the same unit.
        limit: u64,
    },
    /// More parts than [`Limits`] allow, or more work.
    #[error("too complex: {what} {found} exceeds the limit of {limit}")]
    TooComplex {
        /// What there is too much of: `frames`, `metadata chunks`, `scans`, `decode time (ms)`.
        what: &'static str,
        /// The image's figure.
        found: u64,
        /// The limit, in the same unit.
        limit: u64,
    },
    /// The file ends before enough of the picture.
    #[error("truncated image: {0}")]
    Truncated(String),
    /// The content contradicts its format.
    #[error("corrupt image: {0}")]
    Corrupt(String),
}

impl ImageError {
    /// The code that a failed result carries, from the closed list of `docs/results.md`.
    #[must_use]
    pub fn code(&self) -> FailureCode {
        match self {
            ImageError::NotAnImage => FailureCode::NotAnImage,
            ImageError::UnsupportedFormat { .. } => FailureCode::UnsupportedFormat,
            ImageError::TooManyPixels { .. } => FailureCode::TooManyPixels,
            ImageError::TooComplex { .. } => FailureCode::TooComplex,
            ImageError::Truncated(_) => FailureCode::TruncatedImage,
            ImageError::Corrupt(_) => FailureCode::CorruptImage,
        }
    }
}

/// Turns an object's bytes into the model's input.
///
/// # Errors
/// [`ImageError`]: always the image's own fault, none is worth a retry.
pub fn prepare(bytes: &[u8], limits: &Limits, preprocess: &Preprocess) -> Result<Prepared, ImageError> {
    contained(|| {
        let format = sniff::format(bytes)?;
        if format == Format::Jpeg {
            let header = jpeg::Header::read(bytes, limits)?;
            let stored = header.dimensions();
            let orientation = header.orientation();
            let (window, scaling) = stored_input(stored, orientation, preprocess);
            let least = |side: u32| f64::from(side) * limits.jpeg_oversampling;
            let size = (least(scaling.size.0), least(scaling.size.1));
            let jpeg::Decoded { picture, truncated } = header.decode(&window, size, limits)?;
            return Ok(prepared(picture.scaled(&scaling)?, format, stored, orientation, truncated));
        }
        let decode::Decoded { rgb, icc, orientation, truncated } = decode::decode(bytes, format, limits)?;
        let (window, scaling) = stored_input(rgb.dimensions(), orientation, preprocess);
        let mut small = resize::rgb(&rgb, &window, &scaling)?;
        if let Some(icc) = &icc {
            colour::rgb(&mut small, icc);
        }
        Ok(prepared(small, format, rgb.dimensions(), orientation, truncated))
    })
}

/// What of the stored picture becomes the model's input, and how.
fn stored_input((width, height): (u32, u32), orientation: Orientation, preprocess: &Preprocess) -> (Window, Scaling) {
    let (width, height) = orientation::upright_size((width, height), orientation);
    let window = Window::of((width, height), preprocess);
    let scaling = Scaling {
        size: orientation::stored_size((preprocess.width, preprocess.height), orientation),
        filter: preprocess.filter,
        first: orientation::upright_width(orientation),
    };
    (orientation::stored_window(window, (width, height), orientation), scaling)
}

fn prepared(
    small: RgbImage,
    format: Format,
    (width, height): (u32, u32),
    orientation: Orientation,
    truncated: bool,
) -> Prepared {
    let info = ImageInfo { format, width, height, orientation: orientation.to_exif(), truncated };
    Prepared { pixels: orientation::turn(small, orientation), info }
}

/// Decodes an image as it is, upright and in sRGB, but uncut and unscaled.
///
/// # Errors
/// As [`prepare`].
pub fn decode(bytes: &[u8], limits: &Limits) -> Result<Pixels, ImageError> {
    contained(|| {
        let decode::Decoded { mut rgb, icc, orientation, .. } = decode::decode(bytes, sniff::format(bytes)?, limits)?;
        if let Some(icc) = &icc {
            colour::rgb(&mut rgb, icc);
        }
        Ok(orientation::turn(rgb, orientation))
    })
}

/// Foreign bytes have made every decoder panic at some time (image-rs/image#1775): that is their image's error.
fn contained<T>(work: impl FnOnce() -> Result<T, ImageError>) -> Result<T, ImageError> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(ImageError::Corrupt("the decoder gave up in an unforeseen way".to_owned())))
}
