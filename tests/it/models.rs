//! The built-in model against its PyTorch reference, and bundles that must not be used.
#![allow(clippy::print_stdout, reason = "figures are worth a look")]

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use proptest::prelude::*;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use stoker::image::{Limits, Pixels, decode, prepare};
use stoker::model::golden::{self, GoldenError};
use stoker::model::{
    Answer, Bundle, BundleError, Classifier, Device, DeviceError, Manifest, ModelError, Weights, labels, load,
};

const PHOTOS: [&str; 5] = ["astronaut", "camera", "chelsea", "coffee", "rocket"];
const LITE0: &str = "models/efficientnet-lite0";
/// A batch norm of the network: small, and on the way of every logit.
const SMALL_TENSOR: &str = "_bn0.bias";

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

/// The built-in bundle's files, to be spoilt.
struct Files {
    manifest: Value,
    files: BTreeMap<String, Bytes>,
}

impl Files {
    fn new() -> Self {
        let manifest: Value = serde_json::from_slice(&fixture(&format!("{LITE0}/model.json"))).unwrap();
        let paths = manifest["files"].as_object().unwrap().keys();
        let files = paths.map(|path| (path.clone(), fixture(&format!("{LITE0}/{path}")).into())).collect();
        Files { manifest, files }
    }

    /// Replaces a file and its entry in `model.json`.
    fn replace(mut self, path: &str, bytes: Vec<u8>) -> Self {
        let sha256: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        self.manifest["files"][path] = json!({"size": bytes.len(), "sha256": sha256});
        self.files.insert(path.to_owned(), bytes.into());
        self
    }

    /// Rewrites the weights tensor by tensor.
    fn weights(self, edit: impl FnOnce(&mut HashMap<String, Tensor>)) -> Self {
        let bytes = self.files["model.safetensors"].clone();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let mut tensors = tensors
            .tensors()
            .into_iter()
            .map(|(name, view)| (name, Tensor(view.dtype(), view.shape().to_vec(), view.data().to_vec())))
            .collect();
        edit(&mut tensors);
        let views = tensors.iter().map(|(name, Tensor(dtype, shape, data))| {
            (name.as_str(), TensorView::new(*dtype, shape.clone(), data).unwrap())
        });
        self.replace("model.safetensors", safetensors::serialize(views, None).unwrap())
    }

    fn bundle(self) -> Result<Bundle, BundleError> {
        Bundle::from_files(&serde_json::to_vec(&self.manifest).unwrap(), self.files)
    }

    /// Loads a bundle whose files are as its manifest says, but whose weights do not fit.
    fn load_error(self) -> String {
        let error = load(&self.bundle().unwrap(), Device::Cpu).map(|_| ()).unwrap_err();
        let source = std::error::Error::source(&error).map(ToString::to_string);
        format!("{error}: {}", source.unwrap_or_default())
    }
}

struct Tensor(Dtype, Vec<usize>, Vec<u8>);

#[test]
fn a_directory_is_the_bundle_that_is_compiled_in() {
    let opened = Bundle::open(&fixture_path(LITE0)).unwrap();
    assert_eq!(opened.digest(), Bundle::builtin().unwrap().digest());
    assert!(opened.digest().starts_with("sha256:") && opened.digest().len() == 71);
    assert_eq!((opened.labels().len(), opened.labels()[281].as_str()), (1000, "tabby"));
    let error = Bundle::open(&fixture_path("photos")).unwrap_err();
    assert!(matches!(error, BundleError::Read { path, .. } if path == "model.json"));
}

#[test]
fn a_changed_cut_or_missing_file_is_refused() {
    let mut files = Files::new();
    let mut weights = files.files["model.safetensors"].to_vec();
    weights[5_000_000] ^= 1;
    files.files.insert("model.safetensors".to_owned(), weights.into());
    assert!(matches!(files.bundle(), Err(BundleError::Digest { path, .. }) if path == "model.safetensors"));

    let mut files = Files::new();
    let cut = files.files["labels.txt"].slice(..100);
    files.files.insert("labels.txt".to_owned(), cut);
    assert!(matches!(files.bundle(), Err(BundleError::Size { expected: 10_488, found: 100, .. })));

    let mut files = Files::new();
    files.files.remove("golden/coffee.png");
    assert!(matches!(files.bundle(), Err(BundleError::Missing { path }) if path == "golden/coffee.png"));
}

#[test]
fn every_wrong_field_is_named() {
    for (pointer, value, expected) in [
        ("/schema", json!(2), "`schema` is 2"),
        ("/name", json!(""), "`name`"),
        ("/classes", json!(0), "`classes`"),
        ("/input/width", json!(0), "`input.width` is 0"),
        ("/input/height", json!(4096), "`input.height` is 4096"),
        ("/preprocess/crop_fraction", json!(1.5), "`preprocess.crop_fraction` is 1.5"),
        ("/preprocess/std/1", json!(0.0), "`preprocess.std`"),
        ("/preprocess/filter", json!("nearest"), "unknown variant `nearest`"),
        ("/architecture", json!("resnet-50"), "unknown variant `resnet-50`"),
        ("/activation", json!("argmax"), "unknown variant `argmax`"),
        ("/golden/tolerance", json!(0.0), "`golden.tolerance` is 0"),
        ("/golden/images", json!([]), "`golden.images` holds 0 images"),
        ("/golden/images/0", json!("labels.txt"), "`golden.images` names \"labels.txt\""),
        ("/files/labels.txt/sha256", json!("AB"), "`files.\"labels.txt\".sha256`"),
        ("/files/labels.txt/size", json!(1u64 << 40), "`files.\"labels.txt\".size`"),
        ("/files/labels.txt/size", json!(-1), "invalid value"),
        ("/preprocess", json!({"crop_fraction": 1.0}), "missing field `filter`"),
    ] {
        let mut files = Files::new();
        *files.manifest.pointer_mut(pointer).unwrap() = value;
        let error = files.bundle().unwrap_err().to_string();
        assert!(error.contains(expected), "{pointer}: {error}");
    }
    for (add, expected) in [("/surprise", "unknown field `surprise`"), ("/input/depth", "unknown field `depth`")] {
        let (parent, field) = add.rsplit_once('/').unwrap();
        let mut files = Files::new();
        files.manifest.pointer_mut(parent).unwrap()[field] = json!(1);
        let error = files.bundle().unwrap_err().to_string();
        assert!(error.contains(expected), "{add}: {error}");
    }
    for path in ["../secret", "/etc/passwd", "golden/../../x", "a\\b", "", ".hidden"] {
        let error = Files::new().replace(path, vec![1]).bundle().unwrap_err().to_string();
        assert!(error.contains("not a plain relative path"), "{path}: {error}");
    }
    let error = Files::new().replace("extra.bin", vec![1]).bundle().unwrap_err().to_string();
    assert!(error.contains("\"extra.bin\", which nothing uses"), "{error}");
}

