//! Layers that take a picture's pixels together.

use burn::tensor::Tensor;
use burn::tensor::module::max_pool2d;

use super::builder::Kernels;

/// The largest of each square of pixels, channel by channel.
#[derive(Clone, Copy, Debug)]
pub(in crate::model) struct MaxPool {
    pub(super) kernel: usize,
    pub(super) stride: usize,
    pub(super) padding: usize,
}

impl MaxPool {
    /// Takes and gives `[batch, rows, columns, channels]`.
    pub(in crate::model) fn forward<B: Kernels>(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        let MaxPool { kernel, stride, padding } = *self;
        let x = x.permute([0, 3, 1, 2]);
        max_pool2d(x, [kernel; 2], [stride; 2], [padding; 2], [1, 1], false).permute([0, 2, 3, 1])
    }
}

/// The mean of each channel: `[batch, rows, columns, channels]` to `[batch, channels]`.
pub(in crate::model) fn global_average<B: Kernels>(x: Tensor<B, 4>) -> Tensor<B, 2> {
    let [batch, rows, columns, channels] = x.dims();
    x.reshape([batch, rows * columns, channels]).mean_dim(1).reshape([batch, channels])
}
