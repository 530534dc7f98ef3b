//! ConvNeXt, with the tensor names of torchvision or timm.
//!
//! Source: Liu et al., "A ConvNet for the 2020s", 2022, figure 4. The layer scale, which multiplies the channels that a
//! block adds, is folded into the linear layer before it.

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use super::variant::{Variant, VariantError};
use super::{Output, scheme};
use crate::model::layers::{Act, Builder, Conv, ConvSpec, Kernels, LayerNorm, Linear, Padding, global_average};
use crate::model::weights::{WeightsError, check_finite};

const WIDTHS: [usize; 4] = [96, 192, 384, 768];
const LAYER_NORM_EPSILON: f64 = 1e-6;
/// Factor by which a block widens its channels.
const EXPANSION: usize = 4;

/// The shape of a network.
#[derive(Debug)]
pub(super) struct Shape {
    depths: [usize; 4],
    widths: [usize; 4],
}

impl Shape {
    /// # Errors
    /// [`VariantError`] names a field that does not fit.
    pub(super) fn new(depths: [usize; 4], variant: &Variant) -> Result<Self, VariantError> {
        variant.allow(&["depths", "widths"])?;
        Ok(Shape { depths: variant.depths_or(depths)?, widths: variant.widths_or(WIDTHS)? })
    }
}

/// Who named the tensors.
#[derive(Clone, Copy, Debug)]
enum Scheme {
    Torchvision,
    Timm,
}

const SCHEMES: [(&str, Scheme); 2] = [("features.", Scheme::Torchvision), ("stages.", Scheme::Timm)];

/// The network on a device.
#[derive(Debug)]
pub(in crate::model) struct ConvNext<B: Backend> {
    stem: Conv<B>,
    stem_norm: LayerNorm<B>,
    stages: Vec<Stage<B>>,
    norm: LayerNorm<B>,
    classifier: Linear<B>,
}

#[derive(Debug)]
struct Stage<B: Backend> {
    /// Norm and convolution that halve the picture; not in the first stage.
    shrink: Option<(LayerNorm<B>, Conv<B>)>,
    blocks: Vec<Block<B>>,
}

#[derive(Debug)]
struct Block<B: Backend> {
    depthwise: Conv<B>,
    norm: LayerNorm<B>,
    expand: Linear<B>,
    /// With the layer scale folded in.
    project: Linear<B>,
}

impl<B: Kernels> ConvNext<B> {
    /// Takes the tensors of the network.
    ///
    /// # Errors
    /// [`WeightsError`] names the tensor that does not fit.
    pub(super) fn take(builder: &mut Builder<'_, '_, B>, shape: &Shape, classes: usize) -> Result<Self, WeightsError> {
        let scheme = scheme(builder.weights, &SCHEMES);
        let [first, .., last] = shape.widths;
        let (stem, stem_norm) = scheme.stem();
        let stem = builder.conv(stem, patch(3, first, 4))?;
        let stem_norm = builder.layer_norm(stem_norm, first, LAYER_NORM_EPSILON)?;
        let mut stages = Vec::new();
        for (index, width) in shape.widths.into_iter().enumerate() {
            let before = index.checked_sub(1).map(|before| shape.widths[before]);
            let shrink = before.map(|before| -> Result<_, WeightsError> {
                let (norm, conv) = scheme.shrink(index);
                let norm = builder.layer_norm(&norm, before, LAYER_NORM_EPSILON)?;
                Ok((norm, builder.conv(&conv, patch(before, width, 2))?))
            });
            let shrink = shrink.transpose()?;
            let blocks = (0..shape.depths[index]).map(|block| Block::take(builder, &scheme.block(index, block), width));
            stages.push(Stage { shrink, blocks: blocks.collect::<Result<_, _>>()? });
        }
        let (norm, classifier) = scheme.head();
        let norm = builder.layer_norm(norm, last, LAYER_NORM_EPSILON)?;
        let classifier = builder.linear(classifier, [last, classes], Act::None)?;
        Ok(ConvNext { stem, stem_norm, stages, norm, classifier })
    }

    /// Takes normalised pixels `[batch, rows, columns, 3]`.
    pub(super) fn forward(&self, x: Tensor<B, 4>) -> Output<B> {
        let x = self.stem_norm.forward(self.stem.forward(x));
        let x = self.stages.iter().fold(x, |x, stage| {
            let x = match &stage.shrink {
                Some((norm, conv)) => conv.forward(norm.forward(x)),
                None => x,
            };
            stage.blocks.iter().fold(x, |x, block| block.forward(x))
        });
        let features = self.norm.forward(global_average(x));
        Output { logits: self.classifier.forward(features.clone()), features }
    }
}

