//! The crop and the resize of the training code.

use fast_image_resize::images::{TypedCroppedImage, TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8x3;
use fast_image_resize::{FilterType, ResizeAlg, ResizeOptions, Resizer};
use image::RgbImage;

use super::{Filter, ImageError};

/// A rectangle of whole pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Crop {
    pub(super) left: u32,
    pub(super) top: u32,
    pub(super) width: u32,
    pub(super) height: u32,
}

/// The central square that keeps `fraction` of the short side, rounded as TensorFlow's EfficientNet code rounds it
/// (`preprocessing.py`, `_decode_and_center_crop`): the side down, the offsets up.
pub(super) fn central_crop(width: u32, height: u32, fraction: f64) -> Crop {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within 0 and the short side")]
    let side = ((fraction * f64::from(width.min(height))) as u32).max(1);
    Crop { left: (width - side).div_ceil(2), top: (height - side).div_ceil(2), width: side, height: side }
}

/// The side of a picture that is scaled first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum First {
    Width,
    Height,
}

/// Cuts `crop` out of the image and scales it to `(width, height)`. No pixel outside of the crop is read.
///
/// One side is scaled, rounded to bytes, then the other. Pillow begins with the width; where contrasts are strong the
/// other order differs from it by up to 3 levels. A picture that is stored on its side begins with its height, so that
/// turning it before or after comes to the same.
pub(super) fn resize(
    image: &RgbImage,
    crop: Crop,
    (width, height): (u32, u32),
    filter: Filter,
    first: First,
) -> Result<RgbImage, ImageError> {
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(match filter {
        Filter::Bilinear => FilterType::Bilinear,
        Filter::Bicubic => FilterType::CatmullRom,
        Filter::Lanczos => FilterType::Lanczos3,
    }));
    let (between_width, between_height) = match first {
        First::Width => (width, crop.height),
        First::Height => (crop.width, height),
    };
    // The typed views keep the compiler from building every pixel type's code: half of the crate's build time.
    let source =
        TypedImageRef::<U8x3>::from_buffer(image.width(), image.height(), image.as_raw()).map_err(impossible)?;
    let cut = TypedCroppedImage::from_ref(&source, crop.left, crop.top, crop.width, crop.height).map_err(impossible)?;
    let mut between = TypedImage::<U8x3>::new(between_width, between_height);
    let mut scaled = RgbImage::new(width, height);
    let mut target = TypedImage::<U8x3>::from_buffer(width, height, &mut scaled).map_err(impossible)?;
    let mut resizer = Resizer::new();
    resizer.resize_typed(&cut, &mut between, &options).map_err(impossible)?;
    resizer.resize_typed(&between, &mut target, &options).map_err(impossible)?;
    Ok(scaled)
}

fn impossible(problem: impl std::fmt::Display) -> ImageError {
    ImageError::Corrupt(format!("cannot be resized: {problem}"))
}

#[cfg(test)]
mod tests {
    use super::{Crop, central_crop};

    #[test]
    fn crop_rounds_as_the_training_code() {
        // int(0.875 × 300) = 262; (451 − 262 + 1) // 2 = 95; (300 − 262 + 1) // 2 = 19
        assert_eq!(central_crop(451, 300, 0.875), Crop { left: 95, top: 19, width: 262, height: 262 });
        assert_eq!(central_crop(1, 1, 0.875), Crop { left: 0, top: 0, width: 1, height: 1 });
    }
}
