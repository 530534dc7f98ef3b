//! Foreign bytes to the model's input, compared with Pillow where the training code would use it.
#![allow(clippy::print_stdout, reason = "figures are worth a look")]

use std::io::Cursor;

use image::metadata::Orientation;
use image::{DynamicImage, ExtendedColorType, GrayImage, ImageEncoder, ImageFormat, RgbImage, RgbaImage};
use proptest::prelude::*;
use stoker::image::{Filter, Format, ImageError, Limits, Pixels, Prepared, Preprocess, Resize, decode, prepare};

use crate::models::fixture;

mod bounds;
mod cut;
mod jpeg;
mod kinds;

/// What EfficientNet-Lite0 takes.
const LITE0: Preprocess =
    Preprocess { width: 224, height: 224, resize: Resize::CropFraction(0.875), filter: Filter::Bicubic };

fn prepared(bytes: &[u8]) -> Prepared {
    prepare(bytes, &Limits::default(), &LITE0).unwrap()
}

fn refused(bytes: &[u8]) -> ImageError {
    prepare(bytes, &Limits::default(), &LITE0).unwrap_err()
}

fn encode(image: impl Into<DynamicImage>, format: ImageFormat) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    image.into().write_to(&mut bytes, format).unwrap();
    bytes.into_inner()
}

/// Largest and mean difference of a channel, in levels.
fn difference(a: &Pixels, b: &Pixels) -> (u8, f64) {
    assert_eq!((a.width, a.height), (b.width, b.height));
    let differences: Vec<u8> = a.rgb.iter().zip(&b.rgb).map(|(a, b)| a.abs_diff(*b)).collect();
    let sum: u64 = differences.iter().map(|difference| u64::from(*difference)).sum();
    (differences.iter().copied().max().unwrap(), sum as f64 / differences.len() as f64)
}

/// The picture that `fixtures/make/images.py` builds under the same name.
fn chirp(width: u32, height: u32) -> RgbImage {
    RgbImage::from_fn(width, height, |x, y| {
        image::Rgb([0, 1, 2].map(|channel| {
            let value = (x * x * (channel + 1) + y * y * (3 - channel) + 5 * x * y) / 64 % 512;
            u8::try_from(value.min(511 - value)).unwrap()
        }))
    })
}

#[test]
fn crop_and_resize_are_pillows_at_every_scale() {
    for (width, height) in [(901, 673), (300, 451), (64, 64), (41, 33)] {
        let bytes = encode(chirp(width, height), ImageFormat::Png);
        let small = Preprocess { width: 56, height: 56, ..LITE0 };
        let found = prepare(&bytes, &Limits::default(), &small).unwrap();
        let expected = fixture(&format!("reference/chirp-{width}x{height}.png"));
        let expected = decode(&expected, &Limits::default()).unwrap();
        let (largest, mean) = difference(&found.pixels, &expected);
        println!("{width} × {height}: largest difference {largest}, mean {mean:.4}");
        assert!(largest <= 1 && mean < 0.05, "{width} × {height}: {largest} levels, mean {mean}");
        assert_eq!((found.info.width, found.info.height), (width, height));
    }
}

#[test]
fn photos_give_the_pixels_that_pillow_gives() {
    for name in ["astronaut", "camera", "chelsea", "coffee", "rocket"] {
        let found = prepared(&fixture(&format!("photos/{name}.jpg")));
        // This one is in Adobe RGB.
        let reference = if name == "rocket" { "rocket-srgb" } else { name };
        let expected = decode(&fixture(&format!("reference/{reference}.png")), &Limits::default()).unwrap();
        let (largest, mean) = difference(&found.pixels, &expected);
        println!("{name}: largest difference {largest}, mean {mean:.4}");
        // Two JPEG decoders may differ by more than the resize does: in rounding, and in how they enlarge chroma. From
        // Adobe RGB to sRGB, differences grow.
        assert!(largest <= 7 && mean < 0.5, "{name}: {largest} levels, mean {mean}");
        assert_eq!(found.info.format, Format::Jpeg);
        assert!(!found.info.truncated);
    }
}

