//! What is particular to the JPEG decoder: damage, missing tables, and how far it decodes.

use stoker::image::{Filter, ImageError, Limits, Preprocess, Resize, decode, prepare};

use super::{LITE0, chirp, difference, encode, prepared, refused};
use crate::models::fixture;

const END: [u8; 2] = [0xFF, 0xD9];

/// The file without the segments of this marker, up to the first scan.
fn without(file: &[u8], marker: u8) -> Vec<u8> {
    let mut rest = &file[2..];
    let mut kept = file[..2].to_vec();
    while rest[1] != 0xDA {
        let (segment, behind) = rest.split_at(2 + usize::from(u16::from_be_bytes([rest[2], rest[3]])));
        if segment[1] != marker {
            kept.extend(segment);
        }
        rest = behind;
    }
    [&kept[..], rest].concat()
}

/// Frames of Motion JPEG come without the tables that the standard suggests.
#[test]
fn tables_that_are_left_out_are_those_of_the_standard() {
    let file = fixture("formats/jpeg/baseline-420.jpg");
    let bare = without(&file, 0xC4);
    assert!(bare.len() + 400 < file.len());
    assert_eq!(decode(&bare, &Limits::default()).unwrap(), decode(&file, &Limits::default()).unwrap());
}

#[test]
fn the_share_that_came_is_that_of_the_whole_picture() {
    let tall = encode(chirp(80, 400), image::ImageFormat::Jpeg);
    let cut = &tall[..tall.len() / 4];
    // The crop in its middle ends at 60 %, and of that more than half came.
    for error in [refused(cut), decode(cut, &Limits::default()).unwrap_err()] {
        assert_eq!(error.code().as_str(), "truncated_image", "{error}");
    }
    let limits = Limits { min_rows: 0.2, ..Limits::default() };
    assert!(prepare(cut, &limits, &LITE0).unwrap().info.truncated);
}

#[test]
fn a_progressive_picture_without_its_finer_scans_is_flagged() {
    let file = fixture("formats/jpeg/progressive-420.jpg");
    let coarse = [&file[..file.len() * 2 / 3], &END].concat();
    assert!(prepared(&coarse).info.truncated);
    assert!(!prepared(&file).info.truncated);
}

#[test]
fn luma_alone_is_a_picture() {
    let file = fixture("formats/jpeg/scans-sequential-420.jpg");
    let cut = &file[..file.len() * 9 / 10];
    let found = prepared(cut);
    assert!(found.info.truncated);
    assert!(difference(&found.pixels, &prepared(&file).pixels).1 < 20.0);
}

/// A scan of a few bytes may say that nothing changes, and there may be many of them.
#[test]
fn scans_are_counted() {
    let file = fixture("formats/jpeg/progressive-420.jpg");
    let limits = Limits { scans: 3, ..Limits::default() };
    match prepare(&file, &limits, &LITE0).unwrap_err() {
        ImageError::TooComplex { what: "scans", found: 4, limit: 3 } => {}
        other => panic!("{other}"),
    }
}

#[test]
fn a_smaller_scale_is_near_the_full_one() {
    let file = fixture("photos/rocket.jpg");
    let preprocess = Preprocess { width: 56, height: 56, resize: Resize::CropFraction(0.875), filter: Filter::Bicubic };
    let pixels = |jpeg_oversampling: f64| {
        prepare(&file, &Limits { jpeg_oversampling, ..Limits::default() }, &preprocess).unwrap().pixels
    };
    let full = pixels(f64::INFINITY);
    let apart = [1.0, 1.4, 2.0, 4.0].map(|oversampling| difference(&pixels(oversampling), &full).1);
    assert!(apart.is_sorted_by(|more, less| more >= less), "{apart:?}");
    assert!(apart[0] < 4.0 && 0.0 < apart[2] && apart[3] < 1.0, "{apart:?}");
}
