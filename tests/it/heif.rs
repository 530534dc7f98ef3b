//! AVIF and HEIC files to pixels, compared with Pillow (`fixtures/make/avif.py`), and files made to hurt.
#![allow(clippy::print_stdout, reason = "figures are worth a look")]
#![cfg_attr(not(feature = "avif"), allow(unused_imports, dead_code, reason = "most of it is for the features"))]

use proptest::prelude::*;
use stoker::event::FailureCode;
use stoker::image::{Filter, Format, ImageError, Limits, Pixels, Prepared, Preprocess, Resize, decode, prepare};

use crate::models::fixture;

fn read(bytes: &[u8]) -> Result<Pixels, ImageError> {
    decode(bytes, &Limits::default())
}

fn prepared(bytes: &[u8]) -> Prepared {
    let tiny = Preprocess { width: 8, height: 8, resize: Resize::CropFraction(1.0), filter: Filter::Bilinear };
    prepare(bytes, &Limits::default(), &tiny).unwrap()
}

fn refused(bytes: &[u8]) -> ImageError {
    read(bytes).unwrap_err()
}

/// Asserts that a file gives the pixels of the PNG next to it, to within this many levels.
fn assert_like_pillow(name: &str, levels: u8) {
    let (folder, _) = name.rsplit_once('.').unwrap();
    let found = read(&fixture(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let expected = read(&fixture(&format!("{folder}.png"))).unwrap();
    assert_eq!((found.width, found.height), (expected.width, expected.height), "{name}");
    let largest = found.rgb.iter().zip(&expected.rgb).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
    println!("{name}: largest difference {largest}");
    assert!(largest <= levels, "{name}: {largest} levels");
}

/// A file with every place of one run of bytes overwritten by another of the same length.
fn patched(file: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut file = file.to_vec();
    let places: Vec<usize> = (0..file.len() - from.len()).filter(|at| file[*at..].starts_with(from)).collect();
    assert!(!places.is_empty());
    for place in places {
        file[place..place + to.len()].copy_from_slice(to);
    }
    file
}

/// The box that declares a picture's size.
fn size_box(width: u32, height: u32) -> Vec<u8> {
    [b"\0\0\0\x14ispe\0\0\0\0".as_slice(), &width.to_be_bytes(), &height.to_be_bytes()].concat()
}

/// That no prefix of a file does anything but fail as one that ends early, or give a flagged picture.
fn assert_truncations_are_told(name: &str) {
    let file = fixture(name);
    for length in 32..file.len() {
        match decode(&file[..length], &Limits::default()) {
            Ok(_) => assert!(prepared(&file[..length]).info.truncated, "{name}, {length} bytes"),
            Err(error) => assert_eq!(error.code(), FailureCode::TruncatedImage, "{name}, {length} bytes: {error}"),
        }
    }
    assert!(!prepared(&file).info.truncated);
}

#[cfg(feature = "avif")]
mod avif {
    use super::*;

    #[test]
    fn every_kind_gives_the_pixels_that_pillow_gives() {
        for name in [
            "halved",
            "halved-width",
            "full",
            "grey",
            "limited",
            "alpha",
            "one-pixel",
            "tiles",
            "profile",
            "lossless",
            "premultiplied",
            "bt709",
            "bt2020-limited",
            "grain",
            "grid",
            "bits-10-420",
            "bits-10-444",
            "bits-12-420",
            "bits-12-444",
        ] {
            assert_like_pillow(&format!("avif/{name}.avif"), 2);
        }
    }

    #[test]
    fn a_lossless_picture_is_exact() {
        assert_like_pillow("avif/lossless.avif", 0);
    }

    #[test]
    fn of_an_animation_the_first_picture_is_taken() {
        assert_like_pillow("avif/animated.avif", 2);
    }

    #[test]
    fn turns_and_mirrors_give_the_upright_picture() {
        for orientation in 2..=8 {
            let name = format!("avif/orientation-{orientation}.avif");
            assert_like_pillow(&name, 2);
            let info = prepared(&fixture(&name)).info;
            assert_eq!((info.format, info.orientation), (Format::Avif, orientation));
            assert_eq!((info.width, info.height), (40, 24), "as stored");
        }
    }

    #[test]
    fn a_file_that_ends_early_is_told() {
        assert_truncations_are_told("avif/alpha.avif");
        assert_truncations_are_told("avif/grid.avif");
    }

    #[test]
    fn a_declared_size_is_checked_before_anything_is_decoded() {
        let file = fixture("avif/halved.avif");
        let bomb = patched(&file, &size_box(61, 45), &size_box(60_000, 60_000));
        match refused(&bomb) {
            ImageError::TooManyPixels { what: "pixels", found: 3_600_000_000, .. } => {}
            error => panic!("{error}"),
        }
        let empty = patched(&file, &size_box(61, 45), &size_box(0, 45));
        assert_eq!(refused(&empty).code(), FailureCode::CorruptImage);
    }

    #[test]
    fn a_picture_larger_than_declared_is_not_decoded() {
        let file = fixture("avif/tiles.avif");
        let small = patched(&file, &size_box(160, 128), &size_box(16, 16));
        let error = refused(&small).to_string();
        assert!(error.contains("the AV1 decoder gave up"), "{error}");
        let other = patched(&file, &size_box(160, 128), &size_box(128, 160));
        assert_eq!(refused(&other).to_string(), "corrupt image: 160 × 128 pixels, declared as 128 × 160");
    }

    #[test]
    fn a_grid_whose_measures_do_not_fit_is_refused() {
        let file = fixture("avif/grid.avif");
        for (from, to) in [
            (size_box(160, 128), size_box(160, 127)),
            (size_box(80, 64), size_box(10, 64)),
            (size_box(80, 64), size_box(8_000, 64)),
        ] {
            assert_eq!(refused(&patched(&file, &from, &to)).code(), FailureCode::CorruptImage);
        }
    }

    #[test]
    fn tiles_are_counted_though_the_grid_shows_little_of_them() {
        let file = fixture("avif/grid.avif");
        // Four tiles of 80 × 64 pixels, of which the right and the lower ones show a column and a row.
        let little = patched(&file, &size_box(160, 128), &size_box(81, 65));
        let little = patched(&little, &[0, 160, 0, 128], &[0, 81, 0, 65]);
        assert!(read(&little).is_ok());
        match decode(&little, &Limits { pixels: 20_479, ..Limits::default() }).unwrap_err() {
            ImageError::TooManyPixels { what: "pixels", found: 20_480, limit: 20_479 } => {}
            error => panic!("{error}"),
        }
        assert!(decode(&little, &Limits { pixels: 20_480, ..Limits::default() }).is_ok());
    }

    #[test]
    fn a_grid_stops_when_its_time_is_up() {
        for name in ["grid", "alpha"] {
            let limits = Limits { time: std::time::Duration::ZERO, ..Limits::default() };
            match decode(&fixture(&format!("avif/{name}.avif")), &limits).unwrap_err() {
                ImageError::TooComplex { what: "decode time (ms)", found: 1.., limit: 0 } => {}
                error => panic!("{name}: {error}"),
            }
        }
    }

    #[test]
    fn brands_tell_avif_from_heic() {
        let file = fixture("avif/full.avif");
        let picture = read(&file).unwrap();
        let general = patched(&file, b"ftypavif", b"ftypmif1");
        assert_eq!(read(&general).unwrap(), picture);
        assert_eq!(read(&patched(&file, b"ftypavif", b"ftypavis")).unwrap(), picture);
        let lying = refused(&patched(&file, b"ftypavif", b"ftypheic"));
        assert_eq!(lying.code(), FailureCode::UnsupportedFormat, "{lying}");
        assert!(lying.to_string().contains("HEIC"), "{lying}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
        #[test]
        fn a_damaged_file_is_told_or_decoded(
            which in 0..6_usize,
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        ) {
            let name = ["alpha", "animated", "grid", "grain", "bits-10-420", "lossless"][which];
            let mut file = fixture(&format!("avif/{name}.avif"));
            for (at, byte) in damage {
                let at = at.index(file.len());
                file[at] = byte;
            }
            if let Err(error) = read(&file) {
                prop_assert!(!error.to_string().contains("unforeseen"), "{error}");
            }
        }
    }
}

#[cfg(not(feature = "avif"))]
#[test]
fn without_its_feature_avif_is_refused_by_name() {
    assert_eq!(refused(&fixture("avif/full.avif")).to_string(), "unsupported format: AVIF");
}

#[cfg(feature = "heic")]
mod heic {
    use super::*;

    #[test]
    fn what_phones_write_gives_the_pixels_that_pillow_gives() {
        for name in ["halved", "odd", "grey", "alpha", "profile", "orientation-5", "orientation-6", "grid"] {
            assert_like_pillow(&format!("heic/{name}.heic"), 1);
        }
        // Pillow drops the lower bits, here they are rounded.
        assert_like_pillow("heic/bits-10.heic", 3);
    }

    #[test]
    fn a_grid_on_its_side_is_reported_as_stored() {
        let info = prepared(&fixture("heic/grid.heic")).info;
        assert_eq!((info.format, info.width, info.height, info.orientation), (Format::Heic, 150, 100, 8));
    }

    #[test]
    fn a_colour_resolution_that_the_decoder_gets_wrong_is_refused() {
        for name in ["full", "halved-width"] {
            let error = refused(&fixture(&format!("heic/{name}.heic")));
            assert_eq!(error.to_string(), "unsupported format: a HEIC with 4:2:2 or 4:4:4 colour");
        }
    }

    #[test]
    fn a_file_that_ends_early_is_told() {
        assert_truncations_are_told("heic/alpha.heic");
        assert_truncations_are_told("heic/grid.heic");
    }

    #[test]
    fn sizes_are_checked_before_anything_is_decoded() {
        let file = fixture("heic/halved.heic");
        let bomb = patched(&file, &size_box(64, 64), &size_box(60_000, 60_000));
        assert_eq!(refused(&bomb).code(), FailureCode::TooManyPixels);
        let lying = refused(&patched(&file, &size_box(64, 64), &size_box(16, 16))).to_string();
        assert_eq!(lying, "corrupt image: 64 × 64 pixels, declared as 16 × 16");
        let grid = fixture("heic/grid.heic");
        let larger = patched(&grid, &size_box(150, 100), &size_box(60_000, 60_000));
        assert_eq!(refused(&larger).code(), FailureCode::TooManyPixels);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
        #[test]
        fn a_damaged_file_is_told_or_decoded(
            which in 0..4_usize,
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        ) {
            let name = ["alpha", "grid", "odd", "bits-10"][which];
            let mut file = fixture(&format!("heic/{name}.heic"));
            for (at, byte) in damage {
                let at = at.index(file.len());
                file[at] = byte;
            }
            if let Err(error) = read(&file) {
                prop_assert!(!error.to_string().contains("unforeseen"), "{error}");
            }
        }
    }
}

#[cfg(not(feature = "heic"))]
#[test]
fn without_its_feature_heic_is_refused_by_name() {
    for name in ["halved", "grid"] {
        assert_eq!(refused(&fixture(&format!("heic/{name}.heic"))).to_string(), "unsupported format: HEIC");
    }
}
