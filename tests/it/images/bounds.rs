//! What an image may cost.

use std::io::Write;
use std::time::{Duration, Instant};

use super::*;

fn refused_under(bytes: &[u8], limits: Limits) -> ImageError {
    prepare(bytes, &limits, &LITE0).unwrap_err()
}

#[test]
fn bombs_are_refused_by_their_header() {
    let picture = chirp(16, 16);
    let side = 60_000u32.to_be_bytes();
    let png = patched(encode(picture.clone(), ImageFormat::Png), 16, &[side, side].concat());
    let checksum = crc32(&png[12..29]).to_be_bytes();
    let jpeg = encode(picture.clone(), ImageFormat::Jpeg);
    let frame = jpeg.windows(2).position(|marker| marker == [0xFF, 0xC0]).unwrap();
    let little = 60_000u32.to_le_bytes();
    for (name, bomb) in [
        ("png", patched(png, 29, &checksum)),
        ("jpeg", patched(jpeg, frame + 5, &[0xEA, 0x60, 0xEA, 0x60])),
        ("gif", patched(encode(picture.clone(), ImageFormat::Gif), 6, &[0x60, 0xEA, 0x60, 0xEA])),
        ("bmp", patched(encode(picture, ImageFormat::Bmp), 18, &[little, little].concat())),
    ] {
        match refused(&bomb) {
            ImageError::TooManyPixels { what: "pixels", found: 3_600_000_000, limit: 250_000_000 } => {}
            other => panic!("{name}: {other}"),
        }
    }
}

#[test]
fn each_limit_is_named_with_its_numbers() {
    let bytes = encode(chirp(40, 30), ImageFormat::Png);
    let default = Limits::default();
    for (limits, what, found, limit) in [
        (Limits { width: 39, ..default }, "width", 40, 39),
        (Limits { height: 29, ..default }, "height", 30, 29),
        (Limits { pixels: 1199, ..default }, "pixels", 1200, 1199),
        // The picture's 3 bytes a pixel, four rows of up to 8 bytes a pixel, and the window.
        (Limits { decoder_bytes: 3599, ..default }, "decoder memory", 3600 + 40 * 32 + (1 << 20), 3599),
    ] {
        let error = prepare(&bytes, &limits, &LITE0).unwrap_err();
        assert_eq!(error.to_string(), format!("too many pixels: {what} {found} exceeds the limit of {limit}"));
        assert_eq!(error.code().as_str(), "too_many_pixels");
    }
}

/// A PNG with these chunks between its header and its data.
fn with_chunks(png: &[u8], chunks: &[(&[u8; 4], Vec<u8>)]) -> Vec<u8> {
    let mut bytes = png[..33].to_vec();
    for (kind, data) in chunks {
        let body = [&kind[..], data].concat();
        bytes.extend(u32::try_from(data.len()).unwrap().to_be_bytes());
        bytes.extend(&body);
        bytes.extend(crc32(&body).to_be_bytes());
    }
    bytes.extend(&png[33..]);
    bytes
}

#[test]
fn frames_and_metadata_are_counted() {
    let mut gif = Vec::new();
    let mut encoder = image::codecs::gif::GifEncoder::new(&mut gif);
    for _ in 0..3 {
        encoder.encode_frame(image::Frame::new(RgbaImage::from_pixel(16, 16, image::Rgba([9, 9, 9, 255])))).unwrap();
    }
    drop(encoder);
    let jpeg = encode(chirp(16, 16), ImageFormat::Jpeg);
    let comment = b"\xFF\xFE\0\x05abc".repeat(4);
    let jpeg = [&jpeg[..2], &comment, &jpeg[2..]].concat();
    let text = (b"tEXt", b"Comment\0a text".to_vec());
    let png = with_chunks(&encode(chirp(16, 16), ImageFormat::Png), &vec![text; 4]);
    let tiff = encode(chirp(16, 16), ImageFormat::Tiff);
    let default = Limits::default();
    for (bytes, what) in [(&gif, "frames"), (&jpeg, "metadata chunks"), (&png, "metadata chunks")] {
        let enough = Limits { frames: 3, metadata_chunks: 5, ..default };
        assert!(prepare(bytes, &enough, &LITE0).is_ok());
        let error = refused_under(bytes, Limits { frames: 2, metadata_chunks: 3, ..default });
        assert_eq!(error.code().as_str(), "too_complex");
        let (found, limit) = if what == "frames" { (3, 2) } else { (4, 3) };
        match error {
            // The JPEG has its own JFIF segment.
            ImageError::TooComplex { what: named, found: counted, limit: most } => {
                assert!(named == what && counted - found <= 1 && most == limit, "{named} {counted} {most}");
            }
            other => panic!("{what}: {other}"),
        }
    }
    match refused_under(&tiff, Limits { metadata_chunks: 7, ..default }) {
        ImageError::TooComplex { what: "metadata chunks", found: 8.., limit: 7 } => {}
        other => panic!("{other}"),
    }
}

