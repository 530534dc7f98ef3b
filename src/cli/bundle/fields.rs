//! The fields of `model.json`, as people type them.

use std::path::Path;

use anyhow::{Context, bail, ensure};
use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};

/// ImageNet's mean and standard deviation as PyTorch's examples give them, of values between 0 and 1.
const IMAGENET: ([f64; 3], [f64; 3]) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
/// Values between −1 and 1.
const INCEPTION: ([f64; 3], [f64; 3]) = ([0.5; 3], [0.5; 3]);
/// TensorFlow's EfficientNet-Lite.
const TENSORFLOW_LITE: ([f64; 3], [f64; 3]) = ([127.0 / 255.0; 3], [128.0 / 255.0; 3]);

/// How the training code prepared its images when it validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Preset {
    /// Short side to 256 of 224, bilinear, central crop, ImageNet's mean and std
    Torchvision,
    /// crop_pct 0.875, bicubic, ImageNet's mean and std
    Timm,
    /// crop_pct 0.9, bicubic, mean and std 0.5 (timm's ViT)
    TimmInception,
    /// Central crop of size / (size + 32), bicubic, (x - 127) / 128 (EfficientNet-Lite)
    TensorflowLite,
}

#[derive(Args, Debug)]
pub(super) struct FieldArgs {
    /// Name of the model in results [default: the directory's]
    #[arg(long, value_name = "TEXT", help_heading = "Model")]
    name: Option<String>,
    /// efficientnet-lite0 to -lite4, mobilenet-v2, resnet-18, -34, -50 or -101, convnext-tiny or -small, vit-s-16 or vit-b-16
    #[arg(long, value_name = "NAME", required_unless_present = "check", help_heading = "Model")]
    architecture: Option<String>,
    /// JSON with what departs from the architecture: {"depths": […], "widths": […]}
    #[arg(long, value_name = "JSON", help_heading = "Model")]
    variant: Option<String>,
    /// What turns logits into scores: softmax for one of many, sigmoid for any of many
    #[arg(long, value_name = "NAME", default_value = "softmax", value_parser = ["softmax", "sigmoid"], help_heading = "Model")]
    activation: String,
    /// Put the features that the last layer reads into results: raw, or normalized to length 1
    #[arg(long, value_name = "KIND", value_parser = ["raw", "normalized"], help_heading = "Model")]
    embedding: Option<String>,
    /// Numbers to compute in on a GPU: f32, f16 or bf16
    #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = ["f32", "f16", "bf16"], help_heading = "Model")]
    precision: String,
    /// Largest error of a golden logit, relative to the largest one [default: by precision, 0.001 to 0.05]
    #[arg(long, value_name = "SHARE", help_heading = "Model")]
    tolerance: Option<f64>,
    /// How the training code prepared its validation images; the options below replace parts of it
    #[arg(long, value_enum, value_name = "PRESET", required_unless_present = "check", help_heading = "Preprocessing")]
    preprocess: Option<Preset>,
    /// Input size: 224, or WIDTHxHEIGHT [default: the architecture's]
    #[arg(long, value_name = "PIXELS", help_heading = "Preprocessing")]
    input: Option<String>,
    /// What of the picture is used: short-side:256, crop-pct:0.95, crop-fraction:0.875 or squash
    #[arg(long, value_name = "KIND", help_heading = "Preprocessing")]
    resize: Option<String>,
    /// How pixels are mixed
    #[arg(long, value_name = "NAME", value_parser = ["bilinear", "bicubic", "lanczos"], help_heading = "Preprocessing")]
    filter: Option<String>,
    /// Mean of red, green, blue, of values between 0 and 1, as in transforms.Normalize
    #[arg(long, value_name = "R,G,B", help_heading = "Preprocessing")]
    mean: Option<String>,
    /// Standard deviation of red, green, blue, likewise
    #[arg(long, value_name = "R,G,B", help_heading = "Preprocessing")]
    std: Option<String>,
}

