//! `model.json`: what a bundle holds and how its model is fed.
//!
//! Parsing is strict: an unknown field, a missing one or a value out of range is an error that names the field. The
//! bytes are foreign: nothing here allocates more than they do.

mod preprocess;

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

pub use self::preprocess::{PreprocessSpec, ResizeSpec};
use super::networks::{self, Variant, VariantError};
use crate::event::printable;
use crate::image::Preprocess;

/// Characters of a foreign text that an error shows.
const MAX_SHOWN: usize = 500;

/// The only schema version so far.
const SCHEMA: u32 = 1;
/// Largest side of a model's input in pixels.
const MAX_SIDE: u32 = 2048;
const MAX_CLASSES: usize = 1_000_000;
const MAX_NAME_BYTES: usize = 128;
const MAX_GOLDEN_IMAGES: usize = 64;
const MAX_TOLERANCE: f32 = 0.1;

/// Name of the weights in a bundle.
pub(super) const WEIGHTS: &str = "model.safetensors";
/// Name of the class names in a bundle, one a line.
pub(super) const LABELS: &str = "labels.txt";
/// Name of the golden images' logits in a bundle: a tensor `logits` of shape `[images, classes]`.
pub(super) const GOLDEN_LOGITS: &str = "golden/logits.safetensors";

/// The checked content of a `model.json`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Version of this format, 1.
    pub schema: u32,
    /// Name of the model, as results show it.
    pub name: String,
    /// The network that the weights belong to.
    pub architecture: Architecture,
    /// How the network departs from the architecture's usual shape.
    #[serde(default)]
    pub variant: Variant,
    /// Number of classes: of logits and of labels.
    pub classes: usize,
    /// Size of the network's input.
    pub input: InputSize,
    /// How an upright image becomes that input.
    pub preprocess: PreprocessSpec,
    /// What turns logits into scores.
    pub activation: Activation,
    /// Whether results carry an embedding, and which.
    #[serde(default)]
    pub embedding: Option<EmbeddingSpec>,
    /// Numbers that the network is computed in on a GPU; a processor computes in `f32`.
    #[serde(default)]
    pub precision: Precision,
    /// Images with known logits.
    pub golden: GoldenSpec,
    /// Size and digest of every other file of the bundle, by its path inside it.
    #[serde(deserialize_with = "unique_keys")]
    pub files: BTreeMap<String, FileSpec>,
}

/// The networks that can be run, by the name in `model.json`. `docs/networks.md` says which tensor names each takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Architecture {
    /// `efficientnet-lite0`, trained at 224 × 224.
    #[serde(rename = "efficientnet-lite0")]
    EfficientNetLite0,
    /// `efficientnet-lite1`, trained at 240 × 240.
    #[serde(rename = "efficientnet-lite1")]
    EfficientNetLite1,
    /// `efficientnet-lite2`, trained at 260 × 260.
    #[serde(rename = "efficientnet-lite2")]
    EfficientNetLite2,
    /// `efficientnet-lite3`, trained at 280 × 280.
    #[serde(rename = "efficientnet-lite3")]
    EfficientNetLite3,
    /// `efficientnet-lite4`, trained at 300 × 300.
    #[serde(rename = "efficientnet-lite4")]
    EfficientNetLite4,
    /// `mobilenet-v2`.
    #[serde(rename = "mobilenet-v2")]
    MobileNetV2,
    /// `resnet-18`.
    #[serde(rename = "resnet-18")]
    ResNet18,
    /// `resnet-34`.
    #[serde(rename = "resnet-34")]
    ResNet34,
    /// `resnet-50`.
    #[serde(rename = "resnet-50")]
    ResNet50,
    /// `resnet-101`.
    #[serde(rename = "resnet-101")]
    ResNet101,
    /// `convnext-tiny`.
    #[serde(rename = "convnext-tiny")]
    ConvNextTiny,
    /// `convnext-small`.
    #[serde(rename = "convnext-small")]
    ConvNextSmall,
    /// `vit-s-16`: the vision transformer of 384 channels, with patches of 16 × 16 pixels.
    #[serde(rename = "vit-s-16")]
    VitS16,
    /// `vit-b-16`: the vision transformer of 768 channels, with patches of 16 × 16 pixels.
    #[serde(rename = "vit-b-16")]
    VitB16,
}

