//! Decoders that have to be built first, or that are left out of the program.

use std::io::Cursor;

use image::{RgbImage, imageops};

use super::alternatives::{CROP_FRACTION, PREPROCESS, full, shrink};
use super::measure::Contender;

/// Decoding in full, and the resize of the same crate.
pub(super) fn image_alone(bytes: &[u8]) -> Vec<u8> {
    let picture = full(bytes);
    let side = (f64::from(picture.width().min(picture.height())) * CROP_FRACTION) as u32;
    let (left, top) = ((picture.width() - side) / 2, (picture.height() - side) / 2);
    let cut = imageops::crop_imm(&picture, left, top, side, side).to_image();
    imageops::resize(&cut, PREPROCESS.width, PREPROCESS.height, imageops::FilterType::CatmullRom).into_raw()
}

/// Decoding at the smallest scale that covers the model's input, and `fast_image_resize`.
pub(super) fn scaled() -> Vec<Contender> {
    vec![
        Contender::new("jpeg-decoder, scaled", |bytes| shrunk(bytes, jpeg_decoder)),
        Contender::new("libjpeg-turbo-rs, scaled", |bytes| shrunk(bytes, libjpeg_turbo_rs)),
        #[cfg(feature = "libjpeg-turbo")]
        Contender::new("libjpeg-turbo 3.1, scaled", |bytes| shrunk(bytes, libjpeg_turbo)),
        #[cfg(feature = "mozjpeg")]
        Contender::new(
            if cfg!(feature = "mozjpeg-simd") { "mozjpeg, scaled" } else { "mozjpeg without SIMD, scaled" },
            |bytes| shrunk(bytes, mozjpeg),
        ),
    ]
}

fn shrunk(bytes: &[u8], decode: fn(&[u8], usize) -> RgbImage) -> Vec<u8> {
    let (width, height) = libjpeg_turbo_rs_size(bytes);
    let side = f64::from(width.min(height)) * CROP_FRACTION;
    let covers = |part: &usize| side / *part as f64 >= f64::from(PREPROCESS.width);
    let part = [8, 4, 2].into_iter().find(covers).unwrap_or(1);
    shrink(&decode(bytes, part), Some((width, height)))
}

fn libjpeg_turbo_rs_size(bytes: &[u8]) -> (u32, u32) {
    let decoder = libjpeg_turbo_rs::StreamingDecoder::new(bytes).unwrap();
    (u32::from(decoder.header().width), u32::from(decoder.header().height))
}

fn picture(width: usize, height: usize, rgb: Vec<u8>) -> RgbImage {
    RgbImage::from_raw(width as u32, height as u32, rgb).unwrap()
}

fn jpeg_decoder(bytes: &[u8], part: usize) -> RgbImage {
    let mut decoder = jpeg_decoder::Decoder::new(Cursor::new(bytes));
    decoder.read_info().unwrap();
    let full = decoder.info().unwrap();
    let (width, height) = decoder.scale(full.width / part as u16, full.height / part as u16).unwrap();
    picture(usize::from(width), usize::from(height), decoder.decode().unwrap())
}

fn libjpeg_turbo_rs(bytes: &[u8], part: usize) -> RgbImage {
    let mut decoder = libjpeg_turbo_rs::StreamingDecoder::new(bytes).unwrap();
    decoder.set_output_format(libjpeg_turbo_rs::PixelFormat::Rgb);
    decoder.set_scale(libjpeg_turbo_rs::ScalingFactor::try_new(1, part as u32).unwrap());
    let decoded = decoder.decode().unwrap();
    picture(decoded.width, decoded.height, decoded.data)
}

#[cfg(feature = "libjpeg-turbo")]
fn libjpeg_turbo(bytes: &[u8], part: usize) -> RgbImage {
    let mut decoder = turbojpeg::Decompressor::new().unwrap();
    let header = decoder.read_header(bytes).unwrap();
    let scale = turbojpeg::ScalingFactor::new(1, part);
    decoder.set_scaling_factor(scale).unwrap();
    let (width, height) = (scale.scale(header.width), scale.scale(header.height));
    let mut rgb = vec![0; width * height * 3];
    let format = turbojpeg::PixelFormat::RGB;
    decoder
        .decompress(bytes, turbojpeg::Image { pixels: &mut rgb[..], width, pitch: width * 3, height, format })
        .unwrap();
    picture(width, height, rgb)
}

#[cfg(feature = "mozjpeg")]
fn mozjpeg(bytes: &[u8], part: usize) -> RgbImage {
    let mut decoder = mozjpeg::Decompress::new_mem(bytes).unwrap();
    decoder.scale(8 / part as u8);
    let mut decoder = decoder.rgb().unwrap();
    let (width, height) = (decoder.width(), decoder.height());
    let rgb = decoder.read_scanlines::<u8>().unwrap();
    decoder.finish().unwrap();
    picture(width, height, rgb)
}
