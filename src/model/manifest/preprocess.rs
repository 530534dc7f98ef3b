//! `preprocess` in `model.json`: how an upright image becomes the network's input.

use serde::Deserialize;

use super::{InputSize, MAX_SIDE, ManifestError, require};
use crate::image::{Filter, Resize};

/// Longest short side that pictures are scaled to before they are cut, in pixels.
const MAX_SHORT_SIDE: u32 = 4 * MAX_SIDE;

/// The training code's preprocessing: a part of the picture, scaled, then `(x − mean) / std` for each channel. Exactly one
/// of `crop_fraction` and `resize` says which part.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PreprocessSpec {
    /// TensorFlow's EfficientNet: the central square with this share of the short side, in `(0, 1]`.
    #[serde(default)]
    pub crop_fraction: Option<f64>,
    /// torchvision, timm and others.
    #[serde(default)]
    pub resize: Option<ResizeSpec>,
    /// Filter of the resize.
    pub filter: Filter,
    /// Red, green, blue, in the units of 8-bit pixels.
    pub mean: [f32; 3],
    /// Red, green, blue, in the units of 8-bit pixels.
    pub std: [f32; 3],
}

/// The least share of a picture's short side that makes sense: a twentieth.
const MIN_FRACTION: f64 = 0.05;

/// What of the picture becomes the input.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResizeSpec {
    /// torchvision's `Resize(N)` and `CenterCrop`: the short side becomes N pixels, then the middle is cut out.
    ShortSide(u32),
    /// timm's `crop_pct`, in `(0, 1]`: as `short_side` with the input's side divided by it, rounded down. For square inputs.
    CropPct(f64),
    /// All of it, whatever its shape.
    Squash,
}

impl PreprocessSpec {
    /// What of a picture becomes an input of this size.
    pub(super) fn resize(&self, input: InputSize) -> Resize {
        match (self.resize, self.crop_fraction) {
            (Some(ResizeSpec::ShortSide(pixels)), _) => Resize::ShortSide(pixels),
            (Some(ResizeSpec::CropPct(share)), _) => {
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a side, checked")]
                let pixels = (f64::from(input.width) / share).floor() as u32;
                Resize::ShortSide(pixels)
            }
            (Some(ResizeSpec::Squash), _) | (None, None) => Resize::Squash,
            (None, Some(fraction)) => Resize::CropFraction(fraction),
        }
    }

    pub(super) fn check(&self, input: InputSize) -> Result<(), ManifestError> {
        let PreprocessSpec { crop_fraction, resize, filter: _, mean, std } = *self;
        let InputSize { width, height } = input;
        require(crop_fraction.is_some() != resize.is_some(), "preprocess", || {
            "takes either `resize` or `crop_fraction`".to_owned()
        })?;
        let share = |field: &str, share: f64| {
            require(share > 0.0 && share <= 1.0, field, || format!("is {share}, not above 0 and at most 1"))
        };
        let fraction = crop_fraction.unwrap_or(1.0);
        share("preprocess.crop_fraction", fraction)?;
        require(fraction >= MIN_FRACTION, "preprocess.crop_fraction", || {
            format!("is {fraction}: less than {MIN_FRACTION} of the picture")
        })?;
        match resize {
            Some(ResizeSpec::ShortSide(pixels)) => {
                let fits = (width.max(height)..=MAX_SHORT_SIDE).contains(&pixels);
                require(fits, "preprocess.resize.short_side", || {
                    format!("is {pixels}, not the input's longer side to {MAX_SHORT_SIDE}")
                })?;
            }
            Some(ResizeSpec::CropPct(percent)) => {
                share("preprocess.resize.crop_pct", percent)?;
                require(width == height, "preprocess.resize.crop_pct", || {
                    "is for square inputs: give `short_side`".to_owned()
                })?;
                require(f64::from(width) / percent <= f64::from(MAX_SHORT_SIDE), "preprocess.resize.crop_pct", || {
                    format!("is {percent}: a short side of over {MAX_SHORT_SIDE} pixels")
                })?;
            }
            Some(ResizeSpec::Squash) | None => {}
        }
        require(mean.iter().all(|x| x.is_finite()), "preprocess.mean", || "is not finite".to_owned())?;
        require(std.iter().all(|x| x.is_normal() && *x > 0.0), "preprocess.std", || "is not above 0".to_owned())
    }
}
