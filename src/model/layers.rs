//! The layers that networks are made of, over plain tensor operations.
//!
//! A convolution is rewritten on the host before it goes to the device, with the same results:
//! - batch norm is folded into its kernel and bias (7 to 29 % faster on the CPU backend);
//! - TensorFlow's `SAME` padding, which at stride 2 pads one more pixel below and on the right, becomes symmetric
//!   through a row and a column of zeros in the kernel. As it comes, the backend copies the picture to pad it, and falls
//!   from 22 images/s to 2 at batches of 4 and more.

use burn::tensor::backend::Backend;
use burn::tensor::module::{conv2d, linear};
use burn::tensor::ops::ConvOptions;
use burn::tensor::{Tensor, TensorData};

use super::precision;
use super::weights::{Weights, WeightsError, check_finite};

/// A square convolution without bias, followed by batch norm.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConvSpec {
    /// Channels in.
    pub(super) input: usize,
    /// Channels out.
    pub(super) output: usize,
    /// Side of the kernel in pixels.
    pub(super) kernel: usize,
    /// Step of the kernel in pixels.
    pub(super) stride: usize,
    /// Groups of channels: 1, or `input` for a depthwise convolution.
    pub(super) groups: usize,
}

/// A convolution with batch norm folded in, on the host.
pub(super) struct FoldedConv {
    kernel: Vec<f32>,
    kernel_dims: [usize; 4],
    bias: Vec<f32>,
    options: ConvOptions<2>,
    /// Size of the picture that comes out, rows and columns.
    pub(super) output_size: [usize; 2],
}

/// A convolution with bias on a device. Takes and gives `[batch, channels, rows, columns]`.
#[derive(Debug)]
pub(super) struct Conv<B: Backend> {
    kernel: Tensor<B, 4>,
    bias: Tensor<B, 1>,
    options: ConvOptions<2>,
}

/// A fully connected layer. Takes `[batch, inputs]`, gives `[batch, outputs]`.
#[derive(Debug)]
pub(super) struct Linear<B: Backend> {
    /// `[inputs, outputs]`
    weight: Tensor<B, 2>,
    bias: Tensor<B, 1>,
}

impl FoldedConv {
    /// Takes `{conv}.weight` and the four tensors of the batch norm `norm`, for pictures of `size` (rows, columns)
    /// padded as TensorFlow's `SAME` does.
    ///
    /// # Errors
    /// [`WeightsError`] names the tensor that does not fit.
    pub(super) fn take(
        weights: &mut Weights<'_>,
        (conv, norm): (&str, &str),
        spec: ConvSpec,
        size: [usize; 2],
        epsilon: f64,
    ) -> Result<Self, WeightsError> {
        let ConvSpec { input, output, kernel: side, stride, groups } = spec;
        let name = format!("{conv}.weight");
        let dims = [output, input / groups, side, side];
        let mut kernel = weights.take(&name, &dims)?;
        let bias = fold_batch_norm(weights, norm, &mut kernel, output, epsilon)?;
        check_finite(&name, &kernel)?;
        check_finite(&format!("{norm}.bias"), &bias)?;
        let rows = SamePadding::new(size[0], side, stride);
        let columns = SamePadding::new(size[1], side, stride);
        Ok(FoldedConv {
            kernel: lead_with_zeros(&kernel, side, rows.leading_zeros, columns.leading_zeros),
            kernel_dims: [output, input / groups, side + rows.leading_zeros, side + columns.leading_zeros],
            bias,
            options: ConvOptions::new([stride; 2], [rows.padding, columns.padding], [1, 1], groups),
            output_size: [rows.output, columns.output],
        })
    }
}

impl<B: Backend> Conv<B> {
    pub(super) fn new(folded: FoldedConv, device: &B::Device) -> Self {
        let bias_dims = [folded.bias.len()];
        Conv {
            kernel: upload(folded.kernel, folded.kernel_dims, device),
            bias: upload(folded.bias, bias_dims, device),
            options: folded.options,
        }
    }

    pub(super) fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        conv2d(x, self.kernel.clone(), Some(self.bias.clone()), self.options.clone())
    }
}

