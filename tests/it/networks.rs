//! Every network against its PyTorch implementation: `fixtures/networks` holds a small one of each kind.
#![allow(clippy::print_stdout, reason = "figures are worth a look")]

use std::collections::BTreeMap;
use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use flate2::read::GzDecoder;
use image::{ImageFormat, RgbImage};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use stoker::image::Pixels;
use stoker::model::{Bundle, Classifier, Device, Weights, golden, load};

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

#[test]
fn a_batch_is_answered_as_its_images_alone() {
    for name in NETWORKS {
        let (bundle, mut model) = small(name);
        let images = pixels(&bundle);
        let alone: Vec<_> = images.iter().map(|image| model.classify(&[image]).unwrap().remove(0)).collect();
        for batch in [2, 3, 4, 8] {
            let together: Vec<_> = images.iter().copied().cycle().take(batch).collect();
            for (answer, alone) in model.classify(&together).unwrap().iter().zip(alone.iter().cycle()) {
                assert!(relative_error(&answer.logits, &alone.logits) <= 1e-5, "{name}: batch of {batch}");
            }
        }
    }
}

#[test]
fn golden_images_pass() {
    for name in NETWORKS {
        let (bundle, mut model) = small(name);
        golden::check(model.as_mut(), &bundle).unwrap();
    }
}

/// A bundle's files, to be changed.
struct Files {
    manifest: Value,
    files: BTreeMap<String, Bytes>,
}

impl Files {
    fn new(name: &str) -> Self {
        let read = |path: &str| std::fs::read(directory(name).join(path)).unwrap();
        let manifest: Value = serde_json::from_slice(&read("model.json")).unwrap();
        let paths = manifest["files"].as_object().unwrap().keys();
        let files = paths.map(|path| (path.clone(), read(path).into())).collect();
        Files { manifest, files }
    }

    /// Replaces a file and its entry in `model.json`.
    fn replace(mut self, path: &str, bytes: Vec<u8>) -> Self {
        let sha256: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        self.manifest["files"][path] = json!({"size": bytes.len(), "sha256": sha256});
        self.files.insert(path.to_owned(), bytes.into());
        self
    }

    /// Rewrites the table of the weights.
    fn edit(self, edit: impl FnOnce(&mut BTreeMap<String, Tensor>)) -> Self {
        let mut tensors = tensors(&self.files[WEIGHTS]);
        edit(&mut tensors);
        let views = tensors
            .iter()
            .map(|(name, (dtype, shape, data))| (name.as_str(), TensorView::new(*dtype, shape.clone(), data).unwrap()));
        self.replace(WEIGHTS, safetensors::serialize(views, None).unwrap())
    }

    /// The same network for pictures of another size, with golden images of noise.
    fn sized(mut self, rows: u32, columns: u32) -> Self {
        self.manifest["input"] = json!({"width": columns, "height": rows});
        let paths: Vec<String> = serde_json::from_value(self.manifest["golden"]["images"].clone()).unwrap();
        let mut png = Cursor::new(Vec::new());
        let noise = RgbImage::from_raw(columns, rows, noise(rows, columns).rgb).unwrap();
        noise.write_to(&mut png, ImageFormat::Png).unwrap();
        paths.iter().fold(self, |files, path| files.replace(path, png.get_ref().clone()))
    }

    /// Names and golden logits for so many classes.
    fn classes(mut self, classes: usize) -> Self {
        self.manifest["classes"] = json!(classes);
        let images = self.manifest["golden"]["images"].as_array().unwrap().len();
        let logits = zeros(&[("logits".to_owned(), vec![images, classes])]);
        let labels = (0..classes).map(|class| format!("class {class}\n")).collect::<String>();
        self.replace("golden/logits.safetensors", logits).replace("labels.txt", labels.into_bytes())
    }

    fn bundle(self) -> Result<Bundle, String> {
        let manifest = serde_json::to_vec(&self.manifest).unwrap();
        Bundle::from_files(&manifest, self.files).map_err(|error| error.to_string())
    }

    fn load(self) -> Result<Box<dyn Classifier>, String> {
        load(&self.bundle()?, Device::Cpu).map_err(|error| {
            let source = std::error::Error::source(&error).map(ToString::to_string);
            format!("{error}: {}", source.unwrap_or_default())
        })
    }
}

type Tensor = (Dtype, Vec<usize>, Vec<u8>);

fn tensors(bytes: &[u8]) -> BTreeMap<String, Tensor> {
    let tensors = SafeTensors::deserialize(bytes).unwrap().tensors();
    tensors
        .into_iter()
        .map(|(name, view)| (name, (view.dtype(), view.shape().to_vec(), view.data().to_vec())))
        .collect()
}

