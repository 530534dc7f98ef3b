//! What a convolution is: its shape, its padding and what follows it, before any weight.

use burn::tensor::Tensor;
use burn::tensor::activation::{gelu, relu};
use burn::tensor::backend::Backend;

/// What is applied to every value after a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::model) enum Act {
    /// Nothing.
    None,
    /// Cuts off below 0.
    Relu,
    /// Cuts off below 0 and above 6.
    Relu6,
    /// `x Φ(x)` with the exact normal distribution, as PyTorch's default has it.
    Gelu,
}

/// Pixels added around a picture before a convolution, all zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::model) enum Padding {
    /// TensorFlow's `SAME`: ⌈size / stride⌉ pixels come out, and an odd pixel of padding is at the end.
    Same,
    /// This many on every side, as PyTorch counts it.
    Each(usize),
}

/// The shape of a convolution with a square kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::model) struct ConvSpec {
    /// Channels in.
    pub(in crate::model) input: usize,
    /// Channels out.
    pub(in crate::model) output: usize,
    /// Side of the kernel in pixels.
    pub(in crate::model) kernel: usize,
    /// Step of the kernel in pixels.
    pub(in crate::model) stride: usize,
    /// Groups of channels: 1, or `input` for a depthwise convolution.
    pub(in crate::model) groups: usize,
    /// Zeros around the picture.
    pub(in crate::model) padding: Padding,
    /// What follows the bias, and the addition where there is one.
    pub(in crate::model) activation: Act,
}

/// Where a kernel goes along one axis of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Axis {
    /// Pixels in.
    pub(super) input: usize,
    /// Pixels out, at least 1.
    pub(super) output: usize,
    /// Zeros before the first pixel.
    pub(super) start: usize,
    /// Zeros after the last pixel.
    pub(super) end: usize,
}

impl Act {
    pub(super) fn apply<B: Backend, const D: usize>(self, x: Tensor<B, D>) -> Tensor<B, D> {
        match self {
            Act::None => x,
            Act::Relu => relu(x),
            Act::Relu6 => x.clamp(0.0, 6.0),
            Act::Gelu => gelu(x),
        }
    }
}

impl ConvSpec {
    /// Whether each channel is filtered by itself.
    pub(super) fn is_depthwise(&self) -> bool {
        self.groups > 1 && self.groups == self.input && self.input == self.output
    }
}

impl Axis {
    /// `None` when the kernel is larger than the padded picture.
    pub(super) fn new(input: usize, kernel: usize, stride: usize, padding: Padding) -> Option<Self> {
        match padding {
            Padding::Same => {
                let output = input.div_ceil(stride);
                let total = (output.checked_sub(1)? * stride + kernel).saturating_sub(input);
                // TensorFlow, `GetWindowedOutputSize`
                Some(Axis { input, output, start: total / 2, end: total - total / 2 })
            }
            Padding::Each(pixels) => {
                let output = (input + 2 * pixels).checked_sub(kernel)? / stride + 1;
                Some(Axis { input, output, start: pixels, end: pixels })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Axis, Padding};

    #[test]
    fn padding_is_tensorflows_same() {
        // Stride 2 on an even size pads (0, 1) for a kernel of 3 and (1, 2) for one of 5; on an odd size it is even.
        let same = |input, kernel, stride| Axis::new(input, kernel, stride, Padding::Same).unwrap();
        assert_eq!(same(224, 3, 2), Axis { input: 224, output: 112, start: 0, end: 1 });
        assert_eq!(same(56, 5, 2), Axis { input: 56, output: 28, start: 1, end: 2 });
        assert_eq!(same(65, 5, 2), Axis { input: 65, output: 33, start: 2, end: 2 });
        assert_eq!(same(14, 5, 1), Axis { input: 14, output: 14, start: 2, end: 2 });
        assert_eq!(same(7, 1, 1), Axis { input: 7, output: 7, start: 0, end: 0 });
    }

    #[test]
    fn padding_in_pixels_counts_as_pytorch_does() {
        let each = |input, kernel, stride, pixels| Axis::new(input, kernel, stride, Padding::Each(pixels));
        assert_eq!(each(224, 7, 2, 3), Some(Axis { input: 224, output: 112, start: 3, end: 3 }));
        assert_eq!(each(224, 16, 16, 0), Some(Axis { input: 224, output: 14, start: 0, end: 0 }));
        assert_eq!(each(15, 16, 16, 0), None);
    }
}
