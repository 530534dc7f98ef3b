//! A convolution on the host: weights as they are stored, with batch norm folded in.

use super::spec::{Axis, ConvSpec};
use crate::model::weights::{Weights, WeightsError, check_finite};

/// A convolution with bias, for pictures of one size.
pub(super) struct HostConv {
    pub(super) spec: ConvSpec,
    /// `[output, input / groups, side, side]`
    pub(super) kernel: Vec<f32>,
    /// One a channel out.
    pub(super) bias: Vec<f32>,
    /// Rows and columns.
    pub(super) axes: [Axis; 2],
}

impl HostConv {
    /// The kernel with the position in it first, `[side × side × input / groups, output]`: a matrix that multiplies
    /// the pixels under the kernel, channels last.
    pub(super) fn by_position(&self) -> Vec<f32> {
        let (positions, inputs) = (self.spec.kernel * self.spec.kernel, self.spec.input / self.spec.groups);
        let mut matrix = Vec::with_capacity(self.kernel.len());
        for position in 0..positions {
            for input in 0..inputs {
                let at = input * positions + position;
                matrix.extend((0..self.spec.output).map(|output| self.kernel[output * inputs * positions + at]));
            }
        }
        matrix
    }

    /// The kernel with as many zeros before it as make the padding the same on both sides, and its rows and columns.
    ///
    /// TensorFlow's padding at stride 2 has one more pixel below and on the right; Burn copies the picture to pad it so,
    /// and the processor's backend falls from 22 images/s to 2 at batches of 4 and more.
    pub(super) fn symmetric(&self) -> (Vec<f32>, [usize; 2]) {
        let [rows, columns] = self.axes.map(|axis| axis.end.saturating_sub(axis.start));
        let side = self.spec.kernel;
        (lead_with_zeros(&self.kernel, side, rows, columns), [side + rows, side + columns])
    }
}

/// Scales the kernel of each output channel by `weight / √(variance + ε)` and returns the bias that completes it,
/// `bias − mean × scale`. Computed in `f64`, so that folding costs no accuracy.
///
/// # Errors
/// [`WeightsError`] names the tensor that does not fit.
pub(super) fn fold_batch_norm(
    weights: &mut Weights<'_>,
    (conv, norm): (&str, &str),
    kernel: &mut [f32],
    channels: usize,
    epsilon: f64,
) -> Result<Vec<f32>, WeightsError> {
    let mut take = |part: &str| weights.take(&format!("{norm}.{part}"), &[channels]);
    let (gamma, beta) = (take("weight")?, take("bias")?);
    let (mean, variance) = (take("running_mean")?, take("running_var")?);
    if let Some(index) = variance.iter().position(|value| *value < 0.0) {
        return Err(WeightsError::Value { name: format!("{norm}.running_var"), index, value: variance[index] });
    }
    let mut bias = Vec::with_capacity(channels);
    for (channel, kernel) in kernel.chunks_exact_mut((kernel.len() / channels).max(1)).enumerate() {
        let scale = f64::from(gamma[channel]) / (f64::from(variance[channel]) + epsilon).sqrt();
        for value in kernel {
            *value = to_f32(f64::from(*value) * scale);
        }
        bias.push(to_f32(f64::from(beta[channel]) - f64::from(mean[channel]) * scale));
    }
    check_finite(&format!("{conv}.weight"), kernel)?;
    check_finite(&format!("{norm}.bias"), &bias)?;
    Ok(bias)
}

#[allow(clippy::cast_possible_truncation, reason = "rounding to f32 is what is meant")]
fn to_f32(value: f64) -> f32 {
    value as f32
}

/// Gives every `side × side` kernel `rows` rows of zeros at the top and `columns` columns of zeros on the left.
fn lead_with_zeros(kernel: &[f32], side: usize, rows: usize, columns: usize) -> Vec<f32> {
    let mut wider = Vec::with_capacity(kernel.len() / (side * side) * (side + rows) * (side + columns));
    for plane in kernel.chunks_exact(side * side) {
        wider.extend(std::iter::repeat_n(0.0, rows * (side + columns)));
        for row in plane.chunks_exact(side) {
            wider.extend(std::iter::repeat_n(0.0, columns));
            wider.extend_from_slice(row);
        }
    }
    wider
}

/// `[rows, columns]` to `[columns, rows]`.
pub(super) fn transpose(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|column| (0..rows).map(move |row| values[row * columns + column])).collect()
}

#[cfg(test)]
mod tests {
    use super::lead_with_zeros;

    #[test]
    fn zeros_lead_rows_and_columns() {
        assert_eq!(lead_with_zeros(&[1., 2., 3., 4.], 2, 1, 1), [0., 0., 0., 0., 1., 2., 0., 3., 4.]);
    }
}