/// The features that the last layer reads, as part of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmbeddingSpec {
    /// Whether the vector is divided by its Euclidean length, so that a dot product is the cosine of the angle.
    pub normalize: bool,
}

/// Numbers that a network is computed in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32 bits.
    #[default]
    F32,
    /// IEEE half precision: 11 bits of precision, up to 65504.
    F16,
    /// 8 bits of precision, with the range of `f32`.
    Bf16,
}

/// What turns logits into scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Activation {
    /// One of many: the scores add up to 1.
    Softmax,
    /// Any of many: each score stands alone.
    Sigmoid,
}

/// Size of the network's input in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InputSize {
    /// Pixels a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
}

/// Images with known logits.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GoldenSpec {
    /// Paths inside the bundle of images of exactly the input size, in the order of the logits' rows.
    pub images: Vec<String>,
    /// Largest error allowed of a logit, relative to the image's largest one.
    pub tolerance: f32,
}

/// What a file must be.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileSpec {
    /// Length in bytes.
    pub size: u64,
    /// SHA-256, 64 lower-case hexadecimal digits.
    pub sha256: String,
}

/// A `model.json` that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// Not JSON, or not these fields.
    #[error("model.json: `{field}`: {problem}")]
    Unreadable {
        /// Path of the field; `.` is the whole.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A field holds what it must not.
    #[error("model.json: `{field}` {problem}")]
    Field {
        /// Path of the field, such as `preprocess.std`.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
}

impl Manifest {
    /// Its name in a bundle.
    pub const NAME: &str = "model.json";
    /// Largest `model.json` that is read, in bytes.
    pub const MAX_BYTES: u64 = 1 << 20;

    /// Parses and checks the bytes of a `model.json`.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub fn parse(bytes: &[u8]) -> Result<Self, ManifestError> {
        let mut json = serde_json::Deserializer::from_slice(bytes);
        let read: Result<Manifest, _> = serde_path_to_error::deserialize(&mut json);
        let manifest = read.map_err(|error| unreadable(&error.path().to_string(), error.inner()))?;
        json.end().map_err(|error| unreadable(".", &error))?;
        manifest.check()?;
        Ok(manifest)
    }

    /// What [`crate::image::prepare`] needs to feed this model.
    #[must_use]
    pub fn preprocess(&self) -> Preprocess {
        Preprocess {
            width: self.input.width,
            height: self.input.height,
            resize: self.preprocess.resize(self.input),
            filter: self.preprocess.filter,
        }
    }

    fn check(&self) -> Result<(), ManifestError> {
        let name_fits = (1..=MAX_NAME_BYTES).contains(&self.name.len()) && !self.name.contains(char::is_control);
        require(self.schema == SCHEMA, "schema", || format!("is {}, this program reads {SCHEMA}", self.schema))?;
        require(name_fits, "name", || format!("is not 1 to {MAX_NAME_BYTES} bytes of text"))?;
        require((1..=MAX_CLASSES).contains(&self.classes), "classes", || format!("is not in 1 to {MAX_CLASSES}"))?;
        for (field, side) in [("input.width", self.input.width), ("input.height", self.input.height)] {
            require((1..=MAX_SIDE).contains(&side), field, || format!("is {side}, not in 1 to {MAX_SIDE}"))?;
        }
        self.preprocess.check(self.input)?;
        let size = [self.input.height as usize, self.input.width as usize];
        networks::check_variant(self.architecture, &self.variant, size)
            .map_err(|VariantError { field, problem }| ManifestError::Field { field, problem })?;
        for (path, file) in &self.files {
            check_file(path, file)?;
        }
        self.check_golden()?;
        for path in [WEIGHTS, LABELS, GOLDEN_LOGITS] {
            require(self.files.contains_key(path), "files", || format!("lacks {path}"))?;
        }
        let known = |path: &String| {
            [WEIGHTS, LABELS, GOLDEN_LOGITS].contains(&path.as_str()) || self.golden.images.contains(path)
        };
        match self.files.keys().find(|path| !known(path)) {
            Some(path) => Err(wrong("files", format!("holds {path:?}, which nothing uses"))),
            None => Ok(()),
        }
    }

    fn check_golden(&self) -> Result<(), ManifestError> {
        let GoldenSpec { images, tolerance } = &self.golden;
        require((1..=MAX_GOLDEN_IMAGES).contains(&images.len()), "golden.images", || {
            format!("holds {} images, not 1 to {MAX_GOLDEN_IMAGES}", images.len())
        })?;
        require(*tolerance > 0.0 && *tolerance <= MAX_TOLERANCE, "golden.tolerance", || {
            format!("is {tolerance}, not above 0 and at most {MAX_TOLERANCE}")
        })?;
        for (index, path) in images.iter().enumerate() {
            require(!images[..index].contains(path), "golden.images", || format!("names {path:?} twice"))?;
            let is_image = path.starts_with("golden/") && path != GOLDEN_LOGITS && self.files.contains_key(path);
            require(is_image, "golden.images", || format!("names {path:?}, which is no file under golden/"))?;
        }
        Ok(())
    }
}