#[test]
fn labels_and_golden_images_must_fit_the_model() {
    let error = Files::new().replace("labels.txt", b"cat\ndog\n".to_vec()).bundle().unwrap_err().to_string();
    assert_eq!(error, "labels.txt: 2 lines for 1000 classes");
    let photo = fixture("photos/coffee-alpha.png");
    let error = Files::new().replace("golden/coffee.png", photo).bundle().unwrap_err().to_string();
    assert!(error.starts_with("golden/coffee.png: ") && error.contains("240"), "{error}");
    let error = Files::new().replace("golden/logits.safetensors", vec![0; 20]).bundle().unwrap_err();
    assert!(matches!(error, BundleError::GoldenLogits(_)), "{error}");
}

#[test]
fn weights_that_do_not_fit_name_their_tensor() {
    let missing = Files::new().weights(|tensors| drop(tensors.remove(SMALL_TENSOR))).load_error();
    assert!(missing.contains("tensor _bn0.bias is missing"), "{missing}");

    let extra = Files::new().weights(|tensors| {
        for index in 0..20 {
            tensors.insert(format!("_blocks.16.{index:02}"), Tensor(Dtype::F32, vec![1], vec![0; 4]));
        }
    });
    let extra = extra.load_error();
    assert!(extra.contains("20 tensors belong to no layer: _blocks.16.00,"), "{extra}");
    assert!(!extra.contains("_blocks.16.08"), "the list is bounded: {extra}");

    let shape = Files::new().weights(|tensors| tensors.get_mut(SMALL_TENSOR).unwrap().1 = vec![4, 8]).load_error();
    assert!(shape.contains("tensor _bn0.bias has the shape [4, 8], the network needs [32]"), "{shape}");

    let not_a_number = Files::new().weights(|tensors| {
        tensors.get_mut(SMALL_TENSOR).unwrap().2[8..12].copy_from_slice(&f32::NAN.to_le_bytes());
    });
    let not_a_number = not_a_number.load_error();
    assert!(not_a_number.contains("tensor _bn0.bias holds NaN at 2"), "{not_a_number}");

    let variance = Files::new().weights(|tensors| {
        tensors.get_mut("_bn0.running_var").unwrap().2[..4].copy_from_slice(&(-1.0f32).to_le_bytes());
    });
    let variance = variance.load_error();
    assert!(variance.contains("tensor _bn0.running_var holds -1 at 0"), "{variance}");

    let integer = Files::new().weights(|tensors| tensors.get_mut(SMALL_TENSOR).unwrap().0 = Dtype::I32).load_error();
    assert!(integer.contains("tensor _bn0.bias is of type I32"), "{integer}");

    let files = Files::new();
    let cut = files.files["model.safetensors"][..5_000_000].to_vec();
    let cut = files.replace("model.safetensors", cut).load_error();
    assert!(cut.contains("not a safetensors file"), "{cut}");
}

#[test]
fn golden_images_catch_a_wrong_weight() {
    // Right by its digest, but not the model that the golden logits are of.
    let files = Files::new().weights(|tensors| {
        tensors.get_mut(SMALL_TENSOR).unwrap().2[..4].copy_from_slice(&1.0f32.to_le_bytes());
    });
    let bundle = files.bundle().unwrap();
    let mut model = load(&bundle, Device::Cpu).unwrap();
    let error = golden::check(model.as_mut(), &bundle).unwrap_err();
    assert!(matches!(error, GoldenError::Mismatch { .. }), "{error}");
}

proptest! {
    // Each case hashes three whole bundles.
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_weights_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), length in 0u64..300) {
        drop(Weights::parse(&bytes));
        drop(Weights::parse(&[&length.to_le_bytes()[..], &bytes].concat()));
    }

    #[test]
    fn damaged_bundles_never_panic(damage in proptest::collection::vec((any::<u16>(), any::<u8>()), 1..6), cut in any::<bool>()) {
        let damaged = |path: &str| {
            let mut bytes = fixture(&format!("{LITE0}/{path}"));
            for (at, value) in &damage {
                let at = usize::from(*at) % bytes.len();
                bytes[at] ^= value;
                if cut {
                    bytes.truncate(at + 1);
                }
            }
            bytes
        };
        drop(Manifest::parse(&damaged("model.json")));
        for path in ["labels.txt", "golden/logits.safetensors", "golden/rocket.png"] {
            drop(Files::new().replace(path, damaged(path)).bundle());
        }
    }
}
