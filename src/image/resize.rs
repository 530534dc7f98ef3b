//! The crop and the resize of the training code.

use fast_image_resize::images::{TypedCroppedImage, TypedImage, TypedImageRef};
use fast_image_resize::pixels::{U8, U8x3};
use fast_image_resize::{FilterType, PixelTrait, ResizeAlg, ResizeOptions, Resizer};
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

impl Crop {
    /// All of a picture.
    pub(super) fn whole((width, height): (u32, u32)) -> Self {
        Crop { left: 0, top: 0, width, height }
    }
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

/// How a crop becomes the model's input.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scaling {
    /// Width and height in pixels, as the picture is stored.
    pub(super) size: (u32, u32),
    pub(super) filter: Filter,
    pub(super) first: First,
}

/// A rectangle that may begin and end within a sample.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    pub(super) left: f64,
    pub(super) top: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

/// Cuts a rectangle out of the image and scales it. No pixel outside of it is read.
///
/// One side is scaled, rounded to bytes, then the other. Pillow begins with the width; where contrasts are strong the
/// other order differs from it by up to 3 levels. A picture that is stored on its side begins with its height, so that
/// turning it before or after comes to the same.
pub(super) fn rgb(image: &RgbImage, cut: Cut, scaling: &Scaling) -> Result<RgbImage, ImageError> {
    let (width, height) = scaling.size;
    let mut scaled = RgbImage::new(width, height);
    resize::<U8x3>(image, image.dimensions(), cut, scaling, &mut scaled)?;
    Ok(scaled)
}

/// Cuts and scales a plane of single samples, as [`rgb`] does pixels.
pub(super) fn plane(
    samples: &[u8],
    (width, height): (usize, usize),
    cut: Cut,
    scaling: &Scaling,
) -> Result<Vec<u8>, ImageError> {
    let size = (u32::try_from(width).map_err(impossible)?, u32::try_from(height).map_err(impossible)?);
    let mut scaled = vec![0; scaling.size.0 as usize * scaling.size.1 as usize];
    resize::<U8>(samples, size, cut, scaling, &mut scaled)?;
    Ok(scaled)
}

/// The typed views keep the compiler from building every pixel type's code: half of the crate's build time.
fn resize<P: PixelTrait>(
    samples: &[u8],
    (width, height): (u32, u32),
    cut: Cut,
    scaling: &Scaling,
    scaled: &mut [u8],
) -> Result<(), ImageError> {
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(match scaling.filter {
        Filter::Bilinear => FilterType::Bilinear,
        Filter::Bicubic => FilterType::CatmullRom,
        Filter::Lanczos => FilterType::Lanczos3,
    }));
    let whole = cut.whole((width, height));
    let source = TypedImageRef::<P>::from_buffer(width, height, samples).map_err(impossible)?;
    let source =
        TypedCroppedImage::from_ref(&source, whole.left, whole.top, whole.width, whole.height).map_err(impossible)?;
    // The cut within the whole samples that it touches.
    let (left, top) = (cut.left - f64::from(whole.left), cut.top - f64::from(whole.top));
    let (to_width, to_height) = scaling.size;
    let mut target = TypedImage::<P>::from_buffer(to_width, to_height, scaled).map_err(impossible)?;
    let (between_size, first, second) = match scaling.first {
        First::Width => (
            (to_width, whole.height),
            options.crop(left, 0.0, cut.width, whole.height.into()),
            options.crop(0.0, top, to_width.into(), cut.height),
        ),
        First::Height => (
            (whole.width, to_height),
            options.crop(0.0, top, whole.width.into(), cut.height),
            options.crop(left, 0.0, cut.width, to_height.into()),
        ),
    };
    let mut between = TypedImage::<P>::new(between_size.0, between_size.1);
    let mut resizer = Resizer::new();
    resizer.resize_typed(&source, &mut between, &first).map_err(impossible)?;
    resizer.resize_typed(&between, &mut target, &second).map_err(impossible)?;
    Ok(())
}

impl Cut {
    /// The whole samples that it touches, of an image of this size.
    fn whole(&self, (width, height): (u32, u32)) -> Crop {
        let span = |from: f64, length: f64, most: u32| {
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to the image")]
            let (first, last) = (from.floor().max(0.0) as u32, (from + length).ceil().clamp(0.0, most.into()) as u32);
            (first.min(most), last.saturating_sub(first))
        };
        let (left, width) = span(self.left, self.width, width);
        let (top, height) = span(self.top, self.height, height);
        Crop { left, top, width, height }
    }
}

impl From<Crop> for Cut {
    fn from(crop: Crop) -> Self {
        Cut { left: crop.left.into(), top: crop.top.into(), width: crop.width.into(), height: crop.height.into() }
    }
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
