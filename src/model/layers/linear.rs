//! Layers on vectors of channels: fully connected, layer norm, attention.

use burn::tensor::Tensor;
use burn::tensor::activation::softmax;
use burn::tensor::backend::Backend;

use super::conv::own_kernel;
use super::kernels::Kernels;
use super::plain::{self, Buffers, PlainLinear, layer_norm};
use super::spec::Act;
use super::upload;

/// A fully connected layer with bias and activation.
#[derive(Debug)]
pub(in crate::model) struct Linear<B: Backend> {
    activation: Act,
    kernel: Kernel<B>,
}

#[derive(Debug)]
enum Kernel<B: Backend> {
    Own(Box<PlainLinear>),
    /// `[inputs, outputs]` and the bias.
    Burn(Tensor<B, 2>, Tensor<B, 1>),
}

/// Layer norm over the channels, which are the last axis.
#[derive(Debug)]
pub(in crate::model) struct LayerNorm<B: Backend> {
    host: (Vec<f32>, Vec<f32>),
    weight: Tensor<B, 1>,
    bias: Tensor<B, 1>,
    epsilon: f64,
    buffers: Buffers,
}

impl<B: Kernels> Linear<B> {
    /// `weight` is `[inputs, outputs]`.
    pub(super) fn new(
        weight: Vec<f32>,
        bias: Vec<f32>,
        activation: Act,
        buffers: &Buffers,
        device: &B::Device,
    ) -> Self {
        let outputs = bias.len();
        let inputs = weight.len() / outputs.max(1);
        let kernel = if B::PLAIN {
            Kernel::Own(Box::new(PlainLinear::new(&weight, &bias, activation, buffers.clone())))
        } else {
            Kernel::Burn(upload(weight, [inputs, outputs], device), upload(bias, [outputs], device))
        };
        Linear { activation, kernel }
    }

    /// Takes `[.., inputs]`, gives `[.., outputs]`.
    pub(in crate::model) fn forward<const D: usize>(&self, x: Tensor<B, D>) -> Tensor<B, D> {
        match &self.kernel {
            Kernel::Own(own) => own_kernel(B::on_plain([x], |[x]| own.run(x, None))),
            Kernel::Burn(weight, bias) => self.activation.apply(linear(x, weight, bias)),
        }
    }

    /// The activation of what `forward` sums up plus `residual`, which is `[.., outputs]`.
    pub(in crate::model) fn forward_add<const D: usize>(
        &self,
        x: Tensor<B, D>,
        residual: Tensor<B, D>,
    ) -> Tensor<B, D> {
        match &self.kernel {
            Kernel::Own(own) => own_kernel(B::on_plain([x, residual], |[x, residual]| own.run(x, Some(residual)))),
            Kernel::Burn(weight, bias) => self.activation.apply(linear(x, weight, bias) + residual),
        }
    }
}

fn linear<B: Backend, const D: usize>(x: Tensor<B, D>, weight: &Tensor<B, 2>, bias: &Tensor<B, 1>) -> Tensor<B, D> {
    let mut dims = x.dims();
    let [inputs, outputs] = weight.dims();
    let rows = dims[..D - 1].iter().product();
    dims[D - 1] = outputs;
    let product: Tensor<B, 2> = x.reshape([rows, inputs]).matmul(weight.clone());
    (product + bias.clone().unsqueeze()).reshape(dims)
}

impl<B: Kernels> LayerNorm<B> {
    pub(super) fn new(weight: Vec<f32>, bias: Vec<f32>, epsilon: f64, buffers: &Buffers, device: &B::Device) -> Self {
        let channels = weight.len();
        LayerNorm {
            host: (weight.clone(), bias.clone()),
            weight: upload(weight, [channels], device),
            bias: upload(bias, [channels], device),
            epsilon,
            buffers: buffers.clone(),
        }
    }

    /// Takes and gives `[.., channels]`.
    pub(in crate::model) fn forward<const D: usize>(&self, x: Tensor<B, D>) -> Tensor<B, D> {
        let (weight, bias) = &self.host;
        let own = |x: burn_flex::FlexTensor| {
            let dims = x.layout().shape().to_vec();
            self.buffers.fill(x, None, &dims, |x, _, out| layer_norm(x, weight, bias, self.epsilon, out))
        };
        match B::on_plain([x], |[x]| own(x)) {
            Ok(normal) => normal,
            Err([x]) => {
                let centred = x.clone() - x.mean_dim(D - 1);
                let variance = (centred.clone() * centred.clone()).mean_dim(D - 1);
                let normal = centred / (variance + self.epsilon).sqrt();
                normal * self.weight.clone().unsqueeze() + self.bias.clone().unsqueeze()
            }
        }
    }
}

/// Scaled dot-product attention: `softmax(q kᵀ / √width) v`. All are `[batch, heads, tokens, width]`.
pub(in crate::model) fn attention<B: Kernels>(q: Tensor<B, 4>, k: Tensor<B, 4>, v: Tensor<B, 4>) -> Tensor<B, 4> {
    let [q, k, v] = match B::on_plain([q, k, v], plain::attention) {
        Ok(mixed) => return mixed,
        Err(inputs) => inputs,
    };
    let width = u32::try_from(q.dims()[3]).unwrap_or(u32::MAX);
    let scores = (q * (1.0 / f64::from(width).sqrt())).matmul(k.swap_dims(2, 3));
    softmax(scores, 3).matmul(v)
}