impl<B: Backend> Linear<B> {
    /// Takes `{name}.weight` as PyTorch stores it, `[outputs, inputs]`, and `{name}.bias`.
    ///
    /// # Errors
    /// [`WeightsError`] names the tensor that does not fit.
    pub(super) fn take(
        weights: &mut Weights<'_>,
        name: &str,
        [inputs, outputs]: [usize; 2],
        device: &B::Device,
    ) -> Result<Self, WeightsError> {
        let stored = weights.take(&format!("{name}.weight"), &[outputs, inputs])?;
        let bias = weights.take(&format!("{name}.bias"), &[outputs])?;
        let transposed = transpose(&stored, outputs, inputs);
        Ok(Linear { weight: upload(transposed, [inputs, outputs], device), bias: upload(bias, [outputs], device) })
    }

    pub(super) fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        linear(x, self.weight.clone(), Some(self.bias.clone()))
    }
}

/// Cuts off below 0 and above 6.
pub(super) fn relu6<B: Backend>(x: Tensor<B, 4>) -> Tensor<B, 4> {
    x.clamp(0.0, 6.0)
}

/// The mean of each channel: `[batch, channels, rows, columns]` to `[batch, channels]`.
pub(super) fn global_average<B: Backend>(x: Tensor<B, 4>) -> Tensor<B, 2> {
    let [batch, channels, rows, columns] = x.dims();
    x.reshape([batch, channels, rows * columns]).mean_dim(2).reshape([batch, channels])
}

/// Puts values on a device, in the numbers of [`precision`].
pub(super) fn upload<B: Backend, const D: usize>(
    values: Vec<f32>,
    dims: [usize; D],
    device: &B::Device,
) -> Tensor<B, D> {
    Tensor::from_data(TensorData::new(values, dims), (device, precision::float()))
}

/// Scales the kernel of each output channel by `weight / √(variance + ε)` and returns the bias that completes it,
/// `bias − mean × scale`. Computed in `f64`, so that folding costs no accuracy.
fn fold_batch_norm(
    weights: &mut Weights<'_>,
    norm: &str,
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
    Ok(bias)
}

#[allow(clippy::cast_possible_truncation, reason = "rounding to f32 is what is meant")]
fn to_f32(value: f64) -> f32 {
    value as f32
}

/// TensorFlow's `SAME` padding along one axis, made symmetric.
///
/// The output has ⌈size / stride⌉ pixels; the padding that this takes is split in two halves, the odd pixel at the
/// end (TensorFlow, `GetWindowedOutputSize`).
#[derive(Debug, PartialEq, Eq)]
struct SamePadding {
    output: usize,
    /// Pixels on either side.
    padding: usize,
    /// Zeros that the kernel gains at its start, so that the larger padding there reads nothing.
    leading_zeros: usize,
}

impl SamePadding {
    fn new(size: usize, kernel: usize, stride: usize) -> Self {
        let output = size.div_ceil(stride);
        let total = ((output - 1) * stride + kernel).saturating_sub(size);
        let (start, end) = (total / 2, total - total / 2);
        SamePadding { output, padding: end, leading_zeros: end - start }
    }
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

fn transpose(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|column| (0..rows).map(move |row| values[row * columns + column])).collect()
}

#[cfg(test)]
mod tests {
    use super::{SamePadding, lead_with_zeros};

    #[test]
    fn padding_is_tensorflows_same() {
        // Stride 2 on an even size pads (0, 1) for a kernel of 3 and (1, 2) for one of 5; on an odd size it is even.
        assert_eq!(SamePadding::new(224, 3, 2), SamePadding { output: 112, padding: 1, leading_zeros: 1 });
        assert_eq!(SamePadding::new(56, 5, 2), SamePadding { output: 28, padding: 2, leading_zeros: 1 });
        assert_eq!(SamePadding::new(65, 5, 2), SamePadding { output: 33, padding: 2, leading_zeros: 0 });
        assert_eq!(SamePadding::new(14, 5, 1), SamePadding { output: 14, padding: 2, leading_zeros: 0 });
        assert_eq!(SamePadding::new(7, 1, 1), SamePadding { output: 7, padding: 0, leading_zeros: 0 });
    }

    #[test]
    fn zeros_lead_rows_and_columns() {
        assert_eq!(lead_with_zeros(&[1., 2., 3., 4.], 2, 1, 1), [0., 0., 0., 0., 1., 2., 0., 3., 4.]);
    }
}
