//! Layers on vectors of channels: fully connected, layer norm, attention.

use burn::tensor::Tensor;
use burn::tensor::activation::softmax;
use burn::tensor::backend::Backend;

use super::builder::Kernels;
use super::conv::finish;
use super::spec::Act;
use super::upload;

/// A fully connected layer with bias and activation.
#[derive(Debug)]
pub(in crate::model) struct Linear<B: Backend> {
    /// `[inputs, outputs]`
    weight: Tensor<B, 2>,
    bias: Tensor<B, 1>,
    activation: Act,
}

/// Layer norm over the channels, which are the last axis.
#[derive(Debug)]
pub(in crate::model) struct LayerNorm<B: Backend> {
    weight: Tensor<B, 1>,
    bias: Tensor<B, 1>,
    epsilon: f64,
}

impl<B: Kernels> Linear<B> {
    /// `weight` is `[inputs, outputs]`.
    pub(super) fn new(weight: Vec<f32>, bias: Vec<f32>, activation: Act, device: &B::Device) -> Self {
        let outputs = bias.len();
        let inputs = weight.len() / outputs.max(1);
        let (weight, bias) = (upload(weight, [inputs, outputs], device), upload(bias, [outputs], device));
        Linear { weight, bias, activation }
    }

    /// Takes `[.., inputs]`, gives `[.., outputs]`.
    pub(in crate::model) fn forward<const D: usize>(&self, x: Tensor<B, D>) -> Tensor<B, D> {
        let mut dims = x.dims();
        let [inputs, outputs] = self.weight.dims();
        let rows = dims[..D - 1].iter().product();
        let product: Tensor<B, 2> = x.reshape([rows, inputs]).matmul(self.weight.clone());
        dims[D - 1] = outputs;
        finish(product, self.bias.clone(), self.activation).reshape(dims)
    }

    /// `forward(x) + residual`; the activation comes after the addition.
    pub(in crate::model) fn forward_add<const D: usize>(
        &self,
        x: Tensor<B, D>,
        residual: Tensor<B, D>,
    ) -> Tensor<B, D> {
        let mut dims = x.dims();
        let [inputs, outputs] = self.weight.dims();
        let rows = dims[..D - 1].iter().product();
        let product: Tensor<B, 2> = x.reshape([rows, inputs]).matmul(self.weight.clone());
        dims[D - 1] = outputs;
        self.activation.apply((product + self.bias.clone().unsqueeze()).reshape(dims) + residual)
    }
}

impl<B: Kernels> LayerNorm<B> {
    pub(super) fn new(weight: Vec<f32>, bias: Vec<f32>, epsilon: f64, device: &B::Device) -> Self {
        let channels = weight.len();
        LayerNorm { weight: upload(weight, [channels], device), bias: upload(bias, [channels], device), epsilon }
    }

    /// Takes and gives `[.., channels]`.
    pub(in crate::model) fn forward<const D: usize>(&self, x: Tensor<B, D>) -> Tensor<B, D> {
        let centred = x.clone() - x.mean_dim(D - 1);
        let variance = (centred.clone() * centred.clone()).mean_dim(D - 1);
        let normal = centred / (variance + self.epsilon).sqrt();
        normal * self.weight.clone().unsqueeze() + self.bias.clone().unsqueeze()
    }
}

/// Scaled dot-product attention: `softmax(q kᵀ / √width) v`. All are `[batch, heads, tokens, width]`.
pub(in crate::model) fn attention<B: Kernels>(q: Tensor<B, 4>, k: Tensor<B, 4>, v: Tensor<B, 4>) -> Tensor<B, 4> {
    let width = u32::try_from(q.dims()[3]).unwrap_or(u32::MAX);
    let scores = (q * (1.0 / f64::from(width).sqrt())).matmul(k.swap_dims(2, 3));
    softmax(scores, 3).matmul(v)
}
