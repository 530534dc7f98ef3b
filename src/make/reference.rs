//! The training code's own logits for the golden images, to compare with: a safetensors file with the tensor `logits`, or a
//! NumPy file (NumPy, `numpy/lib/format.py`, versions 1 to 3).

use super::bytes::Reader;
use crate::model::{Weights, WeightsError};

/// Largest error of a logit, relative to its image's largest one. Two programs that add up the same products in another
/// order differ by about 1e-5; a wrong resize, mean or activation by far more than this.
pub(super) const TOLERANCE: f32 = 1e-3;
/// The same for weights that were rounded to half precision since: up to 3e-3 was seen, with weights at random.
pub(super) const HALF_TOLERANCE: f32 = 1e-2;

/// The training code's logits cannot be used, or are others.
#[derive(Debug, thiserror::Error)]
pub enum ReferenceError {
    /// The file is neither of the two kinds, or damaged.
    #[error("reference logits: {0}")]
    Unreadable(String),
    /// The tensor is not what it must be.
    #[error("reference logits")]
    Tensor(#[from] WeightsError),
    /// Another answer for the same pixels.
    #[error(
        "{image}: logit {index} is {found}, in the reference {expected}: {error:.1e} of the largest one, at most \
         {tolerance:.0e} is allowed. Compute the reference from the bundle's own golden/*.png, without any resize or crop, \
         and check the mean, the std and the architecture"
    )]
    Differs {
        /// Path of the image inside the bundle.
        image: String,
        /// The class that is furthest off.
        index: usize,
        /// Logit of the reference.
        expected: f32,
        /// Logit here.
        found: f32,
        /// Their difference, relative to the image's largest logit.
        error: f32,
        /// Largest one allowed.
        tolerance: f32,
    },
}

/// A row of logits for each image.
pub(super) fn read(bytes: &[u8], images: usize, classes: usize) -> Result<Vec<Vec<f32>>, ReferenceError> {
    let values = if bytes.starts_with(b"\x93NUMPY") {
        numpy(bytes, images, classes)?
    } else {
        Weights::parse(bytes)?.take("logits", &[images, classes])?
    };
    if let Some(at) = values.iter().position(|value| !value.is_finite()) {
        return Err(ReferenceError::Unreadable(format!("value {at} is {}", values[at])));
    }
    Ok(values.chunks_exact(classes).map(<[f32]>::to_vec).collect())
}

/// The largest error, if it is small enough.
pub(super) fn compare(
    found: &[Vec<f32>],
    expected: &[Vec<f32>],
    images: &[String],
    tolerance: f32,
) -> Result<f32, ReferenceError> {
    let mut largest_error = 0.0f32;
    for ((found, expected), image) in found.iter().zip(expected).zip(images) {
        let largest = expected.iter().fold(f32::MIN_POSITIVE, |largest, logit| largest.max(logit.abs()));
        let errors = found.iter().zip(expected).map(|(found, expected)| (found - expected).abs() / largest);
        let worst = errors.enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b));
        let Some((index, error)) = worst else { continue };
        if error.is_nan() || error > tolerance {
            let (expected, found) = (expected[index], found[index]);
            return Err(ReferenceError::Differs { image: image.clone(), index, expected, found, error, tolerance });
        }
        largest_error = largest_error.max(error);
    }
    Ok(largest_error)
}

fn numpy(bytes: &[u8], images: usize, classes: usize) -> Result<Vec<f32>, ReferenceError> {
    let wrong = |problem: &str| ReferenceError::Unreadable(format!("NumPy file: {problem}"));
    let cut = |_| wrong("cut short");
    let mut reader = Reader::new(bytes);
    reader.take(6).map_err(cut)?;
    let [version, _] = reader.array().map_err(cut)?;
    let length = match version {
        1 => u16::from_le_bytes(reader.array().map_err(cut)?).into(),
        _ => u32::from_le_bytes(reader.array().map_err(cut)?),
    };
    let header = String::from_utf8_lossy(reader.take(length.into()).map_err(cut)?).replace(' ', "");
    if !header.contains("'fortran_order':False") {
        return Err(wrong("not in C order"));
    }
    if !header.contains(&format!("'shape':({images},{classes})")) {
        return Err(wrong(&format!("its shape is not ({images}, {classes}): {}", header.trim_end())));
    }
    let count = images as u64 * classes as u64;
    if header.contains("'descr':'<f4'") {
        let data = reader.take(count * 4).map_err(cut)?;
        Ok(data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    } else if header.contains("'descr':'<f8'") {
        let data = reader.take(count * 8).map_err(cut)?;
        #[allow(clippy::cast_possible_truncation, reason = "rounding to f32 is what is meant")]
        let narrow = |bytes: &[u8; 8]| f64::from_le_bytes(*bytes) as f32;
        Ok(data.as_chunks().0.iter().map(narrow).collect())
    } else {
        Err(wrong("neither float32 nor float64"))
    }
}

#[cfg(test)]
mod tests {
    use super::{ReferenceError, TOLERANCE, compare, read};

    fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
        let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
        let length = u16::try_from(header.len()).unwrap().to_le_bytes();
        [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes(), data].concat()
    }

    #[test]
    fn numpy_files_of_both_widths_are_read() {
        let narrow: Vec<u8> = [1.5f32, -2.0].iter().flat_map(|value| value.to_le_bytes()).collect();
        let wide: Vec<u8> = [1.5f64, -2.0].iter().flat_map(|value| value.to_le_bytes()).collect();
        for file in [npy("<f4", "(1, 2)", &narrow), npy("<f8", "(1, 2)", &wide)] {
            assert_eq!(read(&file, 1, 2).unwrap(), [[1.5, -2.0]]);
            assert!(
                matches!(read(&file, 2, 1), Err(ReferenceError::Unreadable(problem)) if problem.contains("(2, 1)"))
            );
            assert!(read(&file[..file.len() - 1], 1, 2).is_err());
        }
        assert!(read(b"text", 1, 2).is_err());
    }

    #[test]
    fn another_answer_is_told_by_class() {
        let images = ["golden/a.png".to_owned()];
        assert!(compare(&[vec![10.0, 0.001]], &[vec![10.0, 0.0]], &images, TOLERANCE).unwrap() < 2e-4);
        let error = compare(&[vec![10.0, 0.5]], &[vec![10.0, 0.0]], &images, TOLERANCE).unwrap_err();
        assert!(matches!(error, ReferenceError::Differs { index: 1, .. }), "{error}");
        assert!(compare(&[vec![f32::NAN]], &[vec![1.0]], &images, TOLERANCE).is_err());
    }
}
