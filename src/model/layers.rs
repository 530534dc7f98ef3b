//! The layers that networks are made of, written once for every network and every backend.
//!
//! Activations are channels-last everywhere: `[batch, rows, columns, channels]`. A network is built by a [`Builder`],
//! which takes the weights layer by layer and follows the size of the picture, so that all that can be decided at load is:
//! - batch norm is folded into the convolution before it, in `f64`;
//! - padding is known in pixels on each side, TensorFlow's `SAME` too;
//! - of the formulations of a convolution (see [`Formulation`]) the one to use is chosen.

mod builder;
mod choice;
mod conv;
mod fold;
mod input;
mod kernels;
mod linear;
mod plain;
mod pool;
mod spec;
#[cfg(test)]
mod tests;

pub(super) use builder::Builder;
pub use choice::{Formulation, Formulations};
pub(super) use conv::Conv;
pub(super) use input::{Input, Normalise};
pub(super) use kernels::Kernels;
pub(super) use linear::{LayerNorm, Linear, attention};
pub(super) use pool::{MaxPool, global_average};
pub(super) use spec::{Act, ConvSpec, Padding};

use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, TensorData};

use super::precision;

/// Puts values on a device, in the numbers of [`precision`].
pub(super) fn upload<B: Backend, const D: usize>(
    values: Vec<f32>,
    dims: [usize; D],
    device: &B::Device,
) -> Tensor<B, D> {
    Tensor::from_data(TensorData::new(values, dims), (device, precision::float()))
}
