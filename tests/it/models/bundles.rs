//! Bundles that must not be used, and what is said of them.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use proptest::prelude::*;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use stoker::model::golden::{self, GoldenError};
use stoker::model::{Bundle, BundleError, Device, Manifest, Weights, load};

use super::{fixture, fixture_path};

const LITE0: &str = "models/efficientnet-lite0";
/// A batch norm of the network: small, and on the way of every logit.
const SMALL_TENSOR: &str = "_bn0.bias";

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
        ("/architecture", json!("resnet-51"), "unknown variant `resnet-51`"),
        ("/activation", json!("argmax"), "unknown variant `argmax`"),
        ("/golden/tolerance", json!(0.0), "`golden.tolerance` is 0"),
        ("/golden/images", json!([]), "`golden.images` holds 0 images"),
        ("/golden/images/0", json!("labels.txt"), "`golden.images` names \"labels.txt\""),
        ("/files/labels.txt/sha256", json!("AB"), "`files.\"labels.txt\".sha256`"),
        ("/files/labels.txt/size", json!(1u64 << 40), "`files.\"labels.txt\".size`"),
        ("/files/labels.txt/size", json!(-1), "invalid value"),
        ("/preprocess", json!({"crop_fraction": 1.0}), "missing field `filter`"),
        ("/preprocess/crop_fraction", Value::Null, "`preprocess` takes either `resize` or `crop_fraction`"),
        ("/preprocess/resize", json!("squash"), "`preprocess` takes either `resize` or `crop_fraction`"),
        ("/files/labels.txt/size", json!(0), "is 0: the file is empty"),
        ("/golden/images/1", json!("golden/chelsea.png"), "`golden.images` names \"golden/chelsea.png\" twice"),
        ("/golden/images/1", json!("golden/logits.safetensors"), "`golden.images` names"),
    ] {
        let mut files = Files::new();
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        match files.manifest.pointer_mut(parent).unwrap() {
            Value::Array(list) => list[field.parse::<usize>().unwrap()] = value,
            object => object[field] = value,
        }
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
    for (resize, expected) in [
        (json!({"short_side": 223}), "`preprocess.resize.short_side` is 223"),
        (json!({"short_side": 100_000}), "`preprocess.resize.short_side` is 100000"),
        (json!({"crop_pct": 0.0}), "`preprocess.resize.crop_pct` is 0"),
        (json!({"crop_pct": 1e-6}), "`preprocess.resize.crop_pct` is 0.000001"),
        (json!({"long_side": 256}), "unknown variant `long_side`"),
    ] {
        let mut files = Files::new();
        files.manifest["preprocess"]["crop_fraction"] = Value::Null;
        files.manifest["preprocess"]["resize"] = resize;
        let error = files.bundle().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let twice = fixture(&format!("{LITE0}/model.json"));
    let twice = String::from_utf8(twice).unwrap().replacen("golden/coffee.png\": {", "labels.txt\": {", 1);
    let error = Manifest::parse(twice.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("`files` holds \"labels.txt\" twice"), "{error}");
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
    let labels = String::from_utf8(fixture(&format!("{LITE0}/labels.txt"))).unwrap();
    for (labels, expected) in [
        (format!("\u{FEFF}{labels}"), "labels.txt: line 1 begins with a byte order mark"),
        (labels.replacen("tabby", "tab\rby", 1), "labels.txt: line 282 holds the control character '\\r'"),
        (labels.replacen("tabby", " ", 1), "labels.txt: line 282 is empty"),
        (labels.replacen("tabby", &"cat".repeat(1000), 1), "labels.txt: line 282 has 3000 bytes"),
    ] {
        let error = Files::new().replace("labels.txt", labels.into_bytes()).bundle().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let windows = labels.replace('\n', "\r\n").into_bytes();
    assert_eq!(Files::new().replace("labels.txt", windows).bundle().unwrap().labels()[281], "tabby");
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
    let cut = files.replace("model.safetensors", cut).bundle().unwrap_err().to_string();
    assert!(cut.contains("not a safetensors file"), "{cut}");

    let header = [&u64::MAX.to_le_bytes()[..], b"{}"].concat();
    let huge = Files::new().replace("model.safetensors", header).bundle().unwrap_err();
    assert!(matches!(huge, BundleError::Weights(_)), "{huge}");
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
