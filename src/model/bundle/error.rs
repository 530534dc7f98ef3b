//! What can be wrong with a bundle.

use std::io;

use super::super::manifest::{GOLDEN_LOGITS, ManifestError};
use super::super::weights::WeightsError;

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
    /// The weights are no safetensors file.
    #[error("model.safetensors: {0}")]
    Weights(WeightsError),
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
    GoldenLogits(WeightsError),
}
