//! Builds layers in the order of a network, out of its weights.

use std::time::Duration;

use burn::tensor::Tensor;

use super::choice::{Chooser, Formulations};
use super::conv::Conv;
use super::fold::{HostConv, fold_batch_norm, transpose};
use super::kernels::Kernels;
use super::linear::{LayerNorm, Linear};
use super::plain::Buffers;
use super::pool::MaxPool;
use super::spec::{Act, Axis, ConvSpec, Padding};
use super::upload;
use crate::model::weights::{Weights, WeightsError};

/// Takes weights layer by layer and follows the size of the picture through the network.
pub(in crate::model) struct Builder<'w, 'a, B: Kernels> {
    /// Where the layers' tensors are taken from.
    pub(in crate::model) weights: &'w mut Weights<'a>,
    /// Rows and columns at this point of the network. Convolutions and pools change it; a network sets it back for a
    /// branch that starts earlier.
    pub(in crate::model) size: [usize; 2],
    device: &'w B::Device,
    buffers: Buffers,
    chooser: Chooser,
}

/// Time for measuring formulations at load. On the processor a kernel of our own, where there is one, is rarely beaten;
/// elsewhere kernels are compiled for each.
const MEASURING: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(20)];

impl<'w, 'a, B: Kernels> Builder<'w, 'a, B> {
    /// For pictures of `size` (rows, columns).
    pub(in crate::model) fn new(weights: &'w mut Weights<'a>, size: [usize; 2], device: &'w B::Device) -> Self {
        let chooser = Chooser::new(Formulations::default(), MEASURING[usize::from(!B::PLAIN)]);
        Builder { weights, size, device, buffers: Buffers::default(), chooser }
    }

    /// With formulations that were chosen earlier. Those that are missing are measured.
    pub(in crate::model) fn with_formulations(mut self, known: Formulations) -> Self {
        self.chooser = Chooser::new(known, MEASURING[usize::from(!B::PLAIN)]);
        self
    }

    /// The formulations of all convolutions so far.
    pub(in crate::model) fn formulations(&self) -> &Formulations {
        self.chooser.chosen()
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
        let conv = HostConv { spec, kernel, bias, axes };
        Ok(Conv::new(&conv, &mut self.chooser, &self.buffers, self.device))
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
        Linear::new(transpose(weight, outputs, inputs), bias, activation, &self.buffers, self.device)
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
        Ok(LayerNorm::new(weight, bias, epsilon, &self.buffers, self.device))
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
        let axes = self.step(name, kernel, stride, Padding::Each(padding))?;
        Ok(MaxPool { kernel, stride, padding, axes, buffers: self.buffers.clone() })
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
