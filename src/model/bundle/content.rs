//! The small files of a bundle: class names and golden images.

use super::super::manifest::Manifest;
use super::super::weights::Weights;
use super::BundleError;
use crate::image::{self, ImageError, Limits, Pixels};

/// One name a line, for each class. Line ends may be those of any system.
pub(super) fn labels(bytes: &[u8], classes: usize) -> Result<Vec<String>, BundleError> {
    let wrong = |problem: String| Err(BundleError::Labels(problem));
    let text = std::str::from_utf8(bytes).map_err(|error| BundleError::Labels(error.to_string()))?;
    if text.starts_with('\u{FEFF}') {
        return wrong("line 1 begins with a byte order mark".to_owned());
    }
    let labels: Vec<String> = text.lines().map(str::to_owned).collect();
    if labels.len() != classes {
        return wrong(format!("{} lines for {classes} classes", labels.len()));
    }
    for (index, label) in labels.iter().enumerate() {
        let line = index + 1;
        if label.trim().is_empty() {
            return wrong(format!("line {line} is empty"));
        }
        if label.len() > MAX_LABEL_BYTES {
            return wrong(format!("line {line} has {} bytes, the limit is {MAX_LABEL_BYTES}", label.len()));
        }
        if let Some(control) = label.chars().find(|c| c.is_control()) {
            return wrong(format!("line {line} holds the control character {control:?}"));
        }
    }
    Ok(labels)
}

/// A row of logits for each golden image.
pub(super) fn golden_logits(bytes: &[u8], manifest: &Manifest) -> Result<Vec<Vec<f32>>, BundleError> {
    let rows = || {
        let mut tensors = Weights::parse(bytes)?;
        let logits = tensors.take("logits", &[manifest.golden.images.len(), manifest.classes])?;
        tensors.finish()?;
        Ok(logits.chunks_exact(manifest.classes).map(<[f32]>::to_vec).collect())
    };
    rows().map_err(BundleError::GoldenLogits)
}

/// A picture of exactly the model's input size.
pub(super) fn golden_image(path: &str, bytes: &[u8], manifest: &Manifest) -> Result<Pixels, BundleError> {
    let wrong = |problem: String| BundleError::GoldenImage { path: path.to_owned(), problem };
    let (width, height) = (manifest.input.width, manifest.input.height);
    let limits = Limits { width, height, ..Limits::default() };
    let pixels = image::decode(bytes, &limits).map_err(|error: ImageError| wrong(error.to_string()))?;
    if (pixels.width, pixels.height) != (width as usize, height as usize) {
        return Err(wrong(format!("{} × {}, the model takes {width} × {height}", pixels.width, pixels.height)));
    }
    Ok(pixels)
}

/// A class name goes into every result, and results have a largest size.
const MAX_LABEL_BYTES: usize = 1024;