/// torchvision's Resize(64) and CenterCrop(56); timm's with a `crop_pct` of 0.875.
const TORCHVISION: Preprocess =
    Preprocess { width: 56, height: 56, resize: Resize::ShortSide(64), filter: Filter::Bilinear };

#[test]
fn resize_then_crop_is_torchvisions_at_every_scale() {
    for (name, filter) in [("bilinear", Filter::Bilinear), ("bicubic", Filter::Bicubic)] {
        for (width, height) in [(901, 673), (300, 451), (64, 64), (41, 33)] {
            let bytes = encode(chirp(width, height), ImageFormat::Png);
            let found = prepare(&bytes, &Limits::default(), &Preprocess { filter, ..TORCHVISION }).unwrap();
            let expected = fixture(&format!("reference/torchvision-{name}-{width}x{height}.png"));
            let expected = decode(&expected, &Limits::default()).unwrap();
            let (largest, mean) = difference(&found.pixels, &expected);
            println!("{name}, {width} × {height}: largest difference {largest}, mean {mean:.4}");
            assert!(largest <= 1 && mean < 0.05, "{name}, {width} × {height}: {largest} levels, mean {mean}");
        }
    }
}

#[test]
fn a_squashed_picture_is_pillows() {
    for (width, height) in [(901, 673), (300, 451), (64, 64), (41, 33)] {
        let bytes = encode(chirp(width, height), ImageFormat::Png);
        let squash = Preprocess { resize: Resize::Squash, ..TORCHVISION };
        let found = prepare(&bytes, &Limits::default(), &squash).unwrap();
        let expected = fixture(&format!("reference/squash-{width}x{height}.png"));
        let (largest, mean) = difference(&found.pixels, &decode(&expected, &Limits::default()).unwrap());
        assert!(largest <= 2 && mean < 0.05, "{width} × {height}: {largest} levels, mean {mean}");
    }
}

#[test]
fn a_scaled_jpeg_is_cut_where_torchvision_cuts_it() {
    for name in ["chelsea", "coffee"] {
        let bytes = fixture(&format!("photos/{name}.jpg"));
        let expected = decode(&fixture(&format!("reference/torchvision-{name}.png")), &Limits::default()).unwrap();
        for (jpeg_oversampling, most) in [(1.4, 2.5), (1000.0, 0.3)] {
            let limits = Limits { jpeg_oversampling, ..Limits::default() };
            let found = prepare(&bytes, &limits, &TORCHVISION).unwrap();
            let (largest, mean) = difference(&found.pixels, &expected);
            println!("{name}, {jpeg_oversampling} times: largest difference {largest}, mean {mean:.4}");
            assert!(mean < most, "{name}, {jpeg_oversampling} times: {largest} levels, mean {mean}");
        }
    }
}

/// A JPEG with an EXIF segment that says this orientation, in front of everything else.
fn with_orientation(jpeg: &[u8], orientation: u8) -> Vec<u8> {
    let mut exif = b"\xFF\xE1\x00\x22Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0".to_vec();
    exif.extend([orientation, 0, 0, 0, 0, 0, 0]);
    [&jpeg[..2], &exif, &jpeg[2..]].concat()
}

#[test]
fn every_orientation_gives_the_upright_picture() {
    let stored = encode(chirp(150, 101), ImageFormat::Jpeg);
    let stored_pixels = RgbImage::from_raw(150, 101, decode(&stored, &Limits::default()).unwrap().rgb).unwrap();
    let every = (1..=8).flat_map(|orientation| [(orientation, LITE0), (orientation, TORCHVISION)]);
    for (orientation, preprocess) in every {
        let prepared = |bytes: &[u8]| prepare(bytes, &Limits::default(), &preprocess).unwrap();
        let found = prepared(&with_orientation(&stored, orientation));
        let mut upright = DynamicImage::from(stored_pixels.clone());
        upright.apply_orientation(Orientation::from_exif(orientation).unwrap());
        let expected = prepared(&encode(upright, ImageFormat::Png));
        let (largest, _) = difference(&found.pixels, &expected.pixels);
        assert_eq!(largest, 0, "orientation {orientation}");
        assert_eq!(found.info.orientation, orientation);
        assert_eq!((found.info.width, found.info.height), (150, 101), "as stored");
    }
}

