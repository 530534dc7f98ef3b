//! Builds layers in the order of a network, out of its weights.

use burn::backend::flex::Flex;
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use super::conv::Conv;
use super::fold::{HostConv, fold_batch_norm, transpose};
use super::linear::{LayerNorm, Linear};
use super::pool::MaxPool;
use super::spec::{Act, Axis, ConvSpec, Padding};
use super::upload;
use crate::model::weights::{Weights, WeightsError};

/// A backend that networks run on.
pub(in crate::model) trait Kernels: Backend {}

impl Kernels for Flex {}

#[cfg(feature = "cuda")]
impl Kernels for burn::backend::Cuda {}

/// Takes weights layer by layer and follows the size of the picture through the network.
pub(in crate::model) struct Builder<'w, 'a, B: Kernels> {
    /// Where the layers' tensors are taken from.
    pub(in crate::model) weights: &'w mut Weights<'a>,
    /// Rows and columns at this point of the network. Convolutions and pools change it; a network sets it back for a
    /// branch that starts earlier.
    pub(in crate::model) size: [usize; 2],
    device: &'w B::Device,
}

impl<'w, 'a, B: Kernels> Builder<'w, 'a, B> {
    /// For pictures of `size` (rows, columns).
    pub(in crate::model) fn new(weights: &'w mut Weights<'a>, size: [usize; 2], device: &'w B::Device) -> Self {
        Builder { weights, size, device }
    }

    /// Takes `{conv}.weight` and the four tensors of the batch norm `norm`.
    ///
    /// # Errors
    /// [`WeightsError`] names the tensor that does not fit.
    pub(in crate::model) fn conv_norm(
        &mut self,
        (conv, norm): (&str, &str),
        spec: ConvSpec,
        epsilon: f64,
    ) -> Result<Conv<B>, WeightsError> {
        let mut kernel = self.weights.take(&format!("{conv}.weight"), &kernel_dims(&spec))?;
        let bias = fold_batch_norm(self.weights, (conv, norm), &mut kernel, spec.output, epsilon)?;
        self.conv_from(conv, spec, kernel, bias)
    }

    /// Takes `{name}.weight` and `{name}.bias`.
    ///
    /// # Errors
    /// [`WeightsError`] names the tensor that does not fit.
    pub(in crate::model) fn conv(&mut self, name: &str, spec: ConvSpec) -> Result<Conv<B>, WeightsError> {
        let kernel = self.weights.take(&format!("{name}.weight"), &kernel_dims(&spec))?;
        let bias = self.weights.take(&format!("{name}.bias"), &[spec.output])?;
        self.conv_from(name, spec, kernel, bias)
    }

    /// A convolution of values that the network has prepared: a kernel `[output, input / groups, side, side]` and a
    /// bias for each output. `name` is for the error.
    ///
    /// # Errors
    /// A picture smaller than the kernel.
    pub(in crate::model) fn conv_from(
        &mut self,
        name: &str,
        spec: ConvSpec,
        kernel: Vec<f32>,
        bias: Vec<f32>,
    ) -> Result<Conv<B>, WeightsError> {
        let axes = self.step(name, spec.kernel, spec.stride, spec.padding)?;
        Ok(Conv::new(&HostConv { spec, kernel, bias, axes }, self.device))
    }

    /// Takes `{name}.weight` as PyTorch stores it, `[outputs, inputs]`, and `{name}.bias`.
    ///
    /// # Errors
    /// [`WeightsError`] names the tensor that does not fit.
    pub(in crate::model) fn linear(
        &mut self,
        name: &str,
        [inputs, outputs]: [usize; 2],
        activation: Act,
    ) -> Result<Linear<B>, WeightsError> {
        let weight = self.weights.take(&format!("{name}.weight"), &[outputs, inputs])?;
        let bias = self.weights.take(&format!("{name}.bias"), &[outputs])?;
        Ok(self.linear_from(&weight, bias, activation))
    }

    /// A linear layer of values that the network has prepared: a weight `[outputs, inputs]` and a bias for each output.
    pub(in crate::model) fn linear_from(&mut self, weight: &[f32], bias: Vec<f32>, activation: Act) -> Linear<B> {
        let (inputs, outputs) = (weight.len() / bias.len().max(1), bias.len());
        Linear::new(transpose(weight, outputs, inputs), bias, activation, self.device)
    }

    /// Takes `{name}.weight` and `{name}.bias`.
    ///
    /// # Errors
    /// [`WeightsError`] names the tensor that does not fit.
    pub(in crate::model) fn layer_norm(
        &mut self,
        name: &str,
        channels: usize,
        epsilon: f64,
    ) -> Result<LayerNorm<B>, WeightsError> {
        let weight = self.weights.take(&format!("{name}.weight"), &[channels])?;
        let bias = self.weights.take(&format!("{name}.bias"), &[channels])?;
        Ok(LayerNorm::new(weight, bias, epsilon, self.device))
    }

    /// The largest of each `kernel × kernel` pixels; padding never wins. `name` is for the error.
    ///
    /// # Errors
    /// A picture smaller than the kernel.
    pub(in crate::model) fn max_pool(
        &mut self,
        name: &str,
        kernel: usize,
        stride: usize,
        padding: usize,
    ) -> Result<MaxPool, WeightsError> {
        self.step(name, kernel, stride, Padding::Each(padding))?;
        Ok(MaxPool { kernel, stride, padding })
    }

    /// Takes the tensor `name` of the shape `dims` and puts it on the device.
    ///
    /// # Errors
    /// [`WeightsError`] names the tensor when it does not fit.
    pub(in crate::model) fn tensor<const D: usize>(
        &mut self,
        name: &str,
        dims: [usize; D],
    ) -> Result<Tensor<B, D>, WeightsError> {
        Ok(upload(self.weights.take(name, &dims)?, dims, self.device))
    }

    /// Puts values that the network has prepared on the device.
    pub(in crate::model) fn upload<const D: usize>(&self, values: Vec<f32>, dims: [usize; D]) -> Tensor<B, D> {
        upload(values, dims, self.device)
    }

    fn step(&mut self, name: &str, kernel: usize, stride: usize, padding: Padding) -> Result<[Axis; 2], WeightsError> {
        let [rows, columns] = self.size;
        let axes = (Axis::new(rows, kernel, stride, padding), Axis::new(columns, kernel, stride, padding));
        let (Some(rows), Some(columns)) = axes else {
            return Err(WeightsError::TooSmall { name: name.to_owned(), rows, columns, kernel });
        };
        self.size = [rows.output, columns.output];
        Ok([rows, columns])
    }
}

fn kernel_dims(spec: &ConvSpec) -> [usize; 4] {
    [spec.output, spec.input / spec.groups, spec.kernel, spec.kernel]
}
