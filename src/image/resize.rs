//! A part of a picture, scaled as the training code scales it.

use fast_image_resize::images::{TypedCroppedImage, TypedImage, TypedImageRef};
use fast_image_resize::pixels::{U8, U8x3};
use fast_image_resize::{FilterType, PixelTrait, ResizeAlg, ResizeOptions, Resizer};
use image::RgbImage;

use super::crop::Window;
use super::{Filter, ImageError};

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

/// Scales a window of the image. No pixel outside of its reach is read.
///
/// One side is scaled, rounded to bytes, then the other. Pillow begins with the width; where contrasts are strong the
/// other order differs from it by up to 3 levels. A picture that is stored on its side begins with its height, so that
/// turning it before or after comes to the same.
pub(super) fn rgb(image: &RgbImage, window: &Window, scaling: &Scaling) -> Result<RgbImage, ImageError> {
    let (width, height) = scaling.size;
    let mut scaled = RgbImage::new(width, height);
    resize::<U8x3>(image, image.dimensions(), window, scaling, &mut scaled)?;
    Ok(scaled)
}

/// Cuts and scales a plane of single samples, as [`rgb`] does pixels.
pub(super) fn plane(
    samples: &[u8],
    (width, height): (usize, usize),
    window: &Window,
    scaling: &Scaling,
) -> Result<Vec<u8>, ImageError> {
    let size = (u32::try_from(width).map_err(impossible)?, u32::try_from(height).map_err(impossible)?);
    let mut scaled = vec![0; scaling.size.0 as usize * scaling.size.1 as usize];
    resize::<U8>(samples, size, window, scaling, &mut scaled)?;
    Ok(scaled)
}

/// The typed views keep the compiler from building every pixel type's code, and one type of source for both steps from
/// building what is left of it twice: together more than half of the crate's build time.
fn resize<P: PixelTrait>(
    samples: &[u8],
    (width, height): (u32, u32),
    window: &Window,
    scaling: &Scaling,
    scaled: &mut [u8],
) -> Result<(), ImageError> {
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(match scaling.filter {
        Filter::Bilinear => FilterType::Bilinear,
        Filter::Bicubic => FilterType::CatmullRom,
        Filter::Lanczos => FilterType::Lanczos3,
    }));
    let Window { cut, reach } = *window;
    let source = TypedImageRef::<P>::from_buffer(width, height, samples).map_err(impossible)?;
    let source =
        TypedCroppedImage::from_ref(&source, reach.left, reach.top, reach.width, reach.height).map_err(impossible)?;
    // The cut within the reach. Rounding must not carry it beyond.
    let (left, top) = ((cut.left - f64::from(reach.left)).max(0.0), (cut.top - f64::from(reach.top)).max(0.0));
    let (cut_width, cut_height) =
        (cut.width.min(f64::from(reach.width) - left), cut.height.min(f64::from(reach.height) - top));
    let (to_width, to_height) = scaling.size;
    let mut target = TypedImage::<P>::from_buffer(to_width, to_height, scaled).map_err(impossible)?;
    let (between_size, first, second) = match scaling.first {
        First::Width => (
            (to_width, reach.height),
            options.crop(left, 0.0, cut_width, reach.height.into()),
            options.crop(0.0, top, to_width.into(), cut_height),
        ),
        First::Height => (
            (reach.width, to_height),
            options.crop(0.0, top, reach.width.into(), cut_height),
            options.crop(left, 0.0, cut_width, to_height.into()),
        ),
    };
    let (between_width, between_height) = between_size;
    let mut scaled_once = vec![0; between_width as usize * between_height as usize * size_of::<P>()];
    let mut between =
        TypedImage::<P>::from_buffer(between_width, between_height, &mut scaled_once).map_err(impossible)?;
    let mut resizer = Resizer::new();
    resizer.resize_typed(&source, &mut between, &first).map_err(impossible)?;
    let between = TypedImageRef::<P>::from_buffer(between_width, between_height, &scaled_once).map_err(impossible)?;
    let between = TypedCroppedImage::from_ref(&between, 0, 0, between_width, between_height).map_err(impossible)?;
    resizer.resize_typed(&between, &mut target, &second).map_err(impossible)?;
    Ok(())
}

fn impossible(problem: impl std::fmt::Display) -> ImageError {
    ImageError::Corrupt(format!("cannot be resized: {problem}"))
}
