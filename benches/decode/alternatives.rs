//! Ways to the model's input that need no more than the program's own dependencies.

use std::io::Cursor;

use fast_image_resize::images::{Image, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use image::{ImageReader, RgbImage};
use stoker::image::{Filter, Limits, Preprocess, Resize, prepare};
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;

use super::measure::Contender;

/// What the built-in model was trained with.
pub(super) const CROP_FRACTION: f64 = 0.875;
pub(super) const PREPROCESS: Preprocess =
    Preprocess { width: 224, height: 224, resize: Resize::CropFraction(CROP_FRACTION), filter: Filter::Bicubic };

/// The program's own way.
pub(super) fn stoker(bytes: &[u8]) -> Vec<u8> {
    prepare(bytes, &Limits::default(), &PREPROCESS).unwrap().pixels.rgb
}

/// Decoding in full and `fast_image_resize`.
pub(super) fn rust(bytes: &[u8]) -> Vec<Contender> {
    if bytes.starts_with(b"\xFF\xD8") {
        vec![Contender::new("zune-jpeg + fast_image_resize", |bytes| shrink(&zune(bytes), None))]
    } else {
        vec![Contender::new("image + fast_image_resize", |bytes| shrink(&full(bytes), None))]
    }
}

/// Decodes with `image`.
pub(super) fn full(bytes: &[u8]) -> RgbImage {
    ImageReader::new(Cursor::new(bytes)).with_guessed_format().unwrap().decode().unwrap().into_rgb8()
}

/// Decodes a JPEG with `zune-jpeg`.
pub(super) fn zune(bytes: &[u8]) -> RgbImage {
    let mut decoder = JpegDecoder::new(ZCursor::new(bytes));
    let rgb = decoder.decode().unwrap();
    let (width, height) = decoder.dimensions().unwrap();
    RgbImage::from_raw(width as u32, height as u32, rgb).unwrap()
}

/// Cuts and scales to the model's input. `full` is the size in pixels of the picture of which this is a reduced one.
pub(super) fn shrink(picture: &RgbImage, full: Option<(u32, u32)>) -> Vec<u8> {
    let (width, height) = full.unwrap_or(picture.dimensions());
    let side = f64::from(width.min(height)) * CROP_FRACTION;
    let (left, top) = ((f64::from(width) - side) / 2.0, (f64::from(height) - side) / 2.0);
    let across = f64::from(picture.width()) / f64::from(width);
    let down = f64::from(picture.height()) / f64::from(height);
    let source = ImageRef::new(picture.width(), picture.height(), picture.as_raw(), PixelType::U8x3).unwrap();
    let mut target = Image::new(PREPROCESS.width, PREPROCESS.height, PixelType::U8x3);
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::CatmullRom)).crop(
        left * across,
        top * down,
        side * across,
        side * down,
    );
    Resizer::new().resize(&source, &mut target, &options).unwrap();
    target.into_vec()
}
