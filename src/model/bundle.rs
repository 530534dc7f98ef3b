//! A model's files, verified before use.
//!
//! A bundle is a `model.json` and the files that it names, each with its size and SHA-256: the digest of `model.json`
//! therefore names the whole model. Where the files come from is the caller's matter: [`Bundle::from_files`] takes
//! them as bytes, [`Bundle::open`] reads a directory, [`Bundle::builtin`] is compiled in.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::manifest::{GOLDEN_LOGITS, LABELS, Manifest, ManifestError, WEIGHTS};
use super::weights::{Weights, WeightsError};
use crate::image::{self, ImageError, Limits, Pixels};

/// A verified model, not yet on a device.
#[derive(Clone, Debug)]
pub struct Bundle {
    manifest: Manifest,
    digest: String,
    labels: Vec<String>,
    weights: Bytes,
    golden: Vec<Golden>,
}

/// An image with known logits.
#[derive(Clone, Debug)]
pub struct Golden {
    /// Path inside the bundle.
    pub name: String,
    /// The model's input.
    pub pixels: Pixels,
    /// What the model must answer, one value a class.
    pub logits: Vec<f32>,
}

/// A bundle that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// Its `model.json` is wrong.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A file cannot be read.
    #[error("{path}: cannot be read")]
    Read {
        /// Path inside the bundle.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file that `model.json` names was not given.
    #[error("{path}: missing")]
    Missing {
        /// Path inside the bundle.
        path: String,
    },
    /// A file's length is not the one in `model.json`.
    #[error("{path}: {found} bytes, model.json says {expected}")]
    Size {
        /// Path inside the bundle.
        path: String,
        /// Bytes that `model.json` says.
        expected: u64,
        /// Bytes that there are.
        found: u64,
    },
    /// A file's digest is not the one in `model.json`.
    #[error("{path}: SHA-256 is {found}, model.json says {expected}")]
    Digest {
        /// Path inside the bundle.
        path: String,
        /// Digest that `model.json` says.
        expected: String,
        /// Digest of the file.
        found: String,
    },
    /// `labels.txt` is not one name a line for each class.
    #[error("labels.txt: {0}")]
    Labels(String),
    /// A golden image is not one of the model's inputs.
    #[error("{path}: {problem}")]
    GoldenImage {
        /// Path inside the bundle.
        path: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The golden logits cannot be used.
    #[error("{GOLDEN_LOGITS}: {0}")]
    GoldenLogits(#[source] WeightsError),
}

/// EfficientNet-Lite0 for ImageNet. Origin and licences: `fixtures/README.md`.
const BUILTIN_MANIFEST: &[u8] = include_bytes!("../../fixtures/models/efficientnet-lite0/model.json");
const BUILTIN_FILES: [(&str, &[u8]); 6] = [
    (WEIGHTS, include_bytes!("../../fixtures/models/efficientnet-lite0/model.safetensors")),
    (LABELS, include_bytes!("../../fixtures/models/efficientnet-lite0/labels.txt")),
    (GOLDEN_LOGITS, include_bytes!("../../fixtures/models/efficientnet-lite0/golden/logits.safetensors")),
    ("golden/chelsea.png", include_bytes!("../../fixtures/models/efficientnet-lite0/golden/chelsea.png")),
    ("golden/coffee.png", include_bytes!("../../fixtures/models/efficientnet-lite0/golden/coffee.png")),
    ("golden/rocket.png", include_bytes!("../../fixtures/models/efficientnet-lite0/golden/rocket.png")),
];

impl Bundle {
    /// The bundle that is compiled in, verified like any other.
    ///
    /// # Errors
    /// None, unless the program's own bytes were changed.
    pub fn builtin() -> Result<Self, BundleError> {
        let files = BUILTIN_FILES.map(|(path, bytes)| (path.to_owned(), Bytes::from_static(bytes)));
        Self::from_files(BUILTIN_MANIFEST, BTreeMap::from(files))
    }

    /// Reads the bundle in a directory. Every length is checked before the file is read.
    ///
    /// # Errors
    /// The first file that is missing or is not what `model.json` says.
    pub fn open(directory: &Path) -> Result<Self, BundleError> {
        let manifest_bytes = read(directory, "model.json", None)?;
        let manifest = Manifest::parse(&manifest_bytes)?;
        let mut files = BTreeMap::new();
        for (path, file) in &manifest.files {
            files.insert(path.clone(), read(directory, path, Some(file.size))?);
        }
        Self::from_files(&manifest_bytes, files)
    }

    /// A bundle from the bytes of its `model.json` and of its other files, by their path inside it.
    ///
    /// # Errors
    /// The first file that is missing or is not what `model.json` says.
    pub fn from_files(manifest_bytes: &[u8], mut files: BTreeMap<String, Bytes>) -> Result<Self, BundleError> {
        let manifest = Manifest::parse(manifest_bytes)?;
        for (path, expected) in &manifest.files {
            let bytes = files.get(path).ok_or_else(|| BundleError::Missing { path: path.clone() })?;
            check_size(path, expected.size, bytes.len() as u64)?;
            let found = hex(bytes);
            if found != expected.sha256 {
                return Err(BundleError::Digest { path: path.clone(), expected: expected.sha256.clone(), found });
            }
        }
        let mut take = |path: &str| files.remove(path).ok_or_else(|| BundleError::Missing { path: path.to_owned() });
        let labels = parse_labels(&take(LABELS)?, manifest.classes)?;
        let golden_logits = parse_golden_logits(&take(GOLDEN_LOGITS)?, &manifest)?;
        let mut golden = Vec::new();
        for (name, logits) in manifest.golden.images.iter().zip(golden_logits) {
            let pixels = parse_golden_image(name, &take(name)?, &manifest)?;
            golden.push(Golden { name: name.clone(), pixels, logits });
        }
        let weights = take(WEIGHTS)?;
        Ok(Bundle { digest: format!("sha256:{}", hex(manifest_bytes)), manifest, labels, weights, golden })
    }

    /// What `model.json` says.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// `sha256:` and the digest of `model.json`, which names the model down to its last weight.
    #[must_use]
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// The class names, in the order of the logits.
    #[must_use]
    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    /// The images with known logits.
    #[must_use]
    pub fn golden(&self) -> &[Golden] {
        &self.golden
    }

    /// The verified bytes of `model.safetensors`.
    pub(super) fn weights(&self) -> &[u8] {
        &self.weights
    }
}

fn read(directory: &Path, path: &str, size: Option<u64>) -> Result<Bytes, BundleError> {
    let failed = |source| BundleError::Read { path: path.to_owned(), source };
    let file = File::open(directory.join(path)).map_err(failed)?;
    let found = file.metadata().map_err(failed)?.len();
    match size {
        Some(expected) => check_size(path, expected, found)?,
        None if found > Manifest::MAX_BYTES => {
            return Err(failed(io::Error::new(io::ErrorKind::FileTooLarge, format!("{found} bytes"))));
        }
        None => {}
    }
    let mut bytes = Vec::new();
    file.take(found).read_to_end(&mut bytes).map_err(failed)?;
    Ok(Bytes::from(bytes))
}

fn check_size(path: &str, expected: u64, found: u64) -> Result<(), BundleError> {
    if found == expected { Ok(()) } else { Err(BundleError::Size { path: path.to_owned(), expected, found }) }
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn parse_labels(bytes: &[u8], classes: usize) -> Result<Vec<String>, BundleError> {
    let text = std::str::from_utf8(bytes).map_err(|error| BundleError::Labels(error.to_string()))?;
    let labels: Vec<String> = text.lines().map(str::to_owned).collect();
    if labels.len() != classes {
        return Err(BundleError::Labels(format!("{} lines for {classes} classes", labels.len())));
    }
    match labels.iter().position(|label| label.trim().is_empty()) {
        Some(line) => Err(BundleError::Labels(format!("line {} is empty", line + 1))),
        None => Ok(labels),
    }
}

fn parse_golden_logits(bytes: &[u8], manifest: &Manifest) -> Result<Vec<Vec<f32>>, BundleError> {
    let rows = || {
        let mut tensors = Weights::parse(bytes)?;
        let logits = tensors.take("logits", &[manifest.golden.images.len(), manifest.classes])?;
        tensors.finish()?;
        Ok(logits.chunks_exact(manifest.classes).map(<[f32]>::to_vec).collect())
    };
    rows().map_err(BundleError::GoldenLogits)
}

fn parse_golden_image(path: &str, bytes: &[u8], manifest: &Manifest) -> Result<Pixels, BundleError> {
    let wrong = |problem: String| BundleError::GoldenImage { path: path.to_owned(), problem };
    let (width, height) = (manifest.input.width, manifest.input.height);
    let limits = Limits { width, height, ..Limits::default() };
    let pixels = image::decode(bytes, &limits).map_err(|error: ImageError| wrong(error.to_string()))?;
    if (pixels.width, pixels.height) != (width as usize, height as usize) {
        return Err(wrong(format!("{} × {}, the model takes {width} × {height}", pixels.width, pixels.height)));
    }
    Ok(pixels)
}