impl<B: Kernels> Block<B> {
    fn take(builder: &mut Builder<'_, '_, B>, names: &BlockNames, width: usize) -> Result<Self, WeightsError> {
        let padding = Padding::Each(3);
        let depthwise = ConvSpec { kernel: 7, stride: 1, groups: width, padding, ..patch(width, width, 7) };
        let wide = width * EXPANSION;
        Ok(Block {
            depthwise: builder.conv(&names.depthwise, depthwise)?,
            norm: builder.layer_norm(&names.norm, width, LAYER_NORM_EPSILON)?,
            expand: builder.linear(&names.expand, [width, wide], Act::Gelu)?,
            project: scaled_linear(builder, names, [wide, width])?,
        })
    }

    fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        let wide = self.expand.forward(self.norm.forward(self.depthwise.forward(x.clone())));
        self.project.forward_add(wide, x)
    }
}

/// The linear layer that ends a block, its outputs multiplied by the layer scale.
fn scaled_linear<B: Kernels>(
    builder: &mut Builder<'_, '_, B>,
    names: &BlockNames,
    [inputs, outputs]: [usize; 2],
) -> Result<Linear<B>, WeightsError> {
    let mut weight = builder.weights.take(&format!("{}.weight", names.project), &[outputs, inputs])?;
    let mut bias = builder.weights.take(&format!("{}.bias", names.project), &[outputs])?;
    let scale = match names.scheme {
        Scheme::Torchvision => builder.weights.take(&names.scale, &[outputs, 1, 1])?,
        Scheme::Timm => builder.weights.take(&names.scale, &[outputs])?,
    };
    for ((row, bias), scale) in weight.chunks_exact_mut(inputs).zip(&mut bias).zip(scale) {
        row.iter_mut().for_each(|weight| *weight *= scale);
        *bias *= scale;
    }
    check_finite(&names.scale, &weight)?;
    check_finite(&names.scale, &bias)?;
    Ok(builder.linear_from(&weight, bias, Act::None))
}

/// A convolution whose kernel does not overlap itself.
fn patch(input: usize, output: usize, side: usize) -> ConvSpec {
    let (padding, activation) = (Padding::Each(0), Act::None);
    ConvSpec { input, output, kernel: side, stride: side, groups: 1, padding, activation }
}

/// Names of a block's layers.
struct BlockNames {
    scheme: Scheme,
    depthwise: String,
    norm: String,
    expand: String,
    project: String,
    scale: String,
}

impl Scheme {
    /// Convolution and norm.
    fn stem(self) -> (&'static str, &'static str) {
        match self {
            Scheme::Torchvision => ("features.0.0", "features.0.1"),
            Scheme::Timm => ("stem.0", "stem.1"),
        }
    }

    /// Norm and convolution before the stage.
    fn shrink(self, stage: usize) -> (String, String) {
        match self {
            Scheme::Torchvision => (format!("features.{}.0", 2 * stage), format!("features.{}.1", 2 * stage)),
            Scheme::Timm => (format!("stages.{stage}.downsample.0"), format!("stages.{stage}.downsample.1")),
        }
    }

    fn block(self, stage: usize, block: usize) -> BlockNames {
        let (prefix, [depthwise, norm, expand, project, scale]) = match self {
            Scheme::Torchvision => (
                format!("features.{}.{block}", 2 * stage + 1),
                ["block.0", "block.2", "block.3", "block.5", "layer_scale"],
            ),
            Scheme::Timm => {
                (format!("stages.{stage}.blocks.{block}"), ["conv_dw", "norm", "mlp.fc1", "mlp.fc2", "gamma"])
            }
        };
        let name = |part| format!("{prefix}.{part}");
        BlockNames {
            scheme: self,
            depthwise: name(depthwise),
            norm: name(norm),
            expand: name(expand),
            project: name(project),
            scale: name(scale),
        }
    }

    /// Norm and linear layer.
    fn head(self) -> (&'static str, &'static str) {
        match self {
            Scheme::Torchvision => ("classifier.0", "classifier.2"),
            Scheme::Timm => ("head.norm", "head.fc"),
        }
    }
}
