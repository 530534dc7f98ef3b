//! Networks of inverted residuals: what EfficientNet-Lite and MobileNetV2 are made of.
//!
//! A block widens its input, filters each channel by itself and narrows it again; ReLU6 follows all but the last, batch
//! norm each. Source: Sandler et al., "MobileNetV2", 2018, section 3.

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use super::variant::{self, Variant, VariantError};
use super::{Output, scheme};
use crate::model::layers::{Act, Builder, Conv, ConvSpec, Kernels, Linear, Padding, global_average};
use crate::model::weights::WeightsError;

/// Channel counts are multiples of this.
const CHANNEL_STEP: usize = 8;

/// The shape of a network.
#[derive(Debug)]
pub(super) struct Shape {
    pub(super) stem: usize,
    pub(super) stages: Vec<Stage>,
    pub(super) head: usize,
    pub(super) epsilon: f64,
    pub(super) padding: variant::Padding,
    /// Naming schemes, each with what its tensors' names begin with.
    pub(super) schemes: [(&'static str, Scheme); 2],
}

/// A run of blocks with the same shape, of which only the first has the stride.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stage {
    pub(super) repeats: usize,
    pub(super) kernel: usize,
    pub(super) stride: usize,
    /// Factor by which the first convolution of a block widens it; there is none for a factor of 1.
    pub(super) expansion: usize,
    pub(super) output: usize,
}

/// What a width other than 1 does to the first and last layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ends {
    /// Nothing.
    Fixed,
    /// The same as to all, but a head is not narrowed.
    Scaled,
}

/// Who named the tensors.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scheme {
    /// The package `efficientnet-lite-pytorch`.
    Package,
    Timm,
    Torchvision,
}

/// The network on a device.
#[derive(Debug)]
pub(in crate::model) struct Mobile<B: Backend> {
    stem: Conv<B>,
    blocks: Vec<Block<B>>,
    head: Conv<B>,
    classifier: Linear<B>,
}

#[derive(Debug)]
struct Block<B: Backend> {
    expand: Option<Conv<B>>,
    depthwise: Conv<B>,
    project: Conv<B>,
    residual: bool,
}

/// A convolution and its batch norm, of which a scheme knows the names.
#[derive(Clone, Copy, Debug)]
enum Part {
    Stem,
    Expand(Place),
    Depthwise(Place),
    Project(Place),
    /// After so many blocks.
    Head(usize),
}

/// Where a block is.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// Number of the block in the network.
    block: usize,
    stage: usize,
    /// Number of the block in its stage.
    repeat: usize,
    expands: bool,
}

/// Fields of a `variant` that these networks know.
const FIELDS: [&str; 4] = ["depth_multiplier", "width_multiplier", "batch_norm_epsilon", "padding"];

impl Shape {
    /// Applies a manifest's `variant`: `usual` is the network at the width and depth of 1, `[width, depth]` the
    /// architecture's own. Where `ends` are fixed, the stem, the head and the depth of the first and last stage stay.
    pub(super) fn scaled(
        usual: Shape,
        [width, depth]: [f64; 2],
        ends: Ends,
        variant: &Variant,
    ) -> Result<Shape, VariantError> {
        variant.allow(&FIELDS)?;
        let width = variant.width_multiplier_or(width)?;
        let depth = variant.depth_multiplier_or(depth)?;
        let last = usual.stages.len() - 1;
        let stages = usual.stages.iter().enumerate().map(|(index, stage)| {
            let fixed = ends == Ends::Fixed && (index == 0 || index == last);
            let repeats = if fixed { stage.repeats } else { to_count((stage.repeats as f64 * depth).ceil()) };
            Stage { repeats, output: channels(stage.output, width), ..*stage }
        });
        Ok(Shape {
            stages: stages.collect(),
            stem: if ends == Ends::Fixed { usual.stem } else { channels(usual.stem, width) },
            head: if ends == Ends::Fixed { usual.head } else { channels(usual.head, width.max(1.0)) },
            epsilon: variant.batch_norm_epsilon_or(usual.epsilon)?,
            padding: variant.padding.unwrap_or(usual.padding),
            schemes: usual.schemes,
        })
    }
}

/// Channels of a layer: `base` times the width, as TensorFlow's `make_divisible` rounds it.
fn channels(base: usize, width: f64) -> usize {
    let scaled = base as f64 * width;
    let rounded = (to_count(scaled + CHANNEL_STEP as f64 / 2.0) / CHANNEL_STEP * CHANNEL_STEP).max(CHANNEL_STEP);
    // Rounding must not take more than a tenth away.
    if (rounded as f64) < 0.9 * scaled { rounded + CHANNEL_STEP } else { rounded }
}

#[allow(clippy::cast_possible_truncation, reason = "whole, and small: multipliers are bounded")]
fn to_count(value: f64) -> usize {
    value as usize
}

impl<B: Kernels> Mobile<B> {
    /// Takes the tensors of the network.
    ///
    /// # Errors
    /// [`WeightsError`] names the tensor that does not fit.
    pub(super) fn take(builder: &mut Builder<'_, '_, B>, shape: &Shape, classes: usize) -> Result<Self, WeightsError> {
        let mut taker = Taker { scheme: scheme(builder.weights, &shape.schemes), builder, shape };
        let relu6 = |spec| ConvSpec { activation: Act::Relu6, ..spec };
        let stem = ConvSpec { stride: 2, ..taker.filter(3, shape.stem, 3) };
        let stem = taker.conv(Part::Stem, relu6(stem))?;
        let mut blocks = Vec::new();
        let mut channels = shape.stem;
        for (index, stage) in shape.stages.iter().enumerate() {
            for repeat in 0..stage.repeats {
                let place = Place { block: blocks.len(), stage: index, repeat, expands: stage.expansion > 1 };
                blocks.push(taker.block(place, channels, stage)?);
                channels = stage.output;
            }
        }
        let head = relu6(taker.filter(channels, shape.head, 1));
        let head = taker.conv(Part::Head(blocks.len()), head)?;
        let classifier = taker.builder.linear(taker.scheme.classifier(), [shape.head, classes], Act::None)?;
        Ok(Mobile { stem, blocks, head, classifier })
    }