impl FieldArgs {
    /// The fields; `model.json`'s own checks see to their values.
    pub(super) fn json(&self, out: &Path) -> anyhow::Result<Map<String, Value>> {
        let architecture = self.architecture.as_deref().context("--architecture is missing, such as resnet-50")?;
        let preset = self.preprocess.context(
            "--preprocess is missing: torchvision, timm, timm-inception or tensorflow-lite, whichever the model was trained \
             with",
        )?;
        let directory = out.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = self.name.clone().or(directory).context("--name is missing")?;
        let (width, height) = match &self.input {
            Some(text) => size(text)?,
            None => (default_input(architecture), default_input(architecture)),
        };
        let (resize, filter, (mean, std)) = preset.parts(width.max(height));
        let (resize_field, resize) = self.resize.as_deref().map_or(Ok(resize), resize_field)?;
        let mean = self.mean.as_deref().map_or(Ok(mean), |text| colours("--mean", text))?;
        let std = self.std.as_deref().map_or(Ok(std), |text| colours("--std", text))?;
        let mut fields = json!({
            "name": name,
            "architecture": architecture,
            "input": {"width": width, "height": height},
            "preprocess": {
                resize_field: resize,
                "filter": self.filter.as_deref().unwrap_or(filter),
                "mean": bits(mean),
                "std": bits(std),
            },
            "activation": self.activation,
            "golden": {"tolerance": self.tolerance.unwrap_or(default_tolerance(&self.precision))},
        });
        if let Some(variant) = &self.variant {
            fields["variant"] = serde_json::from_str(variant).context("--variant takes JSON")?;
        }
        if let Some(kind) = &self.embedding {
            fields["embedding"] = json!({"normalize": kind == "normalized"});
        }
        if self.precision != "f32" {
            fields["precision"] = json!(self.precision);
        }
        let Value::Object(fields) = fields else { bail!("no fields") };
        Ok(fields)
    }
}

type Field = (&'static str, Value);

impl Preset {
    /// What of the picture, the filter, mean and std, for an input of this side.
    fn parts(self, side: u32) -> (Field, &'static str, ([f64; 3], [f64; 3])) {
        let fraction = f64::from(side) / f64::from(side + 32);
        match self {
            Self::Torchvision => (("resize", json!({"short_side": (side * 256 + 112) / 224})), "bilinear", IMAGENET),
            Self::Timm => (("resize", json!({"crop_pct": 0.875})), "bicubic", IMAGENET),
            Self::TimmInception => (("resize", json!({"crop_pct": 0.9})), "bicubic", INCEPTION),
            Self::TensorflowLite => (("crop_fraction", json!(fraction)), "bicubic", TENSORFLOW_LITE),
        }
    }
}

fn resize_field(text: &str) -> anyhow::Result<Field> {
    let wrong = || format!("--resize takes short-side:256, crop-pct:0.95, crop-fraction:0.875 or squash, not {text:?}");
    let share = |value: &str| value.parse::<f64>().with_context(wrong);
    Ok(match text.split_once(':') {
        None if text == "squash" => ("resize", json!("squash")),
        Some(("short-side", value)) => ("resize", json!({"short_side": value.parse::<u32>().with_context(wrong)?})),
        Some(("crop-pct", value)) => ("resize", json!({"crop_pct": share(value)?})),
        Some(("crop-fraction", value)) => ("crop_fraction", json!(share(value)?)),
        _ => bail!(wrong()),
    })
}

fn size(text: &str) -> anyhow::Result<(u32, u32)> {
    let (width, height) = text.split_once('x').unwrap_or((text, text));
    let side = |text: &str| text.trim().parse().with_context(|| format!("--input takes 224 or 320x240, not {text:?}"));
    Ok((side(width)?, side(height)?))
}

fn colours(flag: &str, text: &str) -> anyhow::Result<[f64; 3]> {
    let wrong = || format!("{flag} takes three numbers such as 0.485,0.456,0.406, not {text:?}");
    let parts: Result<Vec<f64>, _> = text.split(',').map(|part| part.trim().parse()).collect();
    let colours: [f64; 3] = parts.with_context(wrong)?.try_into().map_err(|_| anyhow::anyhow!(wrong()))?;
    ensure!(colours.iter().all(|value| (0.0..=1.0).contains(value)), "{}: of values between 0 and 1", wrong());
    Ok(colours)
}

/// In units of 8-bit pixels, as precise as `model.json` keeps it.
#[allow(clippy::cast_possible_truncation, reason = "rounding to f32 is what is meant")]
fn bits(colours: [f64; 3]) -> [f32; 3] {
    colours.map(|value| (value * 255.0) as f32)
}

/// The input side in pixels that an architecture was published with.
fn default_input(architecture: &str) -> u32 {
    match architecture {
        "efficientnet-lite1" => 240,
        "efficientnet-lite2" => 260,
        "efficientnet-lite3" => 280,
        "efficientnet-lite4" => 300,
        _ => 224,
    }
}

fn default_tolerance(precision: &str) -> f64 {
    match precision {
        "f16" => 0.01,
        "bf16" => 0.05,
        _ => 0.001,
    }
}