fn noise(rows: u32, columns: u32) -> Pixels {
    let rgb = (0..rows * columns * 3).map(|index| (index.wrapping_mul(2_654_435_761) >> 24).to_le_bytes()[0]);
    Pixels { height: rows as usize, width: columns as usize, rgb: rgb.collect() }
}

#[test]
fn every_tensor_that_does_not_fit_is_named() {
    for name in NETWORKS {
        let names: Vec<String> = tensors(&Files::new(name).files[WEIGHTS]).into_keys().collect();
        let needed: Vec<&String> = names.iter().filter(|name| !name.ends_with("num_batches_tracked")).collect();
        // Every seventh, and all that are outside of blocks.
        let outside = |tensor: &str| tensor.split('.').count() <= 2;
        for (index, tensor) in needed.iter().enumerate().filter(|(index, tensor)| index % 7 == 3 || outside(tensor)) {
            let missing =
                Files::new(name).edit(|tensors| drop(tensors.remove(*tensor))).load().map(|_| ()).unwrap_err();
            assert!(missing.ends_with(&format!("tensor {tensor} is missing")), "{name}, {index}: {missing}");

            let misshapen = Files::new(name).edit(|tensors| {
                let (_, shape, data) = tensors.get_mut(*tensor).unwrap();
                shape.push(2);
                data.extend_from_within(..);
            });
            let misshapen = misshapen.load().map(|_| ()).unwrap_err();
            assert!(misshapen.contains(&format!("tensor {tensor} has the shape")), "{name}: {misshapen}");
        }
        let extra = Files::new(name).edit(|tensors| {
            tensors.insert("left.over".to_owned(), (Dtype::F32, vec![1], vec![0; 4]));
        });
        let extra = extra.load().map(|_| ()).unwrap_err();
        assert!(extra.contains("1 tensors belong to no layer: left.over"), "{name}: {extra}");
    }
}

#[test]
fn counters_of_training_may_be_missing() {
    let files = Files::new("resnet-18-torchvision").edit(|tensors| {
        let before = tensors.len();
        tensors.retain(|name, _| !name.ends_with("num_batches_tracked"));
        assert!(tensors.len() < before);
    });
    files.load().unwrap();
}

#[test]
fn the_first_names_of_the_vision_transformer_are_known() {
    let name = "vit-b-16-torchvision";
    let files = Files::new(name).edit(|tensors| {
        *tensors = std::mem::take(tensors)
            .into_iter()
            .map(|(name, tensor)| {
                (name.replace(".mlp.0.", ".mlp.linear_1.").replace(".mlp.3.", ".mlp.linear_2."), tensor)
            })
            .collect();
        assert!(tensors.contains_key("encoder.layers.encoder_layer_0.mlp.linear_1.weight"));
    });
    let bundle = files.bundle().unwrap();
    golden::check(load(&bundle, Device::Cpu).unwrap().as_mut(), &bundle).unwrap();
}

#[test]
fn networks_run_at_other_input_sizes() {
    for name in NETWORKS.into_iter().filter(|name| !name.starts_with("vit")) {
        for (rows, columns) in [(32, 32), (33, 47), (96, 70)] {
            let mut model = Files::new(name).sized(rows, columns).load().unwrap();
            let answer = model.classify(&[&noise(rows, columns)]).unwrap().remove(0);
            assert!(answer.logits.iter().all(|logit| logit.is_finite()), "{name} at {columns} × {rows}");
        }
    }
    let small = Files::new("convnext-tiny-torchvision").sized(20, 64).load().map(|_| ()).unwrap_err();
    assert!(small.contains("too small") && small.contains("features.6.1"), "{small}");
}

#[test]
fn a_vision_transformer_keeps_its_input_size() {
    let error = Files::new("vit-b-16-torchvision").sized(64, 96).load().map(|_| ()).unwrap_err();
    assert!(error.contains("tensor encoder.pos_embedding has 17 positions"), "{error}");
    assert!(error.contains("96 × 64 pixels needs 25"), "{error}");
    let error = Files::new("vit-s-16-timm").sized(44, 56).load().map(|_| ()).unwrap_err();
    assert!(error.contains("`variant.patch` is 8, which does not divide the input's 56 × 44"), "{error}");
}

