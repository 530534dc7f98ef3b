//! Bundles to roll: derived from the built-in one, with golden logits that the model itself gives.

use std::collections::BTreeMap;
use std::io::Cursor;

use bytes::Bytes;
use image::{ImageFormat, imageops};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use stoker::model::{Bundle, Device, load};

use crate::models::fixture;

const LITE0: &str = "models/efficientnet-lite0";
const WEIGHTS: &str = "model.safetensors";
const LOGITS: &str = "golden/logits.safetensors";
const GOLDEN: &str = "golden/chelsea.png";

/// A bundle's files, to be changed.
#[derive(Clone)]
pub(crate) struct Files {
    pub(crate) manifest: Value,
    pub(crate) files: BTreeMap<String, Bytes>,
}

impl Files {
    pub(crate) fn builtin() -> Self {
        let manifest: Value = serde_json::from_slice(&fixture(&format!("{LITE0}/model.json"))).unwrap();
        let paths = manifest["files"].as_object().unwrap().keys();
        let files = paths.map(|path| (path.clone(), fixture(&format!("{LITE0}/{path}")).into())).collect();
        Files { manifest, files }
    }

    /// The same network under another name.
    pub(crate) fn named(name: &str) -> Self {
        let mut files = Self::builtin();
        files.manifest["name"] = json!(name);
        files
    }

    /// A model that is told apart by everything that a result shows: input of 192 × 192, label names with a prefix,
    /// scores that do not add up to 1, and an embedding.
    pub(crate) fn other() -> Self {
        let mut files = Self::named("other");
        files.manifest["input"] = json!({"width": 192, "height": 192});
        files.manifest["activation"] = json!("sigmoid");
        files.manifest["embedding"] = json!({"normalize": true});
        files.manifest["golden"]["images"] = json!([GOLDEN]);
        for path in ["golden/coffee.png", "golden/rocket.png"] {
            files.files.remove(path);
            files.manifest["files"].as_object_mut().unwrap().remove(path);
        }
        let names = String::from_utf8(files.files["labels.txt"].to_vec()).unwrap();
        let names: String = names.lines().map(|name| format!("other {name}\n")).collect();
        let golden = image::load_from_memory(&files.files[GOLDEN]).unwrap();
        let golden = imageops::crop_imm(&golden.to_rgb8(), 16, 16, 192, 192).to_image();
        let mut png = Cursor::new(Vec::new());
        golden.write_to(&mut png, ImageFormat::Png).unwrap();
        files.replace("labels.txt", names).replace(GOLDEN, png.into_inner()).with_own_logits(0.0)
    }

    /// The golden logits that the model gives, and so much more.
    pub(crate) fn with_own_logits(self, more: f32) -> Self {
        let images = self.manifest["golden"]["images"].as_array().unwrap().len();
        let bundle = self.clone().logits(&vec![0.0; images * 1000]).bundle();
        let pixels: Vec<_> = bundle.golden().iter().map(|golden| &golden.pixels).collect();
        let answers = load(&bundle, Device::Cpu).unwrap().classify(&pixels).unwrap();
        let logits: Vec<f32> = answers.into_iter().flat_map(|answer| answer.logits).map(|logit| logit + more).collect();
        self.logits(&logits)
    }

    fn logits(self, logits: &[f32]) -> Self {
        let bytes: Vec<u8> = logits.iter().flat_map(|logit| logit.to_le_bytes()).collect();
        let tensor = TensorView::new(Dtype::F32, vec![logits.len() / 1000, 1000], &bytes).unwrap();
        self.replace(LOGITS, safetensors::serialize([("logits", tensor)], None).unwrap())
    }

    /// One weight is another, and the digests are right.
    pub(crate) fn corrupt_weight(self) -> Self {
        let mut bytes = self.files[WEIGHTS].to_vec();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let data = tensors.tensor("_bn0.bias").unwrap().data();
        let at = data.as_ptr() as usize - bytes.as_ptr() as usize;
        bytes[at..at + 4].copy_from_slice(&1.0f32.to_le_bytes());
        self.replace(WEIGHTS, bytes)
    }

    /// Replaces a file and its entry in `model.json`.
    pub(crate) fn replace(mut self, path: &str, bytes: impl Into<Bytes>) -> Self {
        let bytes: Bytes = bytes.into();
        let sha256: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        self.manifest["files"][path] = json!({"size": bytes.len(), "sha256": sha256});
        self.files.insert(path.to_owned(), bytes);
        self
    }

    pub(crate) fn bundle(self) -> Bundle {
        Bundle::from_files(&self.manifest_bytes(), self.files).unwrap()
    }

    pub(crate) fn manifest_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(&self.manifest).unwrap()
    }

    pub(crate) fn digest(&self) -> String {
        Bundle::digest_of(&self.manifest_bytes())
    }
}
