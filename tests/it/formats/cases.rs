//! One test for each report about images that the design answers to.
//!
//! Two of them are answered elsewhere too: `scenarios.rs` uploads an empty object and a folder's placeholder, and
//! `models.rs` compares a picture's logits in batches of several sizes.

use std::collections::HashMap;

use serde_json::json;
use stoker::event::{Filters, Reading, read};
use stoker::image::{Limits, decode};

use super::{ROWS, check, difference, reference};
use crate::models::fixture;

/// The rows about a report, each of which must hold.
fn check_case(report: &str) {
    check(|row| row.case.contains(report));
}

/// image-rs/image#1259, libjpeg family: orientation ignored, or mirrored wrongly.
#[test]
fn each_orientation_gives_the_upright_picture() {
    check_case("image-rs/image#1259");
    let found: Vec<u8> = ROWS
        .iter()
        .filter(|row| row.case.contains("image-rs/image#1259"))
        .filter_map(|row| row.picture.as_ref()?.orientation)
        .collect();
    assert_eq!(found, [1, 2, 3, 4, 5, 6, 7, 8]);
}

/// libvips#1283, sharp#1649: CMYK and YCCK inverted.
#[test]
fn inks_give_the_colours_of_the_original() {
    check_case("libvips#1283");
    let original = reference("expected/webp-lossless-webp.png");
    for kind in ["cmyk-adobe-0", "cmyk-unmarked", "ycck-adobe-1", "ycck-adobe-2"] {
        let found = decode(&fixture(&format!("formats/jpeg/{kind}.jpg")), &Limits::default()).unwrap();
        // What the JPEG's quality of 92 costs; a negative would differ by about a hundred levels.
        let (_, mean) = difference(&found.rgb, &original.rgb);
        assert!(mean <= 4.0, "{kind}: {mean} levels from the original on average");
    }
}

/// Pillow#2574, Pillow#3011: grey of 16 bits turns white.
#[test]
fn sixteen_bits_are_scaled_to_eight() {
    check_case("Pillow#2574");
}

/// libvips#1692, sharp#1787: a palette or alpha turns black.
#[test]
fn what_shows_through_is_white() {
    check_case("libvips#1692");
}

/// image-webp#75, image#1775: animations fail or panic.
#[test]
fn the_first_frame_of_a_film_is_taken() {
    check_case("image-webp#75");
}

/// Pillow#4414, zune-image#293: a cut JPEG is an error, or grey, or noise.
#[test]
fn cut_files_are_flagged_or_refused() {
    check_case("Pillow#4414");
}

/// image#1748, imgproxy#242: bombs. Nothing is allocated for their pixels, or this test would take gigabytes.
#[test]
fn declared_sizes_are_checked_before_pixels() {
    check_case("image#1748");
}

/// image-rs/image#1375: HEIC from phones.
#[test]
fn heic_from_phones_is_labelled_or_named() {
    check_case("image-rs/image#1375");
}

/// pytorch/vision#2950, DALI#5260: another resize than in training. Apache Beam's ImageNet example: a wide picture
/// becomes a narrow input.
#[test]
fn narrow_pictures_are_cut_and_scaled_as_in_training() {
    check_case("pytorch/vision#2950");
}

/// minio#9408: the placeholder of a folder is taken for an upload, for ever.
#[test]
fn a_folder_is_no_upload() {
    let reading = |name: &str| {
        let data = json!({"bucket": "uploads", "name": name}).to_string();
        read(&HashMap::new(), data.as_bytes(), &Filters::default()).unwrap()
    };
    match reading("holiday/") {
        Reading::Skip { reason, .. } => assert_eq!(reason.as_str(), "folder_placeholder"),
        Reading::Upload(_) => panic!("a folder is taken for an upload"),
    }
    assert!(matches!(reading("holiday"), Reading::Upload(_)));
}
