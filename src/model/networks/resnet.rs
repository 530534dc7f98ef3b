//! ResNet, with basic blocks (18 and 34) or bottlenecks (50 and 101), as torchvision and timm name it alike.
//!
//! Sources: He et al., "Deep Residual Learning", 2015, table 1; the stride of a bottleneck is in its 3 × 3 convolution, as in
//! both libraries.

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use super::variant::{Variant, VariantError};
use super::{Output, classifier};
use crate::model::layers::{Act, Builder, Conv, ConvSpec, Kernels, Linear, MaxPool, Padding, global_average};
use crate::model::weights::WeightsError;

const STEM_CHANNELS: usize = 64;
const WIDTHS: [usize; 4] = [64, 128, 256, 512];
const BATCH_NORM_EPSILON: f64 = 1e-5;

/// The shape of a network.
#[derive(Debug)]
pub(super) struct Shape {
    depths: [usize; 4],
    /// Channels inside of the blocks of each stage.
    widths: [usize; 4],
    block: BlockKind,
    epsilon: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockKind {
    /// Two convolutions of 3 × 3.
    Basic,
    /// A convolution of 3 × 3 between two of one pixel, which narrow and widen.
    Bottleneck,
}

impl BlockKind {
    /// Channels out of a block for each inside of it.
    fn expansion(self) -> usize {
        match self {
            BlockKind::Basic => 1,
            BlockKind::Bottleneck => 4,
        }
    }
}

impl Shape {
    /// # Errors
    /// [`VariantError`] names a field that does not fit.
    pub(super) fn new(block: BlockKind, depths: [usize; 4], variant: &Variant) -> Result<Self, VariantError> {
        variant.allow(&["depths", "widths", "batch_norm_epsilon"])?;
        Ok(Shape {
            depths: variant.depths_or(depths)?,
            widths: variant.widths_or(WIDTHS)?,
            block,
            epsilon: variant.batch_norm_epsilon_or(BATCH_NORM_EPSILON)?,
        })
    }
}

/// The network on a device.
#[derive(Debug)]
pub(in crate::model) struct ResNet<B: Backend> {
    stem: Conv<B>,
    pool: MaxPool,
    blocks: Vec<Block<B>>,
    classifier: Linear<B>,
}

#[derive(Debug)]
struct Block<B: Backend> {
    /// All convolutions but the last.
    first: Vec<Conv<B>>,
    /// Adds the shortcut before its activation.
    last: Conv<B>,
    /// A convolution of the input where the shape changes.
    shortcut: Option<Conv<B>>,
}

impl<B: Kernels> ResNet<B> {
    /// Takes the tensors of the network.
    ///
    /// # Errors
    /// [`WeightsError`] names the tensor that does not fit.
    pub(super) fn take(builder: &mut Builder<'_, '_, B>, shape: &Shape, classes: usize) -> Result<Self, WeightsError> {
        let stem = filter(3, STEM_CHANNELS, 7, 2);
        let stem = builder.conv_norm(("conv1", "bn1"), stem, shape.epsilon)?;
        let pool = builder.max_pool("maxpool", 3, 2, 1)?;
        let mut blocks = Vec::new();
        let mut channels = STEM_CHANNELS;
        for (stage, (depth, width)) in shape.depths.into_iter().zip(shape.widths).enumerate() {
            for index in 0..depth {
                let stride = if stage > 0 && index == 0 { 2 } else { 1 };
                let name = format!("layer{}.{index}", stage + 1);
                blocks.push(Block::take(builder, &name, shape, [channels, width], stride)?);
                channels = width * shape.block.expansion();
            }
        }
        let classifier = classifier(builder, "fc", [channels, classes])?;
        Ok(ResNet { stem, pool, blocks, classifier })
    }

    /// Takes normalised pixels `[batch, rows, columns, 3]`.
    pub(super) fn forward(&self, x: Tensor<B, 4>) -> Output<B> {
        let x = self.pool.forward(self.stem.forward(x));
        let features = global_average(self.blocks.iter().fold(x, |x, block| block.forward(x)));
        Output { logits: self.classifier.forward(features.clone()), features }
    }
}

impl<B: Kernels> Block<B> {
    fn take(
        builder: &mut Builder<'_, '_, B>,
        name: &str,
        shape: &Shape,
        [input, width]: [usize; 2],
        stride: usize,
    ) -> Result<Self, WeightsError> {
        let output = width * shape.block.expansion();
        let specs = match shape.block {
            BlockKind::Basic => vec![filter(input, width, 3, stride), filter(width, output, 3, 1)],
            BlockKind::Bottleneck => {
                vec![filter(input, width, 1, 1), filter(width, width, 3, stride), filter(width, output, 1, 1)]
            }
        };
        let size = builder.size;
        let mut first = Vec::new();
        for (index, spec) in specs.iter().enumerate() {
            let names = (format!("{name}.conv{}", index + 1), format!("{name}.bn{}", index + 1));
            first.push(builder.conv_norm((&names.0, &names.1), *spec, shape.epsilon)?);
        }
        let last = first.pop().expect("a block has convolutions");
        let changes = stride != 1 || input != output;
        let shortcut = changes.then(|| {
            builder.size = size;
            let spec = ConvSpec { activation: Act::None, ..filter(input, output, 1, stride) };
            let names = (format!("{name}.downsample.0"), format!("{name}.downsample.1"));
            builder.conv_norm((&names.0, &names.1), spec, shape.epsilon)
        });
        Ok(Block { first, last, shortcut: shortcut.transpose()? })
    }

    fn forward(&self, input: Tensor<B, 4>) -> Tensor<B, 4> {
        let x = self.first.iter().fold(input.clone(), |x, conv| conv.forward(x));
        let shortcut = match &self.shortcut {
            Some(conv) => conv.forward(input),
            None => input,
        };
        self.last.forward_add(x, shortcut)
    }
}

/// A convolution with half its kernel as padding and ReLU after it.
fn filter(input: usize, output: usize, kernel: usize, stride: usize) -> ConvSpec {
    ConvSpec { input, output, kernel, stride, groups: 1, padding: Padding::Each(kernel / 2), activation: Act::Relu }
}
