//! Files that end early.

use super::kinds::Tiff;
use super::*;

fn decoded(bytes: &[u8]) -> Pixels {
    decode(bytes, &Limits::default()).unwrap()
}

/// Rows of two pictures that are the same.
fn equal_rows(a: &Pixels, b: &Pixels) -> Vec<bool> {
    a.rgb.chunks(a.width * 3).zip(b.rgb.chunks(b.width * 3)).map(|(a, b)| a == b).collect()
}

#[test]
fn a_cut_jpeg_is_labelled_and_flagged() {
    let bytes = fixture("photos/coffee.jpg");
    let cut = prepared(&bytes[..bytes.len() * 3 / 4]);
    assert!(cut.info.truncated);
    // Its upper half is the picture, not filling.
    let mut whole = prepared(&bytes).pixels;
    let mut cut = cut.pixels;
    whole.height /= 2;
    cut.height /= 2;
    let half = whole.height * whole.width * 3;
    whole.rgb.truncate(half);
    cut.rgb.truncate(half);
    assert!(difference(&whole, &cut).1 < 0.5);
}

#[test]
fn files_cut_before_a_picture_are_truncated() {
    for (bytes, keep) in [
        (fixture("photos/coffee.jpg"), 200),
        (fixture("photos/coffee-alpha.png"), 2000),
        (encode(chirp(40, 30), ImageFormat::Gif), 300),
        (encode(chirp(40, 30), ImageFormat::Bmp), 300),
    ] {
        let error = refused(&bytes[..keep]);
        assert_eq!(error.code().as_str(), "truncated_image", "{error}");
    }
}

/// Files whose rows can be told apart, each with its name.
fn cuttable() -> Vec<(&'static str, Vec<u8>)> {
    let picture = chirp(301, 200);
    let mut files: Vec<_> = [ImageFormat::Png, ImageFormat::Gif, ImageFormat::Bmp]
        .map(|format| (format.extensions_str()[0], encode(picture.clone(), format)))
        .into();
    files.push(("tiff", Tiff::new(301, 200, 2, &[8; 3], picture.as_raw().clone()).bytes()));
    let top_down = {
        let bmp = encode(picture, ImageFormat::Bmp);
        let mut bytes = patched(bmp.clone(), 22, &(-200i32).to_le_bytes());
        bytes.truncate(54);
        bmp[54..].chunks(904).rev().for_each(|row| bytes.extend(row));
        bytes
    };
    // Rows of 903 bytes are padded to 904.
    assert_eq!(top_down.len(), 54 + 904 * 200);
    files.push(("top-down bmp", top_down));
    files
}

#[test]
fn rows_that_came_are_right_and_the_others_grey() {
    for (name, bytes) in cuttable() {
        let whole = decoded(&bytes);
        assert!(!prepared(&bytes).info.truncated, "{name} is whole");
        let cut = &bytes[..bytes.len() * 7 / 10];
        assert!(prepared(cut).info.truncated, "{name}");
        let picture = decoded(cut);
        let right = equal_rows(&picture, &whole);
        let grey = picture.rgb.chunks(picture.width * 3).filter(|row| row.iter().all(|sample| *sample == 128)).count();
        let came = right.iter().filter(|right| **right).count();
        println!("{name}: {came} rows came, {grey} are grey");
        assert_eq!(came + grey, 200, "{name}");
        assert!((100..190).contains(&came), "{name}: {came} rows");
    }
}

#[test]
fn how_many_rows_are_enough_is_a_setting() {
    for (name, bytes) in cuttable() {
        let cut = &bytes[..bytes.len() * 4 / 10];
        let error = refused(cut);
        assert_eq!(error.code().as_str(), "truncated_image", "{name}: {error}");
        let limits = Limits { min_rows: 0.1, ..Limits::default() };
        assert!(prepare(cut, &limits, &LITE0).unwrap().info.truncated, "{name}");
    }
}

#[test]
fn a_file_without_its_last_byte_is_flagged() {
    // A BMP's and a TIFF's last byte is a pixel's, or padding.
    for format in [ImageFormat::Png, ImageFormat::Gif, ImageFormat::Jpeg] {
        let bytes = encode(chirp(60, 40), format);
        assert!(!prepared(&bytes).info.truncated);
        assert!(prepared(&bytes[..bytes.len() - 1]).info.truncated, "{format:?}");
    }
}

#[test]
fn a_cut_webp_is_truncated_not_corrupt() {
    let bytes = encode(chirp(60, 40), ImageFormat::WebP);
    assert!(!prepared(&bytes).info.truncated);
    for keep in [20, 100, bytes.len() / 2, bytes.len() - 20] {
        let error = refused(&bytes[..keep]);
        assert_eq!(error.code().as_str(), "truncated_image", "{keep}: {error}");
    }
}
