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
    let mut files: Vec<_> = [ImageFormat::Png, ImageFormat::Gif, ImageFormat::Bmp, ImageFormat::WebP]
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
fn a_webp_with_little_of_its_picture_is_truncated_not_corrupt() {
    let bytes = encode(chirp(60, 40), ImageFormat::WebP);
    for keep in [20, 100, bytes.len() / 3] {
        let error = refused(&bytes[..keep]);
        assert_eq!(error.code().as_str(), "truncated_image", "{keep}: {error}");
    }
}

#[test]
fn a_bitmap_cut_inside_its_header_is_truncated() {
    let rgb = encode(chirp(40, 30), ImageFormat::Bmp);
    // 16 bits a pixel: a header of 40 bytes, then the masks of its colours.
    let rgb565 = {
        let mut bytes = patched(rgb[..54].to_vec(), 10, &66u32.to_le_bytes());
        bytes = patched(bytes, 28, &[16, 0, 3, 0, 0, 0]);
        [0xF800u32, 0x07E0, 0x001F].iter().for_each(|mask| bytes.extend(mask.to_le_bytes()));
        bytes.resize(66 + 40 * 30 * 2, 0x5A);
        bytes
    };
    let palette = encode(GrayImage::from_pixel(40, 30, image::Luma([7])), ImageFormat::Bmp);
    for (name, bytes, header) in [("24 bits", rgb, 54), ("RGB565", rgb565, 66), ("palette", palette, 54 + 1024)] {
        assert!(!prepared(&bytes).info.truncated, "{name}");
        for keep in (18..=header).chain([header + 1]) {
            let error = refused(&bytes[..keep]);
            assert_eq!(error.code().as_str(), "truncated_image", "{name}, {keep} bytes: {error}");
        }
    }
}

/// A GIF of 64 × 64 pixels, each row of a colour of its own, stored in four passes.
fn interlaced() -> Vec<u8> {
    let palette: Vec<u8> = (0..64).flat_map(|row| [row, 200 - row, 3 * row]).collect();
    let order = [(0, 8), (4, 8), (2, 4), (1, 2)].into_iter().flat_map(|(first, step)| (first..64).step_by(step));
    // Noise in the lowest bit, for rows of some bytes each.
    let pixel = |(row, column): (u8, u32)| row ^ u8::from((u32::from(row) * 31 + column * column * 7) % 11 < 5);
    let stored = order.flat_map(|row| (0..64).map(move |column| (row, column))).map(pixel).collect();
    let mut frame = gif::Frame::from_indexed_pixels(64, 64, Vec::<u8>::clone(&stored), None);
    frame.interlaced = true;
    let mut bytes = Vec::new();
    gif::Encoder::new(&mut bytes, 64, 64, &palette).unwrap().write_frame(&frame).unwrap();
    bytes
}

#[test]
fn a_cut_interlaced_gif_shows_the_rows_above_those_that_are_missing() {
    let bytes = interlaced();
    let whole = decoded(&bytes);
    let row = |picture: &Pixels, y: usize| picture.rgb[y * 64 * 3..][..64 * 3].to_vec();
    let mut labelled = 0;
    for keep in 1..bytes.len() - 10 {
        let Ok(picture) = decode(&bytes[..keep], &Limits::default()) else {
            assert_eq!(labelled, 0, "more of the file is enough, {keep} bytes");
            continue;
        };
        labelled += 1;
        assert!(prepared(&bytes[..keep]).info.truncated);
        for y in 0..64 {
            // Half of the third pass came, so every fourth row did.
            let came = (0..4).map(|up| y - up.min(y)).any(|above| row(&picture, y) == row(&whole, above));
            assert!(came, "row {y} after {keep} of {} bytes", bytes.len());
        }
        for y in (0..32).step_by(2) {
            assert_eq!(row(&picture, y), row(&whole, y), "row {y} after {keep} bytes");
        }
    }
    // From three eighths of the rows on.
    let share = labelled as f64 / bytes.len() as f64;
    assert!((0.5..0.7).contains(&share), "{share}");
}
