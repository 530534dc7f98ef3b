//! Logits to named scores.

use super::manifest::Activation;

/// A class that the model sees in an image.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Label {
    /// Name of the class.
    pub name: String,
    /// Its index among the model's classes.
    pub index: usize,
    /// How sure the model is, 0 to 1.
    pub score: f32,
}

/// The device answered with something that is no number.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("the model's value {index} is {value}")]
pub struct NotFinite {
    /// Index of the class or feature.
    pub index: usize,
    /// Its logit or value.
    pub value: f32,
}

/// The `top_k` best classes of at least `min_score`, best first; among equals, the lower index first.
///
/// `logits` and `names` hold one value a class.
///
/// # Errors
/// [`NotFinite`]: numbers overflowed, or the device computes wrong.
pub fn top(
    logits: &[f32],
    names: &[String],
    activation: Activation,
    top_k: usize,
    min_score: f32,
) -> Result<Vec<Label>, NotFinite> {
    check_finite(logits)?;
    let scores = scores(logits, activation);
    let mut order: Vec<usize> = (0..scores.len().min(names.len())).collect();
    // Logits rank as their scores do, and still differ where scores saturate.
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    Ok(order
        .into_iter()
        .take(top_k)
        .filter(|&index| scores[index] >= min_score)
        .map(|index| Label { name: names[index].clone(), index, score: scores[index] })
        .collect())
}

/// Refuses values that are infinite or no number.
///
/// # Errors
/// [`NotFinite`] names the first.
pub fn check_finite(values: &[f32]) -> Result<(), NotFinite> {
    match values.iter().position(|value| !value.is_finite()) {
        Some(index) => Err(NotFinite { index, value: values[index] }),
        None => Ok(()),
    }
}

/// Softmax is taken relative to the largest logit, so that no exponential overflows.
fn scores(logits: &[f32], activation: Activation) -> Vec<f32> {
    match activation {
        Activation::Softmax => {
            let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let exponentials: Vec<f32> = logits.iter().map(|logit| (logit - largest).exp()).collect();
            let sum: f32 = exponentials.iter().sum();
            exponentials.into_iter().map(|exponential| exponential / sum).collect()
        }
        // exp(−x) may reach infinity, whose reciprocal is the right 0.
        Activation::Sigmoid => logits.iter().map(|logit| 1.0 / (1.0 + (-logit).exp())).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Activation, NotFinite, top};

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|index| format!("class {index}")).collect()
    }

    #[test]
    fn extreme_logits_give_finite_scores() {
        for activation in [Activation::Softmax, Activation::Sigmoid] {
            let labels = top(&[f32::MAX, -3e38, 0.0], &names(3), activation, 3, 0.0).unwrap();
            assert_eq!(labels.iter().map(|label| label.index).collect::<Vec<_>>(), [0, 2, 1]);
            assert!(labels.iter().all(|label| (0.0..=1.0).contains(&label.score)), "{labels:?}");
        }
    }

    #[test]
    fn softmax_shares_one_and_sigmoid_does_not() {
        let softmax = top(&[1.0, 1.0], &names(2), Activation::Softmax, 2, 0.0).unwrap();
        assert_eq!(softmax.iter().map(|label| label.score).collect::<Vec<_>>(), [0.5, 0.5]);
        let sigmoid = top(&[3.0, 3.0], &names(2), Activation::Sigmoid, 2, 0.9).unwrap();
        assert_eq!(sigmoid.len(), 2);
    }

    #[test]
    fn top_k_and_min_score_cut() {
        assert_eq!(top(&[0.0, 2.0, 1.0], &names(3), Activation::Softmax, 2, 0.0).unwrap().len(), 2);
        assert_eq!(top(&[0.0, 2.0, 1.0], &names(3), Activation::Softmax, 3, 0.5).unwrap().len(), 1);
        assert!(top(&[0.0, 2.0, 1.0], &names(3), Activation::Softmax, 0, 0.0).unwrap().is_empty());
    }

    #[test]
    fn nan_is_an_error() {
        let error = top(&[0.0, f32::NAN], &names(2), Activation::Softmax, 1, 0.0).unwrap_err();
        assert!(matches!(error, NotFinite { index: 1, .. }));
    }
}