#[test]
fn every_wrong_field_of_a_variant_is_named() {
    let (mobile, resnet, convnext, vit) =
        ("mobilenet-v2-timm", "resnet-50-torchvision", "convnext-small-timm", "vit-s-16-timm");
    for (name, field, value, expected) in [
        (mobile, "width_multiplier", json!(0.0), "`variant.width_multiplier` is 0, not 0.01 to 16"),
        (mobile, "depth_multiplier", json!(1e9), "`variant.depth_multiplier` is 1000000000"),
        (mobile, "batch_norm_epsilon", json!(-1e-3), "`variant.batch_norm_epsilon` is -0.001"),
        (mobile, "padding", json!("valid"), "unknown variant `valid`"),
        (mobile, "heads", json!(3), "`variant.heads` means nothing to this architecture"),
        (resnet, "depths", json!([1, 2, 3]), "`variant.depths` holds 3 numbers, not one for each of 4 stages"),
        (resnet, "widths", json!([8, 16, 0, 8]), "`variant.widths` holds 0, not 1 to 16384"),
        (resnet, "width_multiplier", json!(2), "`variant.width_multiplier` means nothing"),
        (resnet, "width", json!(-2), "invalid value"),
        (convnext, "depths", json!([1, 1, 1, 257]), "`variant.depths` holds 257, not 1 to 256"),
        (convnext, "batch_norm_epsilon", json!(1e-5), "`variant.batch_norm_epsilon` means nothing"),
        (convnext, "surprise", json!(1), "unknown field `surprise`"),
        (vit, "heads", json!(5), "`variant.heads` is 5, which does not divide the width 48"),
        (vit, "patch", json!(16), "`variant.patch` is 16, which does not divide the input's 56 × 40"),
        (vit, "depth", json!(0), "`variant.depth` holds 0"),
        (vit, "depths", json!([1, 1, 1, 1]), "`variant.depths` means nothing"),
    ] {
        let mut files = Files::new(name);
        files.manifest["variant"][field] = value;
        let error = files.bundle().unwrap_err();
        assert!(error.contains(expected), "{name}, {field}: {error}");
    }
}

#[test]
fn a_variant_changes_what_is_computed() {
    // The same tensors fit either padding and any epsilon: only the logits tell.
    for (field, value) in [("padding", json!("same")), ("batch_norm_epsilon", json!(1e-3))] {
        let mut files = Files::new("efficientnet-lite1-timm");
        files.manifest["variant"][field] = value;
        let bundle = files.bundle().unwrap();
        let error = golden::check(load(&bundle, Device::Cpu).unwrap().as_mut(), &bundle).unwrap_err();
        assert!(matches!(error, golden::GoldenError::Mismatch { .. }), "{field}: {error}");
    }
}

/// A full-size network: its architecture, naming scheme, side of the input, and every tensor of PyTorch's with its shape.
struct Preset {
    heading: String,
    tensors: Vec<(String, Vec<usize>)>,
}

fn presets() -> Vec<Preset> {
    let mut text = String::new();
    let file = std::fs::read(directory("presets.txt.gz")).unwrap();
    GzDecoder::new(file.as_slice()).read_to_string(&mut text).unwrap();
    let mut presets: Vec<Preset> = Vec::new();
    for line in text.lines() {
        match line.strip_prefix("# ") {
            Some(heading) => presets.push(Preset { heading: heading.to_owned(), tensors: Vec::new() }),
            None => {
                let mut words = line.split(' ');
                let name = words.next().unwrap().to_owned();
                let shape = words.map(|dimension| dimension.parse().unwrap()).collect();
                presets.last_mut().unwrap().tensors.push((name, shape));
            }
        }
    }
    presets
}

/// A safetensors file of these tensors, all zero: scalars as PyTorch's counters, the rest in half precision.
fn zeros(tensors: &[(String, Vec<usize>)]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut end = 0;
    for (name, shape) in tensors {
        let (dtype, size) = if shape.is_empty() { ("I64", 8) } else { ("F16", 2) };
        let start = end;
        end += shape.iter().product::<usize>() * size;
        header.insert(name.clone(), json!({"dtype": dtype, "shape": shape, "data_offsets": [start, end]}));
    }
    let header = serde_json::to_vec(&header).unwrap();
    let mut file = vec![0; 8 + header.len() + end];
    file[..8].copy_from_slice(&(header.len() as u64).to_le_bytes());
    file[8..8 + header.len()].copy_from_slice(&header);
    file
}

#[test]
fn full_size_networks_take_exactly_the_tensors_of_pytorch() {
    let presets = presets();
    assert_eq!(presets.len(), 27);
    for Preset { heading, tensors } in presets {
        let [architecture, scheme, side] = heading.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let side: u32 = side.parse().unwrap();
        let mut files = Files::new("resnet-18-torchvision").sized(side, side).replace(WEIGHTS, zeros(&tensors));
        files.manifest["architecture"] = json!(architecture);
        files.manifest["variant"] = json!({});
        let result = files.classes(1000).load();
        assert!(result.is_ok(), "{architecture} with the names of {scheme}: {}", result.err().unwrap());
    }
}
