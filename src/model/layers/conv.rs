//! A convolution on a device, in one of several formulations with the same result.

use std::time::{Duration, Instant};

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn::tensor::module::conv2d;
use burn::tensor::ops::ConvOptions;
use burn::tensor::s;

use super::choice::{Chooser, Formulation, Measured, shape_name};
use super::fold::HostConv;
use super::kernels::Kernels;
use super::plain::{Buffers, PlainConv};
use super::spec::{Axis, ConvSpec};
use super::upload;
use crate::model::device::failure::trial;

/// A convolution with bias and activation. Takes and gives `[batch, rows, columns, channels]`.
#[derive(Debug)]
pub(in crate::model) struct Conv<B: Backend> {
    spec: ConvSpec,
    axes: [Axis; 2],
    kernel: Kernel<B>,
}

#[derive(Debug)]
enum Kernel<B: Backend> {
    Own(Box<PlainConv>),
    Burn(BurnConv<B>, Tensor<B, 1>),
}

#[derive(Debug)]
enum BurnConv<B: Backend> {
    /// `[output, input / groups, rows, columns]`
    Library(Tensor<B, 4>, ConvOptions<2>),
    /// `[side × side × input, output]`
    Product(Tensor<B, 2>),
    /// `[side × side, channels]`
    Shifts(Tensor<B, 2>),
}

/// Images that are measured with: the one of a single thread on the processor, as many as fill other devices.
const PROBE_IMAGES: [usize; 2] = [1, 8];
/// Values of a layer's input that are measured with, at most, unless one image has more.
const PROBE_VALUES: usize = 16 << 20;
/// Runs after the first, of which the shortest counts.
const PROBE_RUNS: usize = 3;

impl Formulation {
    /// Those that can compute a convolution, the likeliest to be fast first.
    pub(super) fn candidates<B: Kernels>(conv: &HostConv) -> Vec<Formulation> {
        let ConvSpec { kernel, stride, groups, .. } = conv.spec;
        let unpadded = conv.axes.iter().all(|axis| axis.start == 0 && axis.end == 0);
        let mut candidates = Vec::new();
        if B::PLAIN && PlainConv::fits(&conv.spec) {
            candidates.push(Formulation::Own);
        }
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
    /// With the formulation that is known or fastest.
    pub(super) fn new(conv: &HostConv, chooser: &mut Chooser, buffers: &Buffers, device: &B::Device) -> Self {
        let candidates = Formulation::candidates::<B>(conv);
        let shape = shape_name(&conv.spec, &conv.axes);
        let measure = |candidate, best| measure::<B>(candidate, conv, buffers, device, best);
        let formulation = chooser.choose(&shape, &candidates, measure);
        Self::with(formulation, conv, buffers, device)
    }

    pub(super) fn with(formulation: Formulation, conv: &HostConv, buffers: &Buffers, device: &B::Device) -> Self {
        let ConvSpec { input, output, kernel: side, stride, groups, .. } = conv.spec;
        let bias = || upload(conv.bias.clone(), [output], device);
        let kernel = match formulation {
            Formulation::Own => Kernel::Own(Box::new(PlainConv::new(conv, buffers.clone()))),
            Formulation::Library => {
                let (kernel, [rows, columns]) = conv.symmetric();
                let padding = conv.axes.map(|axis| axis.start.max(axis.end));
                let options = ConvOptions::new([stride; 2], padding, [1, 1], groups);
                let kernel = upload(kernel, [output, input / groups, rows, columns], device);
                Kernel::Burn(BurnConv::Library(kernel, options), bias())
            }
            Formulation::Product => {
                let matrix = upload(conv.by_position(), [side * side * input, output], device);
                Kernel::Burn(BurnConv::Product(matrix), bias())
            }
            Formulation::Shifts => {
                let weights = upload(conv.by_position(), [side * side, output], device);
                Kernel::Burn(BurnConv::Shifts(weights), bias())
            }
        };
        Conv { spec: conv.spec, axes: conv.axes, kernel }
    }

    /// The activation of the convolution plus its bias.
    pub(in crate::model) fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        match &self.kernel {
            Kernel::Own(own) => own_kernel(B::on_plain([x], |[x]| own.run(x, None))),
            Kernel::Burn(conv, bias) => self.spec.activation.apply(self.linear(x, conv, bias)),
        }
    }

    /// The activation of the convolution plus its bias plus `residual`, which has the shape of what comes out.
    pub(in crate::model) fn forward_add(&self, x: Tensor<B, 4>, residual: Tensor<B, 4>) -> Tensor<B, 4> {
        match &self.kernel {
            Kernel::Own(own) => own_kernel(B::on_plain([x, residual], |[x, residual]| own.run(x, Some(residual)))),
            Kernel::Burn(conv, bias) => self.spec.activation.apply(self.linear(x, conv, bias) + residual),
        }
    }

