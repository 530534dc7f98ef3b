//! A model's files, verified before use.
//!
//! A bundle is a `model.json` and the files that it names, each with its size and SHA-256: the digest of `model.json`
//! therefore names the whole model. [`Bundle::builtin`] is compiled in, [`Bundle::open`] reads a directory,
//! [`crate::download`] a bucket, and [`Bundle::from_files`] takes bytes. Weights are in memory once, until they are on a
//! device.

mod content;
mod error;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use bytes::Bytes;
use sha2::{Digest, Sha256};

pub use self::error::BundleError;
use super::manifest::{FileSpec, GOLDEN_LOGITS, LABELS, Manifest, WEIGHTS};
use super::weights::Weights;
use crate::image::Pixels;

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
        let manifest_bytes = read(directory, Manifest::NAME, None)?;
        let manifest = Manifest::parse(&manifest_bytes)?;
        let mut files = BTreeMap::new();
        for (path, file) in &manifest.files {
            files.insert(path.clone(), read(directory, path, Some(file))?);
        }
        Self::from_files(&manifest_bytes, files)
    }

    /// A bundle from the bytes of its `model.json` and of its other files, by their path inside it.
    ///
    /// # Errors
    /// The first file that is missing or is not what `model.json` says.
    pub fn from_files(manifest_bytes: &[u8], files: BTreeMap<String, Bytes>) -> Result<Self, BundleError> {
        let manifest = Manifest::parse(manifest_bytes)?;
        for (path, expected) in &manifest.files {
            let bytes = files.get(path).ok_or_else(|| BundleError::Missing { path: path.clone() })?;
            expected.check(path, bytes)?;
        }
        Self::from_verified(manifest_bytes, manifest, files)
    }

    /// The same for files whose size and digest are known to be right.
    pub(crate) fn from_verified(
        manifest_bytes: &[u8],
        manifest: Manifest,
        mut files: BTreeMap<String, Bytes>,
    ) -> Result<Self, BundleError> {
        let mut take = |path: &str| files.remove(path).ok_or_else(|| BundleError::Missing { path: path.to_owned() });
        let labels = content::labels(&take(LABELS)?, manifest.classes)?;
        let golden_logits = content::golden_logits(&take(GOLDEN_LOGITS)?, &manifest)?;
        let mut golden = Vec::new();
        for (name, logits) in manifest.golden.images.iter().zip(golden_logits) {
            let pixels = content::golden_image(name, &take(name)?, &manifest)?;
            golden.push(Golden { name: name.clone(), pixels, logits });
        }
        let weights = take(WEIGHTS)?;
        // Not only what a network takes: what is cut short or holds no tensor at all fails here.
        Weights::parse(&weights).map_err(BundleError::Weights)?;
        Ok(Bundle { digest: Self::digest_of(manifest_bytes), manifest, labels, weights, golden })
    }

    /// The digest that names a bundle, of the bytes of its `model.json`.
    #[must_use]
    pub fn digest_of(manifest_bytes: &[u8]) -> String {
        format!("sha256:{}", hex(manifest_bytes))
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

    /// Gives the memory of the weights back, once they are on a device. The bundle cannot be loaded again.
    pub fn drop_weights(&mut self) {
        self.weights = Bytes::new();
    }

    /// The verified bytes of `model.safetensors`.
    pub(crate) fn weights(&self) -> &[u8] {
        &self.weights
    }
}

fn read(directory: &Path, path: &str, spec: Option<&FileSpec>) -> Result<Bytes, BundleError> {
    let failed = |source| BundleError::Read { path: path.to_owned(), source };
    let place = directory.join(path);
    // Opening a pipe would wait for whoever writes to it.
    let about = fs::metadata(&place).map_err(failed)?;
    if !about.is_file() {
        return Err(failed(io::Error::other("not a file")));
    }
    let file = File::open(&place).map_err(failed)?;
    let found = file.metadata().map_err(failed)?.len();
    match spec {
        Some(spec) => spec.check_size(path, found)?,
        None if found > Manifest::MAX_BYTES => {
            return Err(failed(io::Error::new(io::ErrorKind::FileTooLarge, format!("{found} bytes"))));
        }
        None => {}
    }
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(usize::try_from(found).unwrap_or(usize::MAX)).map_err(|error| failed(error.into()))?;
    file.take(found).read_to_end(&mut bytes).map_err(failed)?;
    Ok(Bytes::from(bytes))
}

impl FileSpec {
    /// What `model.json` says of a file with these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self { size: bytes.len() as u64, sha256: hex(bytes) }
    }

    /// Checks a file's bytes.
    ///
    /// # Errors
    /// Another length or another digest.
    pub fn check(&self, path: &str, bytes: &[u8]) -> Result<(), BundleError> {
        self.check_size(path, bytes.len() as u64)?;
        self.check_digest(path, hex(bytes))
    }

    /// Checks a file's length in bytes.
    ///
    /// # Errors
    /// Another length.
    pub fn check_size(&self, path: &str, found: u64) -> Result<(), BundleError> {
        if found == self.size {
            return Ok(());
        }
        Err(BundleError::Size { path: path.to_owned(), expected: self.size, found })
    }

    /// Checks a file's SHA-256, given in lower-case hexadecimal digits.
    ///
    /// # Errors
    /// Another digest.
    pub fn check_digest(&self, path: &str, found: String) -> Result<(), BundleError> {
        if found == self.sha256 {
            return Ok(());
        }
        Err(BundleError::Digest { path: path.to_owned(), expected: self.sha256.clone(), found })
    }
}

/// The SHA-256 of bytes, in lower-case hexadecimal digits.
fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
