//! How a network departs from its architecture's usual shape: the `variant` of a `model.json`.
//!
//! Which fields an architecture knows is its own matter; a field that it does not know, or a value out of range, is an
//! error that names the field.

use serde::Deserialize;

/// How a network departs from its architecture's usual shape. What is missing is as usual.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Variant {
    /// ResNet, ConvNeXt: blocks of each of the four stages.
    pub depths: Option<Vec<usize>>,
    /// ResNet, ConvNeXt: channels of each of the four stages; in a ResNet with bottlenecks, those inside of them.
    pub widths: Option<Vec<usize>>,
    /// EfficientNet-Lite, MobileNetV2: factor of the blocks of each stage.
    pub depth_multiplier: Option<f64>,
    /// EfficientNet-Lite, MobileNetV2: factor of the channels of each stage.
    pub width_multiplier: Option<f64>,
    /// ResNet, EfficientNet-Lite, MobileNetV2: what a batch norm adds to a variance.
    pub batch_norm_epsilon: Option<f64>,
    /// EfficientNet-Lite, MobileNetV2: where a convolution pads.
    pub padding: Option<Padding>,
    /// Vision transformer: blocks.
    pub depth: Option<usize>,
    /// Vision transformer: channels of a token.
    pub width: Option<usize>,
    /// Vision transformer: heads of the attention; they divide the width.
    pub heads: Option<usize>,
    /// Vision transformer: channels inside of a block's second half.
    pub mlp: Option<usize>,
    /// Vision transformer: side of a patch in pixels; it divides the input's sides.
    pub patch: Option<usize>,
}

/// Where a convolution of stride 2 pads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Padding {
    /// As TensorFlow's `SAME`: as much as the picture's size asks for, the odd pixel below and on the right.
    Same,
    /// As PyTorch: half the kernel on every side.
    Symmetric,
}

/// A field of a `variant` that does not fit the architecture.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::model) struct VariantError {
    /// Path in the manifest, such as `variant.heads`.
    pub(in crate::model) field: String,
    /// What is wrong with it.
    pub(in crate::model) problem: String,
}

/// Most blocks a stage.
const MAX_DEPTH: usize = 256;
/// Most channels of a layer.
const MAX_WIDTH: usize = 16_384;
const MULTIPLIERS: std::ops::RangeInclusive<f64> = 0.01..=16.0;
const MAX_EPSILON: f64 = 0.1;

impl Variant {
    /// Refuses fields that this architecture has no use for.
    pub(super) fn allow(&self, fields: &[&str]) -> Result<(), VariantError> {
        let given = [
            ("depths", self.depths.is_some()),
            ("widths", self.widths.is_some()),
            ("depth_multiplier", self.depth_multiplier.is_some()),
            ("width_multiplier", self.width_multiplier.is_some()),
            ("batch_norm_epsilon", self.batch_norm_epsilon.is_some()),
            ("padding", self.padding.is_some()),
            ("depth", self.depth.is_some()),
            ("width", self.width.is_some()),
            ("heads", self.heads.is_some()),
            ("mlp", self.mlp.is_some()),
            ("patch", self.patch.is_some()),
        ];
        match given.iter().find(|(field, given)| *given && !fields.contains(field)) {
            Some((field, _)) => {
                Err(wrong(field, format!("means nothing to this architecture: it knows {}", fields.join(", "))))
            }
            None => Ok(()),
        }
    }

    pub(super) fn depths_or(&self, usual: [usize; 4]) -> Result<[usize; 4], VariantError> {
        four("depths", self.depths.as_deref(), usual, MAX_DEPTH)
    }

    pub(super) fn widths_or(&self, usual: [usize; 4]) -> Result<[usize; 4], VariantError> {
        four("widths", self.widths.as_deref(), usual, MAX_WIDTH)
    }

    pub(super) fn depth_multiplier_or(&self, usual: f64) -> Result<f64, VariantError> {
        multiplier("depth_multiplier", self.depth_multiplier.unwrap_or(usual))
    }

    pub(super) fn width_multiplier_or(&self, usual: f64) -> Result<f64, VariantError> {
        multiplier("width_multiplier", self.width_multiplier.unwrap_or(usual))
    }

    pub(super) fn batch_norm_epsilon_or(&self, usual: f64) -> Result<f64, VariantError> {
        let epsilon = self.batch_norm_epsilon.unwrap_or(usual);
        require(epsilon > 0.0 && epsilon <= MAX_EPSILON, "batch_norm_epsilon", || {
            format!("is {epsilon}, not above 0 and at most {MAX_EPSILON}")
        })?;
        Ok(epsilon)
    }

    pub(super) fn depth_or(&self, usual: usize) -> Result<usize, VariantError> {
        count("depth", self.depth.unwrap_or(usual), MAX_DEPTH)
    }

    pub(super) fn width_or(&self, usual: usize) -> Result<usize, VariantError> {
        count("width", self.width.unwrap_or(usual), MAX_WIDTH)
    }

    pub(super) fn mlp_or(&self, usual: usize) -> Result<usize, VariantError> {
        count("mlp", self.mlp.unwrap_or(usual), MAX_WIDTH)
    }

    /// Heads that divide `width`.
    pub(super) fn heads_or(&self, usual: usize, width: usize) -> Result<usize, VariantError> {
        let heads = count("heads", self.heads.unwrap_or(usual), MAX_WIDTH)?;
        require(width.is_multiple_of(heads), "heads", || {
            format!("is {heads}, which does not divide the width {width}")
        })?;
        Ok(heads)
    }

    /// A side of the patches that divides the sides of the input, `size`.
    pub(super) fn patch_or(&self, usual: usize, size: [usize; 2]) -> Result<usize, VariantError> {
        let patch = count("patch", self.patch.unwrap_or(usual), MAX_WIDTH)?;
        require(size.iter().all(|side| side.is_multiple_of(patch)), "patch", || {
            format!("is {patch}, which does not divide the input's {} × {}", size[1], size[0])
        })?;
        Ok(patch)
    }
}

fn four(field: &str, given: Option<&[usize]>, usual: [usize; 4], limit: usize) -> Result<[usize; 4], VariantError> {
    let Some(given) = given else { return Ok(usual) };
    let numbers = <[usize; 4]>::try_from(given)
        .map_err(|_| wrong(field, format!("holds {} numbers, not one for each of 4 stages", given.len())))?;
    for number in numbers {
        count(field, number, limit)?;
    }
    Ok(numbers)
}

fn count(field: &str, value: usize, limit: usize) -> Result<usize, VariantError> {
    require((1..=limit).contains(&value), field, || format!("holds {value}, not 1 to {limit}"))?;
    Ok(value)
}

fn multiplier(field: &str, value: f64) -> Result<f64, VariantError> {
    require(MULTIPLIERS.contains(&value), field, || {
        format!("is {value}, not {} to {}", MULTIPLIERS.start(), MULTIPLIERS.end())
    })?;
    Ok(value)
}

fn require(holds: bool, field: &str, problem: impl FnOnce() -> String) -> Result<(), VariantError> {
    if holds { Ok(()) } else { Err(wrong(field, problem())) }
}

fn wrong(field: &str, problem: String) -> VariantError {
    VariantError { field: format!("variant.{field}"), problem }
}
