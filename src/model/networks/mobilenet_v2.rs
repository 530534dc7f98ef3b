//! MobileNetV2, as torchvision and timm have it.
//!
//! Source: Sandler et al., "MobileNetV2", 2018, table 2.

use super::mobile::{Ends, Scheme, Shape, Stage};
use super::variant::{Padding, Variant, VariantError};

const STAGES: [Stage; 7] = [
    Stage { repeats: 1, kernel: 3, stride: 1, expansion: 1, output: 16 },
    Stage { repeats: 2, kernel: 3, stride: 2, expansion: 6, output: 24 },
    Stage { repeats: 3, kernel: 3, stride: 2, expansion: 6, output: 32 },
    Stage { repeats: 4, kernel: 3, stride: 2, expansion: 6, output: 64 },
    Stage { repeats: 3, kernel: 3, stride: 1, expansion: 6, output: 96 },
    Stage { repeats: 3, kernel: 3, stride: 2, expansion: 6, output: 160 },
    Stage { repeats: 1, kernel: 3, stride: 1, expansion: 6, output: 320 },
];

/// The shape of the network.
///
/// # Errors
/// [`VariantError`] names a field that does not fit.
pub(super) fn shape(variant: &Variant) -> Result<Shape, VariantError> {
    let usual = Shape {
        stem: 32,
        stages: STAGES.to_vec(),
        head: 1280,
        epsilon: 1e-5,
        padding: Padding::Symmetric,
        schemes: [("features.", Scheme::Torchvision), ("blocks.", Scheme::Timm)],
    };
    Shape::scaled(usual, [1.0, 1.0], Ends::Scaled, variant)
}
