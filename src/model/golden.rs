//! The proof that a device computes right: images whose logits are known, run on it.
//!
//! A tuned or fused kernel may give wrong numbers (burn#5352, cubecl#1611), and wrong numbers are worse than none.

use super::bundle::Golden;
use super::{Bundle, Classifier, DeviceError};
use crate::image::Pixels;

/// A device that computes right.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GoldenReport {
    /// Images that were run.
    pub images: usize,
    /// Largest error of a logit, relative to its image's largest one.
    pub max_error: f32,
}

/// A device that cannot be trusted.
#[derive(Debug, thiserror::Error)]
pub enum GoldenError {
    /// It could not run the golden images.
    #[error("golden images could not be run")]
    Device(#[from] DeviceError),
    /// Its answer has another shape.
    #[error("golden images: {found} logits, expected {expected}")]
    Shape {
        /// Values that the golden set holds.
        expected: usize,
        /// Values that the device gave.
        found: usize,
    },
    /// It computes wrong.
    #[error("{image}: logit {index} is {found}, expected {expected} within {allowed}")]
    Mismatch {
        /// Path of the image inside the bundle.
        image: String,
        /// Index of the first class that is too far off.
        index: usize,
        /// Logit in the golden set.
        expected: f32,
        /// Logit that the device gave.
        found: f32,
        /// Largest difference allowed.
        allowed: f32,
    },
}

/// Runs the bundle's golden images, one by one and as one batch, and compares every logit.
///
/// # Errors
/// [`GoldenError`]: the device must not be used.
pub fn check(classifier: &mut dyn Classifier, bundle: &Bundle) -> Result<GoldenReport, GoldenError> {
    check_batches(classifier, bundle, &[])
}

/// The same, and in batches of these sizes, in images, as well: a kernel is chosen for a batch's shape, and one may be
/// wrong where the others are right.
///
/// # Errors
/// [`GoldenError`]: the device must not be used.
pub fn check_batches(
    classifier: &mut dyn Classifier,
    bundle: &Bundle,
    sizes: &[usize],
) -> Result<GoldenReport, GoldenError> {
    let golden = bundle.golden();
    let together: Vec<&Golden> = golden.iter().collect();
    let mut max_error = run(classifier, bundle, &together)?;
    for image in &together {
        max_error = max_error.max(run(classifier, bundle, &[image])?);
    }
    for &size in sizes {
        // Not in the places that they have when they run together.
        let batch: Vec<&Golden> = golden.iter().cycle().skip(1).take(size).collect();
        max_error = max_error.max(run(classifier, bundle, &batch)?);
    }
    Ok(GoldenReport { images: golden.len(), max_error })
}

/// Runs one batch and gives the largest error of a logit, relative to its image's largest one.
fn run(classifier: &mut dyn Classifier, bundle: &Bundle, batch: &[&Golden]) -> Result<f32, GoldenError> {
    let images: Vec<&Pixels> = batch.iter().map(|golden| &golden.pixels).collect();
    let answers = classifier.classify(&images)?;
    let classes = bundle.manifest().classes;
    if answers.len() != batch.len() || answers.iter().any(|answer| answer.logits.len() != classes) {
        let found = answers.iter().map(|answer| answer.logits.len()).sum();
        return Err(GoldenError::Shape { expected: batch.len() * classes, found });
    }
    let mut max_error = 0.0f32;
    for (golden, answer) in batch.iter().zip(&answers) {
        let largest = golden.logits.iter().fold(f32::MIN_POSITIVE, |largest, logit| largest.max(logit.abs()));
        let allowed = bundle.manifest().golden.tolerance * largest;
        for (index, (&expected, &found)) in golden.logits.iter().zip(&answer.logits).enumerate() {
            let error = (found - expected).abs();
            if error.is_nan() || error > allowed {
                return Err(GoldenError::Mismatch { image: golden.name.clone(), index, expected, found, allowed });
            }
            max_error = max_error.max(error / largest);
        }
    }
    Ok(max_error)
}
