//! Kernels of our own for tensors in plain memory, which is what the processor's backend has.
//!
//! Burn's operations on that backend each allocate their result, fill it with zeros and pass over memory once more for a
//! bias, an addition or an activation. These compute a layer in one pass, into a buffer that an earlier layer has done
//! with. Instructions are chosen when the program runs (AVX-512, AVX2, NEON or none), without `unsafe`.

#![allow(clippy::needless_range_loop, reason = "arrays of registers are indexed side by side")]

mod attention;
mod buffers;
mod depthwise;
mod gemm;
mod lanes;
mod rows;
mod windows;

pub(super) use attention::attention;
pub(super) use buffers::Buffers;
pub(super) use rows::{average, layer_norm, max_pool, normalise};

use burn_flex::FlexTensor;

use self::depthwise::Depthwise;
use self::gemm::{Dense, Packed};
use self::windows::Windows;
use super::fold::HostConv;
use super::spec::{Act, Axis, ConvSpec};

/// A convolution with bias and activation.
pub(super) struct PlainConv {
    spec: ConvSpec,
    axes: [Axis; 2],
    kernel: Kernel,
    buffers: Buffers,
}

enum Kernel {
    /// Each pixel by itself.
    Pointwise(Packed),
    /// Every pixel under the kernel side by side, then a product.
    Windows(Packed),
    Depthwise(Depthwise),
}

/// A fully connected layer.
pub(super) struct PlainLinear {
    packed: Packed,
    activation: Act,
    buffers: Buffers,
}

impl PlainConv {
    /// Whether there is a kernel for a convolution.
    pub(super) fn fits(spec: &ConvSpec) -> bool {
        spec.groups == 1 || (spec.is_depthwise() && Depthwise::fits(spec.output))
    }

    pub(super) fn new(conv: &HostConv, buffers: Buffers) -> Self {
        let (spec, axes) = (conv.spec, conv.axes);
        let pointwise = spec.kernel == 1 && spec.stride == 1 && axes.iter().all(|axis| axis.input == axis.output);
        let kernel = if spec.is_depthwise() {
            Kernel::Depthwise(Depthwise::new(spec, axes, &conv.by_position(), conv.bias.clone()))
        } else if pointwise {
            Kernel::Pointwise(Packed::new(&conv.by_position(), &conv.bias))
        } else {
            Kernel::Windows(Packed::new(&conv.by_position(), &conv.bias))
        };
        PlainConv { spec, axes, kernel, buffers }
    }

    /// Takes `[batch, rows, columns, channels]`; the residual is what comes out.
    pub(super) fn run(&self, x: FlexTensor, residual: Option<FlexTensor>) -> FlexTensor {
        let batch = x.layout().shape()[0];
        let dims = [batch, self.axes[0].output, self.axes[1].output, self.spec.output];
        self.buffers.fill(x, residual, &dims, |x, residual, out| match &self.kernel {
            Kernel::Pointwise(packed) => {
                packed.product(&Dense { values: x, depth: self.spec.input }, residual, self.spec.activation, out);
            }
            Kernel::Windows(packed) => {
                packed.product(&Windows::new(x, self.spec, self.axes), residual, self.spec.activation, out);
            }
            Kernel::Depthwise(depthwise) => depthwise.run(x, residual, out),
        })
    }
}

impl PlainLinear {
    /// `weight` is `[inputs, outputs]`.
    pub(super) fn new(weight: &[f32], bias: &[f32], activation: Act, buffers: Buffers) -> Self {
        PlainLinear { packed: Packed::new(weight, bias), activation, buffers }
    }

    /// Takes `[.., inputs]`; the residual is what comes out, `[.., outputs]`.
    pub(super) fn run(&self, x: FlexTensor, residual: Option<FlexTensor>) -> FlexTensor {
        let mut dims = x.layout().shape().to_vec();
        let depth = self.packed.depth();
        if let Some(last) = dims.last_mut() {
            *last = self.packed.outputs();
        }
        self.buffers.fill(x, residual, &dims, |x, residual, out| {
            self.packed.product(&Dense { values: x, depth }, residual, self.activation, out);
        })
    }
}

impl std::fmt::Debug for PlainConv {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PlainConv").field("spec", &self.spec).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for PlainLinear {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PlainLinear").field("activation", &self.activation).finish_non_exhaustive()
    }
}
