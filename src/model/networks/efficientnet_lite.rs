//! EfficientNet-Lite: EfficientNet without squeeze-and-excitation and with ReLU6, for devices that dislike both.
//!
//! Sources: Tan and Le, "EfficientNet", 2019, table 1; TensorFlow's `efficientnet_lite_builder.py` for what Lite
//! changes: stem, head and the repeats of the first and last stage keep their size in every variant. Tensor names are
//! those of the `efficientnet-lite-pytorch` package.

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use crate::model::layers::{Act, Builder, Conv, ConvSpec, Kernels, Linear, Padding, global_average};
use crate::model::networks::Output;
use crate::model::weights::WeightsError;

/// TensorFlow's epsilon for EfficientNet, not PyTorch's default of 1e-5.
const BATCH_NORM_EPSILON: f64 = 1e-3;
const STEM_CHANNELS: usize = 32;
const HEAD_CHANNELS: usize = 1280;
/// Channel counts are multiples of this.
const CHANNEL_STEP: usize = 8;

/// How a variant scales the table of stages, in tenths.
#[derive(Clone, Copy, Debug)]
pub(in crate::model) struct Variant {
    width_tenths: usize,
    depth_tenths: usize,
}

/// The smallest one, with the table as it stands.
pub(in crate::model) const LITE0: Variant = Variant { width_tenths: 10, depth_tenths: 10 };

/// A run of blocks with the same shape, of which only the first has the stride.
struct Stage {
    repeats: usize,
    kernel: usize,
    stride: usize,
    /// Factor by which the first convolution of a block widens it.
    expansion: usize,
    output: usize,
}

const STAGES: [Stage; 7] = [
    Stage { repeats: 1, kernel: 3, stride: 1, expansion: 1, output: 16 },
    Stage { repeats: 2, kernel: 3, stride: 2, expansion: 6, output: 24 },
    Stage { repeats: 2, kernel: 5, stride: 2, expansion: 6, output: 40 },
    Stage { repeats: 3, kernel: 3, stride: 2, expansion: 6, output: 80 },
    Stage { repeats: 3, kernel: 5, stride: 1, expansion: 6, output: 112 },
    Stage { repeats: 4, kernel: 5, stride: 2, expansion: 6, output: 192 },
    Stage { repeats: 1, kernel: 3, stride: 1, expansion: 6, output: 320 },
];

impl Variant {
    fn channels(self, base: usize) -> usize {
        let scaled = base * self.width_tenths;
        let rounded = ((scaled + 5 * CHANNEL_STEP) / (10 * CHANNEL_STEP) * CHANNEL_STEP).max(CHANNEL_STEP);
        // Rounding must not take more than a tenth away.
        if rounded * 100 < scaled * 9 { rounded + CHANNEL_STEP } else { rounded }
    }

    fn repeats(self, stage: usize) -> usize {
        let base = STAGES[stage].repeats;
        if stage == 0 || stage + 1 == STAGES.len() { base } else { (base * self.depth_tenths).div_ceil(10) }
    }
}

/// The network on a device.
#[derive(Debug)]
pub(in crate::model) struct EfficientNetLite<B: Backend> {
    stem: Conv<B>,
    blocks: Vec<Block<B>>,
    head: Conv<B>,
    classifier: Linear<B>,
}

/// Widen, filter each channel, narrow; add the input where the shape allows.
#[derive(Debug)]
struct Block<B: Backend> {
    expand: Option<Conv<B>>,
    depthwise: Conv<B>,
    project: Conv<B>,
    residual: bool,
}

impl<B: Kernels> EfficientNetLite<B> {
    /// Takes the tensors of a network.
    ///
    /// # Errors
    /// [`WeightsError`] names the tensor that does not fit.
    pub(in crate::model) fn take(
        builder: &mut Builder<'_, '_, B>,
        variant: &Variant,
        classes: usize,
    ) -> Result<Self, WeightsError> {
        let stem = ConvSpec { kernel: 3, stride: 2, activation: Act::Relu6, ..pointwise(3, STEM_CHANNELS) };
        let stem = builder.conv_norm(("_conv_stem", "_bn0"), stem, BATCH_NORM_EPSILON)?;
        let mut blocks = Vec::new();
        let mut channels = STEM_CHANNELS;
        for (index, stage) in STAGES.iter().enumerate() {
            let output = variant.channels(stage.output);
            for repeat in 0..variant.repeats(index) {
                let stride = if repeat == 0 { stage.stride } else { 1 };
                blocks.push(Block::take(builder, blocks.len(), stage, [channels, output], stride)?);
                channels = output;
            }
        }
        let head = ConvSpec { activation: Act::Relu6, ..pointwise(channels, HEAD_CHANNELS) };
        let head = builder.conv_norm(("_conv_head", "_bn1"), head, BATCH_NORM_EPSILON)?;
        let classifier = builder.linear("_fc", [HEAD_CHANNELS, classes], Act::None)?;
        Ok(EfficientNetLite { stem, blocks, head, classifier })
    }

    /// Takes normalised pixels `[batch, rows, columns, 3]`.
    pub(in crate::model) fn forward(&self, x: Tensor<B, 4>) -> Output<B> {
        let x = self.blocks.iter().fold(self.stem.forward(x), |x, block| block.forward(x));
        let features = global_average(self.head.forward(x));
        Output { logits: self.classifier.forward(features.clone()), features }
    }
}

impl<B: Kernels> Block<B> {
    fn take(
        builder: &mut Builder<'_, '_, B>,
        index: usize,
        stage: &Stage,
        [input, output]: [usize; 2],
        stride: usize,
    ) -> Result<Self, WeightsError> {
        let wide = input * stage.expansion;
        let mut conv = |conv: &str, norm: &str, spec| {
            let names = (format!("_blocks.{index}.{conv}"), format!("_blocks.{index}.{norm}"));
            builder.conv_norm((&names.0, &names.1), spec, BATCH_NORM_EPSILON)
        };
        let depthwise = ConvSpec { kernel: stage.kernel, stride, groups: wide, ..pointwise(wide, wide) };
        Ok(Block {
            expand: match stage.expansion {
                1 => None,
                _ => Some(conv("_expand_conv", "_bn0", ConvSpec { activation: Act::Relu6, ..pointwise(input, wide) })?),
            },
            depthwise: conv("_depthwise_conv", "_bn1", ConvSpec { activation: Act::Relu6, ..depthwise })?,
            project: conv("_project_conv", "_bn2", pointwise(wide, output))?,
            residual: stride == 1 && input == output,
        })
    }

    fn forward(&self, input: Tensor<B, 4>) -> Tensor<B, 4> {
        let wide = match &self.expand {
            Some(expand) => expand.forward(input.clone()),
            None => input.clone(),
        };
        let filtered = self.depthwise.forward(wide);
        if self.residual { self.project.forward_add(filtered, input) } else { self.project.forward(filtered) }
    }
}

/// A convolution of one pixel without activation.
fn pointwise(input: usize, output: usize) -> ConvSpec {
    ConvSpec { input, output, kernel: 1, stride: 1, groups: 1, padding: Padding::Same, activation: Act::None }
}
