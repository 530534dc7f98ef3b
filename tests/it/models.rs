//! The built-in model against its PyTorch reference.

use std::path::{Path, PathBuf};

use stoker::image::{Limits, Pixels, decode};
use stoker::model::{Bundle, Device, Weights, golden, load};

const PHOTOS: [&str; 5] = ["astronaut", "camera", "chelsea", "coffee", "rocket"];

fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(path)
}

/// The pixels that the reference was computed from.
fn reference_pixels() -> Vec<Pixels> {
    let read = |name: &str| std::fs::read(fixture(&format!("reference/{name}.png"))).unwrap();
    PHOTOS.iter().map(|name| decode(&read(name), &Limits::default()).unwrap()).collect()
}

/// Logits of PyTorch for every photo: `f32` weights as published, or `shipped`, rounded for the bundle.
fn reference_logits(weights: &str) -> Vec<Vec<f32>> {
    let file = std::fs::read(fixture("reference/logits.safetensors")).unwrap();
    let mut tensors = Weights::parse(&file).unwrap();
    PHOTOS.iter().map(|name| tensors.take(&format!("{weights}/{name}"), &[1000]).unwrap()).collect()
}

/// Largest difference, relative to the largest reference logit.
fn relative_error(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0.0f32, |largest, logit| largest.max(logit.abs()));
    found.iter().zip(expected).fold(0.0f32, |error, (a, b)| error.max((a - b).abs())) / largest
}

#[test]
fn logits_equal_the_pytorch_reference() {
    let mut model = load(&Bundle::builtin().unwrap(), Device::Cpu).unwrap();
    let pixels = reference_pixels();
    let images: Vec<&Pixels> = pixels.iter().collect();
    let logits = model.classify(&images).unwrap();
    for (row, name) in PHOTOS.iter().enumerate() {
        let shipped = relative_error(&logits[row], &reference_logits("shipped")[row]);
        let original = relative_error(&logits[row], &reference_logits("f32")[row]);
        println!("{name}: {shipped:.1e} from PyTorch with these weights, {original:.1e} with the f32 ones");
        assert!(shipped <= 1e-5, "{name}: {shipped}");
        assert!(original <= 1e-3, "{name}: {original}");
    }
}

#[test]
fn golden_images_pass() {
    let bundle = Bundle::builtin().unwrap();
    let mut model = load(&bundle, Device::Cpu).unwrap();
    let report = golden::check(model.as_mut(), &bundle).unwrap();
    assert_eq!(report.images, 3);
    assert!(report.max_error <= 1e-5, "{report:?}");
}
