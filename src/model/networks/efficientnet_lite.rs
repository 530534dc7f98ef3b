//! EfficientNet-Lite: EfficientNet without squeeze-and-excitation and with ReLU6, for devices that dislike both.
//!
//! Sources: Tan and Le, "EfficientNet", 2019, table 1; TensorFlow's `efficientnet_lite_builder.py` for what Lite
//! changes: stem, head and the repeats of the first and last stage keep their size in every size of the network.

use super::mobile::{Ends, Scheme, Shape, Stage};
use super::variant::{Padding, Variant, VariantError};

/// TensorFlow's epsilon for EfficientNet, not PyTorch's default of 1e-5.
const BATCH_NORM_EPSILON: f64 = 1e-3;

/// Width and depth of Lite0 to Lite4.
const SCALES: [[f64; 2]; 5] = [[1.0, 1.0], [1.0, 1.1], [1.1, 1.2], [1.2, 1.4], [1.4, 1.8]];

const STAGES: [Stage; 7] = [
    Stage { repeats: 1, kernel: 3, stride: 1, expansion: 1, output: 16 },
    Stage { repeats: 2, kernel: 3, stride: 2, expansion: 6, output: 24 },
    Stage { repeats: 2, kernel: 5, stride: 2, expansion: 6, output: 40 },
    Stage { repeats: 3, kernel: 3, stride: 2, expansion: 6, output: 80 },
    Stage { repeats: 3, kernel: 5, stride: 1, expansion: 6, output: 112 },
    Stage { repeats: 4, kernel: 5, stride: 2, expansion: 6, output: 192 },
    Stage { repeats: 1, kernel: 3, stride: 1, expansion: 6, output: 320 },
];

/// The shape of a Lite network of the size 0 to 4.
///
/// # Errors
/// [`VariantError`] names a field that does not fit.
pub(super) fn shape(size: usize, variant: &Variant) -> Result<Shape, VariantError> {
    let usual = Shape {
        stem: 32,
        stages: STAGES.to_vec(),
        head: 1280,
        epsilon: BATCH_NORM_EPSILON,
        padding: Padding::Same,
        schemes: [("_", Scheme::Package), ("blocks.", Scheme::Timm)],
    };
    Shape::scaled(usual, SCALES[size], Ends::Fixed, variant)
}
