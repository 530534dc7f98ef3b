//! Files of every kind that people upload, each against the picture that an independent reader sees in it.
//!
//! `fixtures/formats/manifest.json` holds a row a file: which picture is expected, of which reader, how near it must
//! come, or with which code the file fails. `fixtures/make/formats.py` writes both.
#![allow(clippy::print_stdout, reason = "figures are worth a look")]

mod cases;
mod labels;
mod regressions;
mod uploads;

use std::sync::LazyLock;

use serde::Deserialize;
use stoker::image::{Filter, ImageError, ImageInfo, Limits, Pixels, Preprocess, Resize, decode, prepare};

use crate::models::fixture;

static ROWS: LazyLock<Vec<Row>> =
    LazyLock::new(|| serde_json::from_slice(&fixture("formats/manifest.json")).expect("a manifest of such rows"));

/// What is expected of a file.
#[derive(Debug, Deserialize)]
struct Row {
    /// Path below `fixtures/formats`.
    file: String,
    /// Only so many bytes from its start.
    keep: Option<usize>,
    /// The reports that this row is about, as `CASES` names them.
    #[serde(default)]
    case: String,
    /// The picture, where one is expected.
    #[serde(flatten)]
    picture: Option<Picture>,
    /// The code of the expected failure.
    code: Option<String>,
    /// Words that the failure must hold, in any case of letters.
    #[serde(default)]
    says: String,
    /// A failure that is as good as the picture, for kinds that a reader may leave out.
    or_code: Option<String>,
    #[serde(default)]
    or_says: String,
}

#[derive(Debug, Deserialize)]
struct Picture {
    format: String,
    /// Width and height as stored.
    size: Option<(u32, u32)>,
    /// Not compared where the container turns the picture in words of its own.
    orientation: Option<u8>,
    /// Not compared where it is a matter of words: a whole picture whose file has no end mark.
    truncated: Option<bool>,
    /// The reader that gave what is expected.
    by: String,
    /// The upright picture, and how far from it a channel may be, in levels: at most, and on average.
    expected: Option<String>,
    #[serde(default)]
    largest: u8,
    #[serde(default)]
    mean: f64,
    /// Compare so many rows only: those that have come.
    rows: Option<usize>,
    #[serde(default)]
    from_bottom: bool,
    /// The model's input, of this side in pixels.
    input: Option<String>,
    input_side: Option<u32>,
    #[serde(default)]
    input_largest: u8,
    #[serde(default)]
    input_mean: f64,
}

impl Row {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = fixture(&format!("formats/{}", self.file));
        bytes.truncate(self.keep.unwrap_or(usize::MAX));
        bytes
    }

    /// What is wrong with what becomes of the file, if anything.
    fn check(&self) -> Result<(), String> {
        let bytes = self.bytes();
        let side = self.picture.as_ref().and_then(|picture| picture.input_side).unwrap_or(24);
        let preprocess =
            Preprocess { width: side, height: side, resize: Resize::CropFraction(0.875), filter: Filter::Bicubic };
        // At full scale, where the reference is: what a smaller one costs is measured by benches/accuracy.
        let limits = Limits { jpeg_oversampling: f64::INFINITY, ..Limits::default() };
        let prepared = prepare(&bytes, &limits, &preprocess);
        let decoded = decode(&bytes, &Limits::default());
        match (&self.picture, prepared, decoded) {
            (Some(picture), Ok(prepared), Ok(decoded)) => {
                picture.told(&prepared.info)?;
                picture.seen(&decoded)?;
                picture.fed(&prepared.pixels)
            }
            (_, Err(error), Err(_)) => self.refused(&error),
            (None, Ok(_), Ok(_)) => Err(format!("a picture, expected {:?}", self.code)),
            (_, Ok(_), Err(error)) => Err(format!("decode alone fails: {error}")),
            (_, Err(error), Ok(_)) => Err(format!("prepare alone fails: {error}")),
        }
    }

    fn refused(&self, error: &ImageError) -> Result<(), String> {
        let fits = |code: &Option<String>, says: &str| {
            let words = error.to_string().to_lowercase();
            code.as_deref() == Some(error.code().as_str()) && words.contains(&says.to_lowercase())
        };
        if fits(&self.code, &self.says) || fits(&self.or_code, &self.or_says) {
            return Ok(());
        }
        let expected = self.code.as_deref().unwrap_or("a picture");
        Err(format!("{} ({error}), expected {expected} {:?}", error.code().as_str(), self.says))
    }
}

impl Picture {
    fn told(&self, info: &ImageInfo) -> Result<(), String> {
        let orientation = self.orientation.unwrap_or(info.orientation);
        let truncated = self.truncated.unwrap_or(info.truncated);
        let size = self.size.unwrap_or((info.width, info.height));
        let found = (info.format.name(), info.orientation, info.truncated, (info.width, info.height));
        let expected = (self.format.as_str(), orientation, truncated, size);
        if found == expected { Ok(()) } else { Err(format!("{found:?}, expected {expected:?}")) }
    }