#[test]
fn a_photo_on_its_side_is_turned() {
    let turned = prepared(&fixture("photos/chelsea-rotated.jpg"));
    let upright = prepared(&fixture("photos/chelsea.jpg"));
    assert_eq!((turned.info.width, turned.info.height, turned.info.orientation), (300, 451, 6), "as stored");
    let (_, mean) = difference(&turned.pixels, &upright.pixels);
    assert!(mean < 2.0, "mean difference {mean}");
}

#[test]
fn transparency_is_composited_on_white() {
    let quarter = RgbaImage::from_pixel(8, 8, image::Rgba([255, 0, 100, 64]));
    let colour = [255, 191, 216]; // 255 − (255 − c) × 64 / 255
    for format in [ImageFormat::Png, ImageFormat::WebP] {
        assert!(prepared(&encode(quarter.clone(), format)).pixels.rgb.chunks(3).all(|pixel| pixel == colour));
    }
    let found = prepared(&fixture("photos/coffee-alpha.png"));
    let expected = decode(&fixture("reference/coffee-alpha.png"), &Limits::default()).unwrap();
    assert!(difference(&found.pixels, &expected).0 <= 1);
}

#[test]
fn sixteen_bits_grey_and_cmyk_become_rgb() {
    let grey = image::ImageBuffer::<image::Luma<u16>, _>::from_pixel(8, 8, image::Luma([0x80FF]));
    assert!(prepared(&encode(grey, ImageFormat::Png)).pixels.rgb.iter().all(|value| *value == 0x80));
    let grey = GrayImage::from_pixel(8, 8, image::Luma([77]));
    assert!(prepared(&encode(grey, ImageFormat::Bmp)).pixels.rgb.iter().all(|value| *value == 77));

    let cmyk = decode(&fixture("reference/cmyk.jpg"), &Limits::default()).unwrap();
    for (x, y, colour) in [(8, 8, [200, 30, 40]), (24, 8, [30, 180, 60]), (8, 24, [40, 60, 210])] {
        let found = &cmyk.rgb[(y * cmyk.width + x) * 3..][..3];
        let near = found.iter().zip(colour).all(|(found, expected)| found.abs_diff(expected) <= 3);
        assert!(near, "({x}, {y}): {found:?}, expected {colour:?}");
    }
}

#[test]
fn the_first_of_many_frames_is_taken() {
    let mut bytes = Vec::new();
    let mut encoder = image::codecs::gif::GifEncoder::new(&mut bytes);
    for colour in [[250, 10, 10, 255], [10, 10, 250, 255]] {
        encoder.encode_frame(image::Frame::new(RgbaImage::from_pixel(16, 16, image::Rgba(colour)))).unwrap();
    }
    drop(encoder);
    let found = prepared(&bytes);
    assert_eq!(found.info.format, Format::Gif);
    assert_eq!(found.pixels.rgb[..3], [250, 10, 10]);
}

#[test]
fn the_content_decides_the_format() {
    for (format, expected) in [
        (ImageFormat::Bmp, Format::Bmp),
        (ImageFormat::Gif, Format::Gif),
        (ImageFormat::Jpeg, Format::Jpeg),
        (ImageFormat::Png, Format::Png),
        (ImageFormat::Tiff, Format::Tiff),
        (ImageFormat::WebP, Format::WebP),
    ] {
        let bytes = encode(DynamicImage::from(chirp(40, 30)), format);
        assert_eq!(prepared(&bytes).info.format, expected);
    }
}

