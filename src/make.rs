//! A bundle from what training code leaves: a checkpoint, class names and sample images.
//!
//! The samples go through the worker's own image path and become the golden images; the network's logits for them, computed
//! on this machine's processor in 32 bits, become the golden logits. With logits that the training code computed for the
//! same pixels ([`Recipe::reference`]) both are compared, and the training code's become the golden ones unless the weights
//! are rounded. What comes out is opened like any other bundle before anybody gets it.
//!
//! `checkpoint (torch: bytes → pickle) + labels + samples → files`

mod bytes;
mod checkpoint;
mod labels;
mod pickle;
mod reference;
mod torch;

use std::collections::BTreeMap;

use ::bytes::Bytes;
use image::codecs::png::{CompressionType, FilterType, PngEncoder};
use image::{ExtendedColorType, ImageEncoder};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Map, Value, json};

pub use self::checkpoint::{CheckpointError, Selection, convert};
pub use self::labels::LabelsError;
pub use self::reference::ReferenceError;
use crate::image::{ImageError, Limits, Pixels, Preprocess, prepare};
use crate::model::golden::{self, GoldenError};
use crate::model::{
    self, Answer, Bundle, BundleError, Device, DeviceError, FileSpec, Manifest, ManifestError, ModelError,
};

/// What a bundle is made of.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// The fields of `model.json` but `schema`, `classes`, `golden.images` and `files`, as JSON.
    pub fields: Map<String, Value>,
    /// Bytes of the checkpoint.
    pub checkpoint: Vec<u8>,
    /// Which of its tensors are the network's.
    pub selection: Selection,
    /// Bytes of the class names: one a line, or JSON.
    pub labels: Vec<u8>,
    /// Name and bytes of each sample image.
    pub samples: Vec<(String, Vec<u8>)>,
    /// Bytes of the training code's logits for the golden images, as safetensors or NumPy file.
    pub reference: Option<Vec<u8>>,
    /// What an image may cost.
    pub limits: Limits,
}

/// A bundle, made and proven.
#[derive(Debug)]
pub struct Made {
    /// Every file by its path, without `model.json`.
    pub files: BTreeMap<String, Bytes>,
    /// Bytes of `model.json`.
    pub manifest: Vec<u8>,
    /// The same, opened.
    pub bundle: Bundle,
    /// Largest error of a logit against the training code's, relative to its image's largest one.
    pub reference_error: Option<f32>,
}

