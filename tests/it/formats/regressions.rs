//! Files that once broke a reader, as the fuzz targets found and shrank them.

use std::path::Path;

use stoker::image::{Filter, Limits, Preprocess, Resize, decode, prepare};

/// `fixtures/formats/regressions` holds a file for each finding; its README says what each one did.
#[test]
fn every_regression_ends_in_pixels_or_an_error() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/formats/regressions");
    let preprocess = Preprocess { width: 32, height: 32, resize: Resize::CropFraction(0.875), filter: Filter::Bicubic };
    let mut files = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        println!("{}", path.display());
        match prepare(&bytes, &Limits::default(), &preprocess) {
            Ok(found) => assert_eq!(found.pixels.rgb.len(), 32 * 32 * 3, "{}", path.display()),
            Err(error) => assert!(!error.to_string().contains("unforeseen"), "{}: a panic: {error}", path.display()),
        }
        drop(decode(&bytes, &Limits::default()));
        files += 1;
    }
    assert!(files > 0, "the folder has its README at least");
}