/// Largest file allowed under this name, in bytes.
pub(super) fn max_bytes(path: &str) -> u64 {
    match path {
        WEIGHTS => 8 << 30,
        LABELS | GOLDEN_LOGITS => 256 << 20,
        _ => 16 << 20,
    }
}

/// A map in which no key comes twice: serde would take the last.
fn unique_keys<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, FileSpec>, D::Error> {
    struct Files;

    impl<'de> Visitor<'de> for Files {
        type Value = BTreeMap<String, FileSpec>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a map of files")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut files = BTreeMap::new();
            while let Some((path, file)) = map.next_entry::<String, FileSpec>()? {
                if files.contains_key(&path) {
                    return Err(de::Error::custom(format_args!("`files` holds {path:?} twice")));
                }
                files.insert(path, file);
            }
            Ok(files)
        }
    }

    deserializer.deserialize_map(Files)
}

fn check_file(path: &str, file: &FileSpec) -> Result<(), ManifestError> {
    let in_place = |detail: &str| format!("files.{path:?}.{detail}");
    require(is_plain_path(path), "files", || format!("holds {path:?}: not a plain relative path"))?;
    let limit = max_bytes(path);
    require(file.size > 0, &in_place("size"), || "is 0: the file is empty".to_owned())?;
    require(file.size <= limit, &in_place("size"), || format!("is {}, the limit is {limit} bytes", file.size))?;
    let hexadecimal = file.sha256.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    require(file.sha256.len() == 64 && hexadecimal, &in_place("sha256"), || {
        "is not 64 lower-case hexadecimal digits".to_owned()
    })
}

/// Nothing that could leave the bundle's directory, on any system.
fn is_plain_path(path: &str) -> bool {
    let plain = |part: &str| {
        !part.is_empty()
            && !part.starts_with('.')
            && part.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-'))
    };
    path.len() <= MAX_NAME_BYTES && path.split('/').all(plain)
}

fn require(holds: bool, field: &str, problem: impl FnOnce() -> String) -> Result<(), ManifestError> {
    if holds { Ok(()) } else { Err(wrong(field, problem())) }
}

fn unreadable(field: &str, error: &serde_json::Error) -> ManifestError {
    let short = |text: &str| printable(&text.chars().take(MAX_SHOWN).collect::<String>());
    ManifestError::Unreadable { field: short(field), problem: short(&error.to_string()) }
}

fn wrong(field: &str, problem: String) -> ManifestError {
    ManifestError::Field { field: field.to_owned(), problem }
}