#[test]
fn formats_that_are_not_decoded_are_named() {
    for (bytes, name) in [
        (&b"\0\0\0\x14ftypqt  \0\0\0\0qt  "[..], "MP4 or QuickTime video"),
        (b"\x1A\x45\xDF\xA3\x01\0\0\0", "Matroska or WebM video"),
        (b"\xFF\x0A\xFF\x07", "JPEG XL"),
        (b"%PDF-1.7\n", "PDF"),
        (b"\xEF\xBB\xBF<?xml version='1.0'?>\n<!-- a drawing -->\n<svg xmlns='http://www.w3.org/2000/svg'/>", "SVG"),
    ] {
        match refused(bytes) {
            ImageError::UnsupportedFormat { format } => assert_eq!(format, name),
            other => panic!("{name}: {other}"),
        }
    }
    for bytes in
        [&b""[..], b"hello", b"BMW is a car, and this is a text", b"<html><body>svg</body></html>", b"\0\0\0\0"]
    {
        assert_eq!(refused(bytes).code().as_str(), "not_an_image");
    }
}

/// Sets a big-endian or little-endian field of a file.
fn patched(mut bytes: Vec<u8>, at: usize, field: &[u8]) -> Vec<u8> {
    bytes[at..at + field.len()].copy_from_slice(field);
    bytes
}

/// CRC-32 of a PNG chunk (RFC 2083, appendix 15), so that a forged header is not refused for its checksum.
fn crc32(bytes: &[u8]) -> u32 {
    let bits = |crc: u32| (0..8).fold(crc, |crc, _| if crc & 1 == 1 { (crc >> 1) ^ 0xEDB8_8320 } else { crc >> 1 });
    !bytes.iter().fold(u32::MAX, |crc, byte| bits((crc ^ u32::from(*byte)) & 0xFF) ^ (crc >> 8))
}

#[test]
fn contradictions_are_corrupt() {
    let mut bytes = Vec::new();
    let pixels = chirp(40, 30);
    let encoder = image::codecs::png::PngEncoder::new(&mut bytes);
    encoder.write_image(pixels.as_raw(), 40, 30, ExtendedColorType::Rgb8).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0xFF;
    assert_eq!(refused(&bytes).code().as_str(), "corrupt_image");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2000), signature in 0usize..8) {
        let signatures: [&[u8]; 8] = [
            b"", b"\xFF\xD8\xFF", b"\x89PNG\r\n\x1A\n", b"GIF89a", b"BM", b"II*\0", b"RIFF\0\0\0\0WEBP", b"\0\0\0\x18ftyp",
        ];
        let limits = Limits { pixels: 1_000_000, decoder_bytes: 8 << 20, ..Limits::default() };
        drop(prepare(&[signatures[signature], &bytes].concat(), &limits, &LITE0));
    }

    #[test]
    fn damaged_pictures_never_panic(
        format in 0usize..6,
        cut in (any::<bool>(), any::<u16>()),
        damage in proptest::collection::vec((any::<u16>(), any::<u8>()), 0..12),
    ) {
        let formats = [
            ImageFormat::Bmp, ImageFormat::Gif, ImageFormat::Jpeg, ImageFormat::Png, ImageFormat::Tiff, ImageFormat::WebP,
        ];
        let mut bytes = encode(chirp(40, 30), formats[format]);
        for (at, value) in damage {
            let at = usize::from(at) % bytes.len();
            bytes[at] ^= value;
        }
        let keep = if cut.0 { usize::from(cut.1) % bytes.len() } else { bytes.len() };
        let limits = Limits { pixels: 1_000_000, decoder_bytes: 8 << 20, ..Limits::default() };
        if let Ok(found) = prepare(&bytes[..keep], &limits, &LITE0) {
            prop_assert_eq!(found.pixels.rgb.len(), 224 * 224 * 3);
        }
    }
}