    /// Takes normalised pixels `[batch, rows, columns, 3]`.
    pub(super) fn forward(&self, x: Tensor<B, 4>) -> Output<B> {
        let x = self.blocks.iter().fold(self.stem.forward(x), |x, block| block.forward(x));
        let features = global_average(self.head.forward(x));
        Output { logits: self.classifier.forward(features.clone()), features }
    }
}

impl<B: Kernels> Block<B> {
    fn forward(&self, input: Tensor<B, 4>) -> Tensor<B, 4> {
        let wide = match &self.expand {
            Some(expand) => expand.forward(input.clone()),
            None => input.clone(),
        };
        let filtered = self.depthwise.forward(wide);
        if self.residual { self.project.forward_add(filtered, input) } else { self.project.forward(filtered) }
    }
}

/// Takes convolutions by their part in the network.
struct Taker<'t, 'w, 'a, B: Kernels> {
    builder: &'t mut Builder<'w, 'a, B>,
    shape: &'t Shape,
    scheme: Scheme,
}

impl<B: Kernels> Taker<'_, '_, '_, B> {
    fn conv(&mut self, part: Part, spec: ConvSpec) -> Result<Conv<B>, WeightsError> {
        let (conv, norm) = self.scheme.names(part);
        self.builder.conv_norm((&conv, &norm), spec, self.shape.epsilon)
    }

    fn block(&mut self, place: Place, input: usize, stage: &Stage) -> Result<Block<B>, WeightsError> {
        let wide = input * stage.expansion;
        let stride = if place.repeat == 0 { stage.stride } else { 1 };
        let expand = ConvSpec { activation: Act::Relu6, ..self.filter(input, wide, 1) };
        let depthwise =
            ConvSpec { stride, groups: wide, activation: Act::Relu6, ..self.filter(wide, wide, stage.kernel) };
        Ok(Block {
            expand: place.expands.then(|| self.conv(Part::Expand(place), expand)).transpose()?,
            depthwise: self.conv(Part::Depthwise(place), depthwise)?,
            project: self.conv(Part::Project(place), self.filter(wide, stage.output, 1))?,
            residual: stride == 1 && input == stage.output,
        })
    }

    /// A convolution of stride 1 without activation.
    fn filter(&self, input: usize, output: usize, kernel: usize) -> ConvSpec {
        let padding = match self.shape.padding {
            variant::Padding::Same => Padding::Same,
            variant::Padding::Symmetric => Padding::Each(kernel / 2),
        };
        ConvSpec { input, output, kernel, stride: 1, groups: 1, padding, activation: Act::None }
    }
}

impl Scheme {
    /// Names of the convolution and of the batch norm.
    fn names(self, part: Part) -> (String, String) {
        let (prefix, conv, norm) = match self {
            Scheme::Package => package(part),
            Scheme::Timm => timm(part),
            Scheme::Torchvision => torchvision(part),
        };
        (format!("{prefix}{conv}"), format!("{prefix}{norm}"))
    }

    fn classifier(self) -> &'static str {
        match self {
            Scheme::Package => "_fc",
            Scheme::Timm => "classifier",
            Scheme::Torchvision => "classifier.1",
        }
    }
}

type Names = (String, &'static str, &'static str);

fn package(part: Part) -> Names {
    let within = |place: Place| format!("_blocks.{}.", place.block);
    match part {
        Part::Stem => (String::new(), "_conv_stem", "_bn0"),
        Part::Expand(place) => (within(place), "_expand_conv", "_bn0"),
        Part::Depthwise(place) => (within(place), "_depthwise_conv", "_bn1"),
        Part::Project(place) => (within(place), "_project_conv", "_bn2"),
        Part::Head(_) => (String::new(), "_conv_head", "_bn1"),
    }
}

fn timm(part: Part) -> Names {
    let within = |place: Place| format!("blocks.{}.{}.", place.stage, place.repeat);
    match part {
        Part::Stem => (String::new(), "conv_stem", "bn1"),
        Part::Expand(place) => (within(place), "conv_pw", "bn1"),
        Part::Depthwise(place) if place.expands => (within(place), "conv_dw", "bn2"),
        Part::Depthwise(place) => (within(place), "conv_dw", "bn1"),
        Part::Project(place) if place.expands => (within(place), "conv_pwl", "bn3"),
        Part::Project(place) => (within(place), "conv_pw", "bn2"),
        Part::Head(_) => (String::new(), "conv_head", "bn2"),
    }
}

fn torchvision(part: Part) -> Names {
    let within = |place: Place| format!("features.{}.conv.", place.block + 1);
    match part {
        Part::Stem => ("features.0.".to_owned(), "0", "1"),
        Part::Expand(place) => (within(place), "0.0", "0.1"),
        Part::Depthwise(place) if place.expands => (within(place), "1.0", "1.1"),
        Part::Depthwise(place) => (within(place), "0.0", "0.1"),
        Part::Project(place) if place.expands => (within(place), "2", "3"),
        Part::Project(place) => (within(place), "1", "2"),
        Part::Head(blocks) => (format!("features.{}.", blocks + 1), "0", "1"),
    }
}
