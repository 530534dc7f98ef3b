//! The built-in model against its PyTorch reference.
#![allow(clippy::print_stdout, reason = "figures are worth a look")]

use std::path::{Path, PathBuf};

use stoker::image::{Limits, Pixels, decode, prepare};
use stoker::model::golden::{self, GoldenError};
use stoker::model::{Answer, Bundle, Classifier, Device, DeviceError, ModelError, Weights, labels, load};

mod bundles;

const PHOTOS: [&str; 5] = ["astronaut", "camera", "chelsea", "coffee", "rocket"];

fn fixture_path(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(path)
}

/// The bytes of a file under `fixtures/`.
pub(crate) fn fixture(path: &str) -> Vec<u8> {
    std::fs::read(fixture_path(path)).unwrap()
}

fn builtin() -> (Bundle, Box<dyn Classifier>) {
    let bundle = Bundle::builtin().unwrap();
    let model = load(&bundle, Device::Cpu).unwrap();
    (bundle, model)
}

/// The pixels that the reference was computed from.
fn reference_pixels() -> Vec<Pixels> {
    PHOTOS.map(|name| decode(&fixture(&format!("reference/{name}.png")), &Limits::default()).unwrap()).to_vec()
}

/// Logits of PyTorch for every photo: `f32` weights as published, or `shipped`, rounded for the bundle.
fn reference_logits(weights: &str) -> Vec<Vec<f32>> {
    let file = fixture("reference/logits.safetensors");
    let mut tensors = Weights::parse(&file).unwrap();
    PHOTOS.map(|name| tensors.take(&format!("{weights}/{name}"), &[1000]).unwrap()).to_vec()
}

/// Largest difference, relative to the largest reference logit.
fn relative_error(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0.0f32, |largest, logit| largest.max(logit.abs()));
    found.iter().zip(expected).fold(0.0f32, |error, (a, b)| error.max((a - b).abs())) / largest
}

#[test]
fn logits_equal_the_pytorch_reference() {
    let (_, mut model) = builtin();
    let pixels = reference_pixels();
    let answers = model.classify(&pixels.iter().collect::<Vec<_>>()).unwrap();
    for (row, name) in PHOTOS.iter().enumerate() {
        let shipped = relative_error(&answers[row].logits, &reference_logits("shipped")[row]);
        let original = relative_error(&answers[row].logits, &reference_logits("f32")[row]);
        println!("{name}: {shipped:.1e} from PyTorch with these weights, {original:.1e} with the f32 ones");
        assert!(shipped <= 1e-5, "{name}: {shipped}");
        assert!(original <= 1e-3, "{name}: {original}");
    }
}

#[test]
fn photos_get_the_labels_that_people_would_give() {
    let (bundle, mut model) = builtin();
    for (photo, expected) in [
        ("chelsea.jpg", &["tiger cat", "tabby", "Egyptian cat"][..]),
        ("chelsea-rotated.jpg", &["tiger cat", "tabby", "Egyptian cat"]),
        ("coffee.jpg", &["espresso", "cup"]),
        ("coffee-alpha.png", &["espresso", "cup"]),
        ("rocket.jpg", &["missile", "projectile"]),
        ("camera.jpg", &["tripod"]),
    ] {
        let bytes = fixture(&format!("photos/{photo}"));
        let prepared = prepare(&bytes, &Limits::default(), &bundle.manifest().preprocess()).unwrap();
        let answers = model.classify(&[&prepared.pixels]).unwrap();
        let found = labels::top(&answers[0].logits, bundle.labels(), bundle.manifest().activation, 3, 0.0).unwrap();
        println!("{photo}: {found:?}");
        assert!(expected.contains(&found[0].name.as_str()), "{photo}: {found:?}");
    }
}

#[test]
fn a_label_does_not_depend_on_the_batch() {
    let (_, mut model) = builtin();
    let pixels = reference_pixels();
    let alone: Vec<_> = pixels.iter().map(|image| model.classify(&[image]).unwrap().remove(0).logits).collect();
    for batch in [2, 3, 4, 8] {
        let images: Vec<&Pixels> = pixels.iter().cycle().skip(1).take(batch).collect();
        let together = model.classify(&images).unwrap();
        assert_eq!(together.len(), batch);
        for (Answer { logits, .. }, alone) in together.iter().zip(alone.iter().cycle().skip(1)) {
            assert!(relative_error(logits, alone) <= 1e-5, "batch of {batch}");
        }
    }
}

#[test]
fn an_image_of_another_size_is_an_error() {
    let (bundle, mut model) = builtin();
    let right = &bundle.golden()[0].pixels;
    let wrong = Pixels { height: 2, width: 2, rgb: vec![0; 12] };
    assert!(matches!(model.classify(&[right, &wrong]), Err(DeviceError::Failed(_))));
    assert!(model.classify(&[right]).is_ok());
}

#[test]
fn a_gpu_that_cannot_be_had_is_an_error() {
    // Without the feature, without a driver, or without that many GPUs.
    let error = load(&Bundle::builtin().unwrap(), Device::Cuda(64)).map(|_| ()).unwrap_err();
    assert!(matches!(error, ModelError::Unavailable(_)), "{error}");
}

#[test]
fn golden_images_pass_on_a_right_device() {
    let (bundle, mut model) = builtin();
    let report = golden::check(model.as_mut(), &bundle).unwrap();
    assert_eq!(report.images, 3);
    assert!(report.max_error <= 1e-5, "{report:?}");
}

/// A device with one wrong kernel.
struct OffBy(Box<dyn Classifier>, f32);

impl Classifier for OffBy {
    fn classify(&mut self, images: &[&Pixels]) -> Result<Vec<Answer>, DeviceError> {
        let mut answers = self.0.classify(images)?;
        answers.last_mut().unwrap().logits[7] += self.1;
        Ok(answers)
    }

    fn device(&self) -> &str {
        self.0.device()
    }
}

#[test]
fn golden_images_catch_a_device_that_computes_wrong() {
    for error in [0.1, f32::NAN] {
        let (bundle, model) = builtin();
        match golden::check(&mut OffBy(model, error), &bundle) {
            Err(GoldenError::Mismatch { image, index: 7, expected, found, .. }) => {
                // The last image of the batch.
                assert_eq!(image, "golden/rocket.png");
                assert!(found.is_nan() || (found - expected - error).abs() < 1e-3);
            }
            other => panic!("{other:?}"),
        }
    }
}