#[test]
fn a_decoder_that_takes_too_long_is_stopped() {
    let limits = Limits { time: Duration::from_millis(1), ..Limits::default() };
    let picture = chirp(4000, 3000);
    for format in [ImageFormat::Png, ImageFormat::Gif, ImageFormat::Bmp, ImageFormat::Tiff, ImageFormat::WebP] {
        // The encoder for GIF takes seconds for a picture of that size.
        let picture = if format == ImageFormat::Gif { chirp(1000, 1000) } else { picture.clone() };
        match refused_under(&encode(picture, format), limits) {
            ImageError::TooComplex { what: "decode time (ms)", found: 2.., limit: 1 } => {}
            other => panic!("{format:?}: {other}"),
        }
    }
}

/// This many zeros, deflated: a thousandth of it.
fn deflated_zeros(bytes: usize) -> Vec<u8> {
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(&vec![0; bytes]).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn metadata_that_inflates_is_not_inflated() {
    let bomb = deflated_zeros(200 << 20);
    let named = |name: &[u8]| [name, b"\0\0", &bomb].concat();
    let plain = encode(chirp(16, 16), ImageFormat::Png);
    let international = [b"XML:com.adobe.xmp\0\x01\0\0\0".as_slice(), &bomb].concat();
    let chunks = [(b"iCCP", named(b"icc")), (b"zTXt", named(b"Comment")), (b"iTXt", international)];
    let started = Instant::now();
    assert_eq!(prepared(&with_chunks(&plain, &chunks)), prepared(&plain));
    // To inflate all of them takes about a second.
    assert!(started.elapsed() < Duration::from_millis(500), "{:?}", started.elapsed());
}

#[test]
fn an_exif_chunk_of_any_size_is_passed_over() {
    let plain = encode(chirp(16, 16), ImageFormat::Png);
    for bytes in [1_100_000, 3 << 20, 20 << 20] {
        let mut exif = b"II*\0\x08\0\0\0\0\0".to_vec();
        exif.resize(bytes, 7);
        let png = with_chunks(&plain, &[(b"eXIf", exif)]);
        assert_eq!(prepared(&png).pixels, prepared(&plain).pixels, "{bytes} bytes");
        // The decoder holds up to twice as much, and a copy.
        let found = 16 * 16 * 3 + 16 * 32 + (1 << 20) + 3 * bytes as u64;
        match refused_under(&png, Limits { decoder_bytes: found - 1, ..Limits::default() }) {
            ImageError::TooManyPixels { what: "decoder memory", found: named, .. } if named == found => {}
            other => panic!("{other}"),
        }
        let cut = refused(&png[..bytes - 10]);
        assert_eq!(cut.code().as_str(), "truncated_image", "{cut}");
    }
}

#[test]
fn alpha_takes_no_second_copy() {
    let picture = RgbaImage::from_pixel(1000, 1000, image::Rgba([1, 2, 3, 200]));
    let limits = Limits { decoder_bytes: 4_500_000, ..Limits::default() };
    let png = encode(picture.clone(), ImageFormat::Png);
    assert!(prepare(&png, &limits, &LITE0).is_ok());
    // A lossless WebP needs 4 bytes a pixel for itself.
    match refused_under(&encode(picture, ImageFormat::WebP), limits) {
        ImageError::TooManyPixels { what: "decoder memory", found: 8_000_000.., limit: 4_500_000 } => {}
        other => panic!("{other}"),
    }
}