/// Why no bundle was made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MakeError {
    /// The checkpoint cannot be used.
    #[error("the weights cannot be used")]
    Checkpoint(#[from] CheckpointError),
    /// The class names cannot be used.
    #[error("the labels cannot be used")]
    Labels(#[from] LabelsError),
    /// A setting is wrong.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A sample is no image.
    #[error("sample {name}")]
    Sample {
        /// Its name.
        name: String,
        /// Why.
        source: ImageError,
    },
    /// The network does not take the weights.
    #[error(
        "{architecture} with {classes} classes, as many as there are labels, does not take its tensors ({found}, …; --entry \
         and --prefix choose others)"
    )]
    Model {
        /// The network.
        architecture: String,
        /// Lines of the labels.
        classes: usize,
        /// Names of the first tensors.
        found: String,
        /// Why not.
        source: Box<ModelError>,
    },
    /// The network failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The training code computes something else.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// What was made is not a bundle.
    #[error("what was made is no bundle")]
    Bundle(#[from] BundleError),
    /// What was made does not pass its own golden images.
    #[error("what was made does not pass its own golden images")]
    Golden(#[from] GoldenError),
    /// A file cannot be written.
    #[error("{0} cannot be written: {1}")]
    Encode(&'static str, String),
}

const WEIGHTS: &str = "model.safetensors";
const LABELS: &str = "labels.txt";
const GOLDEN_LOGITS: &str = "golden/logits.safetensors";

impl Recipe {
    /// Makes the bundle in memory.
    ///
    /// # Errors
    /// [`MakeError`] says which of its parts cannot be used.
    pub fn make(self) -> Result<Made, MakeError> {
        let weights = Bytes::from(convert(&self.checkpoint, &self.selection)?);
        let Recipe { mut fields, samples, labels, reference, limits, checkpoint, selection } = self;
        drop(checkpoint);
        let labels = labels::read(&labels)?;
        let classes = labels.len();
        let paths = paths(&samples);
        fields.insert("schema".to_owned(), json!(1));
        fields.insert("classes".to_owned(), json!(classes));
        if let Some(golden) = fields.get_mut("golden").and_then(Value::as_object_mut) {
            golden.insert("images".to_owned(), json!(paths));
        }
        let mut files =
            BTreeMap::from([(WEIGHTS.to_owned(), weights), (LABELS.to_owned(), Bytes::from(labels.join("\n") + "\n"))]);
        // Wrong settings are found before any picture is read: with empty files for the golden ones.
        let empty = || Bytes::from_static(b" ");
        let mut draft = files.clone();
        draft.extend(paths.iter().map(|path| (path.clone(), empty())));
        draft.insert(GOLDEN_LOGITS.to_owned(), empty());
        let preprocess = Manifest::parse(&manifest(&fields, &draft)?)?.preprocess();
        for (path, (name, sample)) in paths.iter().zip(&samples) {
            let png = golden_image(sample, &limits, &preprocess);
            let png = png.map_err(|source| MakeError::Sample { name: name.clone(), source })?;
            files.insert(path.clone(), encode(&png)?.into());
        }
        let zeros = vec![vec![0.0; classes]; samples.len()];
        files.insert(GOLDEN_LOGITS.to_owned(), logits_file(&zeros)?);
        let bundle = Bundle::from_files(&manifest(&fields, &files)?, files.clone())?;
        let mut network = model::load(&bundle, Device::Cpu).map_err(|source| MakeError::Model {
            architecture: fields.get("architecture").and_then(Value::as_str).unwrap_or_default().to_owned(),
            classes,
            found: bundle_tensors(&bundle),
            source: Box::new(source),
        })?;
        let images: Vec<&Pixels> = bundle.golden().iter().map(|golden| &golden.pixels).collect();
        let answers = network.classify(&images)?;
        let mut logits: Vec<Vec<f32>> = answers.into_iter().map(|Answer { logits, .. }| logits).collect();
        let mut reference_error = None;
        if let Some(file) = reference {
            let expected = reference::read(&file, samples.len(), classes)?;
            let tolerance = if selection.half { reference::HALF_TOLERANCE } else { reference::TOLERANCE };
            reference_error = Some(reference::compare(&logits, &expected, &paths, tolerance)?);
            // With rounded weights the training code's are another network's.
            if !selection.half {
                logits = expected;
            }
        }
        files.insert(GOLDEN_LOGITS.to_owned(), logits_file(&logits)?);
        let manifest = manifest(&fields, &files)?;
        let bundle = Bundle::from_files(&manifest, files.clone())?;
        golden::check(&mut *network, &bundle)?;
        Ok(Made { files, manifest, bundle, reference_error })
    }
}

/// The first names of a bundle's tensors.
fn bundle_tensors(bundle: &Bundle) -> String {
    let names = SafeTensors::deserialize(bundle.weights()).map(|file| {
        let mut names: Vec<String> = file.names().into_iter().map(str::to_owned).collect();
        names.sort();
        names.truncate(4);
        names.join(", ")
    });
    names.unwrap_or_default()
}

/// `model.json` for these files.
fn manifest(fields: &Map<String, Value>, files: &BTreeMap<String, Bytes>) -> Result<Vec<u8>, MakeError> {
    let entry = |(path, bytes): (&String, &Bytes)| {
        let FileSpec { size, sha256 } = FileSpec::of(bytes);
        (path.clone(), json!({"size": size, "sha256": sha256}))
    };
    let files: Map<String, Value> = files.iter().map(entry).collect();
    let mut fields = fields.clone();
    fields.insert("files".to_owned(), Value::Object(files));
    let mut text =
        serde_json::to_vec_pretty(&fields).map_err(|error| MakeError::Encode("model.json", error.to_string()))?;
    text.push(b'\n');
    Ok(text)
}

/// A path for each sample, from its name, none twice.
fn paths(samples: &[(String, Vec<u8>)]) -> Vec<String> {
    let mut paths: Vec<String> = Vec::new();
    for (name, _) in samples {
        let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '-' };
        let stem = name.rsplit_once('.').map_or(name.as_str(), |(stem, _)| stem);
        let stem: String = stem.chars().map(plain).take(64).collect();
        let stem = if stem.is_empty() { "image".to_owned() } else { stem };
        let path = |suffix: &str| format!("golden/{stem}{suffix}.png");
        let first_free = (2..).map(|number| path(&format!("-{number}")));
        let free = std::iter::once(path("")).chain(first_free).find(|path| !paths.contains(path));
        paths.extend(free);
    }
    paths
}

fn golden_image(sample: &[u8], limits: &Limits, preprocess: &Preprocess) -> Result<Pixels, ImageError> {
    prepare(sample, limits, preprocess).map(|prepared| prepared.pixels)
}

fn encode(pixels: &Pixels) -> Result<Vec<u8>, MakeError> {
    let failed = |problem: String| MakeError::Encode("a golden image", problem);
    let side = |side: usize| u32::try_from(side).map_err(|error| failed(error.to_string()));
    let mut png = Vec::new();
    PngEncoder::new_with_quality(&mut png, CompressionType::Best, FilterType::Adaptive)
        .write_image(&pixels.rgb, side(pixels.width)?, side(pixels.height)?, ExtendedColorType::Rgb8)
        .map_err(|error| failed(error.to_string()))?;
    Ok(png)
}

fn logits_file(logits: &[Vec<f32>]) -> Result<Bytes, MakeError> {
    let failed = |error: safetensors::SafeTensorError| MakeError::Encode(GOLDEN_LOGITS, error.to_string());
    let data: Vec<u8> = logits.iter().flatten().flat_map(|logit| logit.to_le_bytes()).collect();
    let shape = vec![logits.len(), logits.first().map_or(0, Vec::len)];
    let view = TensorView::new(Dtype::F32, shape, &data).map_err(failed)?;
    Ok(safetensors::serialize([("logits", view)], None).map_err(failed)?.into())
}
