//! A convolution on a device, in one of several formulations with the same result.

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn::tensor::module::conv2d;
use burn::tensor::ops::ConvOptions;
use burn::tensor::s;

use super::builder::Kernels;
use super::fold::HostConv;
use super::spec::{Act, Axis, ConvSpec};
use super::upload;

/// How a convolution is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::model) enum Formulation {
    /// The backend's own convolution, on a transposed view.
    Library,
    /// A matrix product: a kernel of one pixel, or one that never overlaps itself.
    Product,
    /// Depthwise: for each pixel of the kernel, the picture shifted by it, times its weights.
    Shifts,
}

/// A convolution with bias and activation. Takes and gives `[batch, rows, columns, channels]`.
#[derive(Debug)]
pub(in crate::model) struct Conv<B: Backend> {
    spec: ConvSpec,
    axes: [Axis; 2],
    kernel: Kernel<B>,
    bias: Tensor<B, 1>,
}

#[derive(Debug)]
enum Kernel<B: Backend> {
    /// `[output, input / groups, rows, columns]`
    Library(Tensor<B, 4>, ConvOptions<2>),
    /// `[side × side × input, output]`
    Product(Tensor<B, 2>),
    /// `[side × side, channels]`
    Shifts(Tensor<B, 2>),
}

impl Formulation {
    /// Those that can compute a convolution, the likeliest to be fast first.
    pub(super) fn candidates(conv: &HostConv) -> Vec<Formulation> {
        let ConvSpec { kernel, stride, groups, .. } = conv.spec;
        let unpadded = conv.axes.iter().all(|axis| axis.start == 0 && axis.end == 0);
        let mut candidates = Vec::new();
        if groups == 1 && (kernel == 1 || kernel == stride) && unpadded {
            candidates.push(Formulation::Product);
        }
        candidates.push(Formulation::Library);
        if conv.spec.is_depthwise() {
            candidates.push(Formulation::Shifts);
        }
        candidates
    }
}

impl<B: Kernels> Conv<B> {
    pub(super) fn new(conv: &HostConv, device: &B::Device) -> Self {
        Self::with(Formulation::candidates(conv)[0], conv, device)
    }

    pub(super) fn with(formulation: Formulation, conv: &HostConv, device: &B::Device) -> Self {
        let ConvSpec { input, output, kernel: side, stride, groups, .. } = conv.spec;
        let kernel = match formulation {
            Formulation::Library => {
                let (kernel, [rows, columns]) = conv.symmetric();
                let padding = conv.axes.map(|axis| axis.start.max(axis.end));
                let options = ConvOptions::new([stride; 2], padding, [1, 1], groups);
                Kernel::Library(upload(kernel, [output, input / groups, rows, columns], device), options)
            }
            Formulation::Product => Kernel::Product(upload(conv.by_position(), [side * side * input, output], device)),
            Formulation::Shifts => Kernel::Shifts(upload(conv.by_position(), [side * side, output], device)),
        };
        Conv { spec: conv.spec, axes: conv.axes, kernel, bias: upload(conv.bias.clone(), [output], device) }
    }

    /// The activation of the convolution plus its bias.
    pub(in crate::model) fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        self.spec.activation.apply(self.linear(x))
    }

    /// The activation of the convolution plus its bias plus `residual`, which has the shape of what comes out.
    pub(in crate::model) fn forward_add(&self, x: Tensor<B, 4>, residual: Tensor<B, 4>) -> Tensor<B, 4> {
        self.spec.activation.apply(self.linear(x) + residual)
    }

    fn linear(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        match &self.kernel {
            Kernel::Library(kernel, options) => {
                let x = x.permute([0, 3, 1, 2]);
                conv2d(x, kernel.clone(), Some(self.bias.clone()), options.clone()).permute([0, 2, 3, 1])
            }
            Kernel::Product(matrix) => {
                let [batch, ..] = x.dims();
                let [rows, columns] = self.axes.map(|axis| axis.output);
                let product = self.patches(x).matmul(matrix.clone()) + self.bias.clone().unsqueeze();
                product.reshape([batch, rows, columns, self.spec.output])
            }
            Kernel::Shifts(weights) => self.shifted_sum(x, weights) + self.bias.clone().unsqueeze(),
        }
    }

    /// The pixels under each position of the kernel, `[positions, side × side × input]`.
    fn patches(&self, x: Tensor<B, 4>) -> Tensor<B, 2> {
        let ConvSpec { kernel: side, stride, input, .. } = self.spec;
        let [batch, x_rows, x_columns, _] = x.dims();
        let [rows, columns] = self.axes.map(|axis| axis.output);
        if side == 1 {
            let x = if stride == 1 { x } else { x.slice(s![.., ..;stride, ..;stride, ..]) };
            return x.reshape([batch * rows * columns, input]);
        }
        let whole = x_rows == rows * side && x_columns == columns * side;
        let x = if whole { x } else { x.slice(s![.., 0..rows * side, 0..columns * side, ..]) };
        x.reshape([batch * rows, side, columns, side * input])
            .permute([0, 2, 1, 3])
            .reshape([batch * rows * columns, side * side * input])
    }

    fn shifted_sum(&self, x: Tensor<B, 4>, weights: &Tensor<B, 2>) -> Tensor<B, 4> {
        let ConvSpec { kernel: side, stride, output: channels, .. } = self.spec;
        let [rows, columns] = self.axes;
        let padded = [rows, columns].iter().any(|axis| axis.start + axis.end > 0);
        let x = if padded { x.pad([(rows.start, rows.end), (columns.start, columns.end), (0, 0)], 0.0) } else { x };
        let (height, width) = ((rows.output - 1) * stride + 1, (columns.output - 1) * stride + 1);
        let term = |position: usize| {
            let (row, column) = (position / side, position % side);
            let shifted = x.clone().slice(s![.., row..row + height;stride, column..column + width;stride, ..]);
            shifted * weights.clone().slice(s![position..position + 1, ..]).reshape([1, 1, 1, channels])
        };
        (1..side * side).fold(term(0), |sum, position| sum + term(position))
    }
}

/// The activation of a layer of which nothing else is known.
pub(super) fn finish<B: Backend, const D: usize>(x: Tensor<B, D>, bias: Tensor<B, 1>, act: Act) -> Tensor<B, D> {
    act.apply(x + bias.unsqueeze())
}