    fn linear(&self, x: Tensor<B, 4>, conv: &BurnConv<B>, bias: &Tensor<B, 1>) -> Tensor<B, 4> {
        match conv {
            BurnConv::Library(kernel, options) => {
                let x = x.permute([0, 3, 1, 2]);
                conv2d(x, kernel.clone(), Some(bias.clone()), options.clone()).permute([0, 2, 3, 1])
            }
            BurnConv::Product(matrix) => {
                let [batch, ..] = x.dims();
                let [rows, columns] = self.axes.map(|axis| axis.output);
                let product = self.patches(x).matmul(matrix.clone()) + bias.clone().unsqueeze();
                product.reshape([batch, rows, columns, self.spec.output])
            }
            BurnConv::Shifts(weights) => self.shifted_sum(x, weights) + bias.clone().unsqueeze(),
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
        let x = within_zeros(x, [rows, columns]);
        let (height, width) = ((rows.output - 1) * stride + 1, (columns.output - 1) * stride + 1);
        let term = |position: usize| {
            let (row, column) = (position / side, position % side);
            let shifted = x.clone().slice(s![.., row..row + height;stride, column..column + width;stride, ..]);
            shifted * weights.clone().slice(s![position..position + 1, ..]).reshape([1, 1, 1, channels])
        };
        (1..side * side).fold(term(0), |sum, position| sum + term(position))
    }
}

/// With each axis' zeros around the picture. They are of the picture's type: the library's own padding is of `f32`, which
/// a network in half precision cannot add to.
fn within_zeros<B: Backend>(x: Tensor<B, 4>, axes: [Axis; 2]) -> Tensor<B, 4> {
    if axes.iter().all(|axis| axis.start + axis.end == 0) {
        return x;
    }
    let [batch, height, width, channels] = x.dims();
    let [rows, columns] = axes;
    let padded = [batch, height + rows.start + rows.end, width + columns.start + columns.end, channels];
    let zeros = Tensor::zeros(padded, (&x.device(), x.dtype()));
    zeros.slice_assign(s![.., rows.start..rows.start + height, columns.start..columns.start + width, ..], x)
}

/// Builds a candidate and runs it: once so that everything is compiled, tuned and in the caches, then for its time,
/// until it is clear that it will not be the best.
fn measure<B: Kernels>(
    candidate: Formulation,
    conv: &HostConv,
    buffers: &Buffers,
    device: &B::Device,
    best: Option<Duration>,
) -> Measured {
    let start = Instant::now();
    let [rows, columns] = conv.axes.map(|axis| axis.input);
    let values = rows * columns * conv.spec.input;
    let images = PROBE_IMAGES[usize::from(!B::PLAIN)].min(PROBE_VALUES / values.max(1)).max(1);
    // One that fails is the slowest.
    let timed = trial(|| {
        let layer = Conv::<B>::with(candidate, conv, buffers, device);
        let x: Tensor<B, 4> = upload(vec![1.0; images * values], [images, rows, columns, conv.spec.input], device);
        let run = || {
            let start = Instant::now();
            let y = layer.forward(x.clone());
            // An error comes back with the next result that is read.
            B::sync(device).map_err(|error| error.to_string())?;
            drop(y);
            Ok::<_, String>(start.elapsed())
        };
        let mut shortest = run()?;
        for _ in 0..PROBE_RUNS {
            if best.is_some_and(|best| shortest > best.saturating_mul(4)) {
                break;
            }
            shortest = shortest.min(run()?);
        }
        Ok(shortest)
    });
    Measured { shortest: timed.unwrap_or(Duration::MAX), spent: start.elapsed() }
}

/// The result of a kernel of our own, which is only chosen for a backend that runs it.
pub(super) fn own_kernel<T, E>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|_| unreachable!("an own kernel on a backend without plain memory"))
}

#[cfg(test)]
mod tests {
    use burn::backend::flex::{Flex, FlexDevice};

    use super::*;
    use crate::model::layers::choice::Formulations;
    use crate::model::layers::{Act, Padding};

    fn depthwise() -> HostConv {
        let spec = ConvSpec {
            input: 32,
            output: 32,
            kernel: 3,
            stride: 1,
            groups: 32,
            padding: Padding::Same,
            activation: Act::None,
        };
        let axis = Axis::new(8, 3, 1, Padding::Same).unwrap();
        HostConv { spec, kernel: vec![1.0; 32 * 9], bias: vec![0.0; 32], axes: [axis; 2] }
    }

    fn built(conv: &Conv<Flex>) -> Formulation {
        match conv.kernel {
            Kernel::Own(_) => Formulation::Own,
            Kernel::Burn(BurnConv::Library(..), _) => Formulation::Library,
            Kernel::Burn(BurnConv::Product(_), _) => Formulation::Product,
            Kernel::Burn(BurnConv::Shifts(_), _) => Formulation::Shifts,
        }
    }

    #[test]
    fn the_given_formulation_is_built() {
        let host = depthwise();
        let shape = shape_name(&host.spec, &host.axes);
        for given in Formulation::candidates::<Flex>(&host) {
            let mut known = Formulations::default();
            known.set(&shape, given);
            let mut chooser = Chooser::new(known, Duration::ZERO);
            let conv = Conv::<Flex>::new(&host, &mut chooser, &Buffers::default(), &FlexDevice);
            assert_eq!(built(&conv), given);
        }
    }

    #[test]
    fn what_was_measured_is_built_and_can_be_got() {
        let host = depthwise();
        let mut chooser = Chooser::new(Formulations::default(), Duration::MAX);
        let conv = Conv::<Flex>::new(&host, &mut chooser, &Buffers::default(), &FlexDevice);
        assert_eq!(chooser.chosen().get(&shape_name(&host.spec, &host.axes)), Some(built(&conv)));
    }
}