    fn seen(&self, decoded: &Pixels) -> Result<(), String> {
        let Some(expected) = &self.expected else { return Ok(()) };
        let expected = reference(expected);
        let compared = self.rows.unwrap_or(expected.height).min(expected.height) * expected.width * 3;
        let from = if self.from_bottom { expected.rgb.len() - compared } else { 0 };
        near("picture", decoded, &expected, from..from + compared, self.largest, self.mean, &self.by)
    }

    fn fed(&self, input: &Pixels) -> Result<(), String> {
        let Some(expected) = &self.input else { return Ok(()) };
        let expected = reference(expected);
        let all = 0..expected.rgb.len();
        near("input", input, &expected, all, self.input_largest, self.input_mean, &self.by)
    }
}

/// A picture that another reader gave, read by the `image` crate alone.
fn reference(file: &str) -> Pixels {
    let image = image::load_from_memory(&fixture(&format!("formats/{file}"))).unwrap().into_rgb8();
    Pixels { width: image.width() as usize, height: image.height() as usize, rgb: image.into_raw() }
}

/// Largest and mean difference of a channel, in levels.
fn difference(found: &[u8], expected: &[u8]) -> (u8, f64) {
    let differences = found.iter().zip(expected).map(|(found, expected)| found.abs_diff(*expected));
    let sum: u64 = differences.clone().map(u64::from).sum();
    (differences.max().unwrap_or(0), sum as f64 / expected.len() as f64)
}

fn near(
    what: &str,
    found: &Pixels,
    expected: &Pixels,
    range: std::ops::Range<usize>,
    most: u8,
    most_on_average: f64,
    by: &str,
) -> Result<(), String> {
    if (found.width, found.height) != (expected.width, expected.height) {
        return Err(format!("{what} of {} × {}", found.width, found.height));
    }
    let (largest, mean) = difference(&found.rgb[range.clone()], &expected.rgb[range]);
    if largest <= most && mean <= most_on_average {
        return Ok(());
    }
    Err(format!("{what} differs from {by}: {largest} levels, {mean:.3} on average ({most}, {most_on_average} allowed)"))
}

/// Checks all rows of a kind before it fails, with each one that is wrong.
fn check(which: impl Fn(&Row) -> bool) {
    let rows: Vec<&Row> = ROWS.iter().filter(|row| which(row)).collect();
    assert!(!rows.is_empty(), "no such rows");
    let wrong = rows.iter().filter_map(|row| {
        let keep = row.keep.map(|keep| format!(", {keep} bytes")).unwrap_or_default();
        row.check().err().map(|problem| format!("{}{keep}: {problem}", row.file))
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{} of {} files:\n{}", wrong.len(), rows.len(), wrong.join("\n"));
}

fn check_folder(folder: &str) {
    check(|row| row.file.starts_with(folder) && row.keep.is_none());
}

#[test]
fn every_kind_of_jpeg_is_libjpegs_picture() {
    check_folder("jpeg/");
}

#[test]
fn every_kind_of_png_is_the_picture() {
    check_folder("png/");
}

#[test]
fn every_kind_of_webp_is_libwebps_picture() {
    check_folder("webp/");
}

#[test]
fn every_kind_of_gif_is_the_first_picture() {
    check_folder("gif/");
}

#[test]
fn every_kind_of_bmp_is_the_picture() {
    check_folder("bmp/");
}

#[test]
fn every_kind_of_tiff_is_the_first_page() {
    check_folder("tiff/");
}

#[test]
fn every_kind_of_avif_is_libavifs_picture() {
    check_folder("avif/");
}

#[test]
fn heic_is_the_picture_or_named() {
    check_folder("heic/");
}

#[test]
fn profiles_are_converted_as_little_cms_does() {
    check_folder("profiles/");
}

#[test]
fn orientations_are_found_wherever_they_are() {
    check_folder("orientation/");
}

#[test]
fn what_is_cut_is_labelled_when_enough_has_come() {
    check(|row| row.keep.is_some());
    check_folder("truncated/");
}

#[test]
fn scaled_and_narrow_pictures_give_pillows_input() {
    check_folder("../photos/");
    check_folder("inputs/");
}

#[test]
fn bombs_are_refused() {
    check_folder("bombs/");
}

#[test]
fn every_row_belongs_to_a_test() {
    let folders = ["jpeg", "png", "webp", "gif", "bmp", "tiff", "avif", "heic", "profiles", "orientation"];
    let others = ["truncated", "inputs", "..", "bombs"];
    for row in ROWS.iter() {
        let folder = row.file.split('/').next().unwrap();
        assert!(folders.contains(&folder) || others.contains(&folder), "{}", row.file);
        assert_eq!(row.picture.is_none(), row.code.is_some(), "{}", row.file);
    }
}
