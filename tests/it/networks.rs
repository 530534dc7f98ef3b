//! Every network against its PyTorch implementation: `fixtures/networks` holds a small one of each kind.
#![allow(clippy::print_stdout, reason = "figures are worth a look")]

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use flate2::read::GzDecoder;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use stoker::image::Pixels;
use stoker::model::{Bundle, Classifier, Device, Manifest, Weights, golden, load};

const WEIGHTS: &str = "model.safetensors";

/// A small network, and the naming scheme of its tensors.
const NETWORKS: [&str; 13] = [
    "efficientnet-lite0-package",
    "efficientnet-lite1-timm",
    "efficientnet-lite2-timm-tensorflow",
    "mobilenet-v2-timm",
    "mobilenet-v2-torchvision",
    "resnet-18-torchvision",
    "resnet-34-timm",
    "resnet-50-torchvision",
    "resnet-101-timm",
    "convnext-tiny-torchvision",
    "convnext-small-timm",
    "vit-b-16-torchvision",
    "vit-s-16-timm",
];

fn directory(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/networks").join(name)
}

fn small(name: &str) -> (Bundle, Box<dyn Classifier>) {
    let bundle = Bundle::open(&directory(name)).unwrap();
    let model = load(&bundle, Device::Cpu).unwrap();
    (bundle, model)
}

fn pixels(bundle: &Bundle) -> Vec<&Pixels> {
    bundle.golden().iter().map(|golden| &golden.pixels).collect()
}

/// Largest difference, relative to the largest reference value.
fn relative_error(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
    found.iter().zip(expected).fold(0.0f32, |error, (a, b)| error.max((a - b).abs())) / largest
}

#[test]
fn every_fixture_is_tested() {
    let root = directory("");
    let entries = std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap());
    let mut found: Vec<String> = entries
        .filter(|entry| entry.file_type().unwrap().is_dir())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    let mut expected = NETWORKS.map(str::to_owned);
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
}

#[test]
fn logits_and_features_equal_pytorch() {
    let mut wrong = Vec::new();
    for name in NETWORKS {
        let (bundle, mut model) = small(name);
        let answers = model.classify(&pixels(&bundle)).unwrap();
        let file = std::fs::read(directory(name).join("features.safetensors")).unwrap();
        let mut reference = Weights::parse(&file).unwrap();
        let dims = reference.shape("features").unwrap();
        let features = reference.take("features", &dims).unwrap();
        let mut errors = [0.0f32; 2];
        for ((answer, golden), features) in answers.iter().zip(bundle.golden()).zip(features.chunks_exact(dims[1])) {
            errors[0] = errors[0].max(relative_error(&answer.logits, &golden.logits));
            errors[1] = errors[1].max(relative_error(answer.embedding.as_ref().unwrap(), features));
        }
        println!("{name}: logits {:.1e}, features {:.1e}", errors[0], errors[1]);
        if errors.iter().any(|error| error.is_nan() || *error > 1e-4) {
            wrong.push((name, errors));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}
