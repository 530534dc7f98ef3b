//! Layers that take a picture's pixels together.

use burn::tensor::Tensor;
use burn::tensor::module::max_pool2d;

use super::kernels::Kernels;
use super::plain::{self, Buffers};
use super::spec::Axis;

/// The largest of each square of pixels, channel by channel.
#[derive(Clone, Debug)]
pub(in crate::model) struct MaxPool {
    pub(super) kernel: usize,
    pub(super) stride: usize,
    pub(super) padding: usize,
    pub(super) axes: [Axis; 2],
    pub(super) buffers: Buffers,
}

impl MaxPool {
    /// Takes and gives `[batch, rows, columns, channels]`.
    pub(in crate::model) fn forward<B: Kernels>(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        let MaxPool { kernel, stride, padding, axes, .. } = *self;
        let [batch, _, _, channels] = x.dims();
        let dims = [batch, axes[0].output, axes[1].output, channels];
        let own =
            |x: &[f32], _: Option<&[f32]>, out: &mut [f32]| plain::max_pool(x, axes, (kernel, stride), channels, out);
        match B::on_plain([x], |[x]| self.buffers.fill(x, None, &dims, own)) {
            Ok(pooled) => pooled,
            Err([x]) => {
                let x = x.permute([0, 3, 1, 2]);
                max_pool2d(x, [kernel; 2], [stride; 2], [padding; 2], [1, 1], false).permute([0, 2, 3, 1])
            }
        }
    }
}

/// The mean of each channel: `[batch, rows, columns, channels]` to `[batch, channels]`.
pub(in crate::model) fn global_average<B: Kernels>(x: Tensor<B, 4>) -> Tensor<B, 2> {
    let [batch, rows, columns, channels] = x.dims();
    let own = |x: &[f32], _: Option<&[f32]>, out: &mut [f32]| plain::average(x, rows * columns, channels, out);
    match B::on_plain([x], |[x]| Buffers::default().fill(x, None, &[batch, channels], own)) {
        Ok(mean) => mean,
        Err([x]) => x.reshape([batch, rows * columns, channels]).mean_dim(1).reshape([batch, channels]),
    }
}
