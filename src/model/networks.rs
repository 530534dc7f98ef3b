//! The networks that can be run: one file an architecture, on the layers of [`super::layers`].
//!
//! Weights come under the names that PyTorch's libraries give them; where these differ, the names in the file tell which
//! library it was. `docs/networks.md` lists both.

mod convnext;
mod efficientnet_lite;
mod mobile;
mod mobilenet_v2;
mod resnet;
mod variant;
mod vit;

#[cfg(test)]
mod tests;

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use self::convnext::ConvNext;
use self::mobile::Mobile;
use self::resnet::{BlockKind, ResNet};
pub(super) use self::variant::VariantError;
pub use self::variant::{Padding, Variant};
use self::vit::Transformer;
use super::layers::{Builder, Kernels};
use super::manifest::{Architecture, Manifest};
use super::weights::{Weights, WeightsError};

/// What PyTorch's batch norm counts in training; no network needs it.
const IGNORED_SUFFIX: &str = ".num_batches_tracked";

/// What a network makes of a batch.
pub(super) struct Output<B: Backend> {
    /// `[batch, classes]`
    pub(super) logits: Tensor<B, 2>,
    /// `[batch, features]`: what the last linear layer reads.
    pub(super) features: Tensor<B, 2>,
}

/// A network on a device.
#[derive(Debug)]
pub(super) enum Network<B: Backend> {
    Mobile(Mobile<B>),
    ResNet(ResNet<B>),
    ConvNext(ConvNext<B>),
    Transformer(Transformer<B>),
}

/// The shape of a network: its architecture's, changed by the manifest's `variant`.
#[derive(Debug)]
enum Shape {
    Mobile(mobile::Shape),
    ResNet(resnet::Shape),
    ConvNext(convnext::Shape),
    Transformer(vit::Shape),
}

impl Shape {
    /// For inputs of `size` (rows, columns).
    fn new(architecture: Architecture, variant: &Variant, size: [usize; 2]) -> Result<Self, VariantError> {
        use Architecture as A;
        let lite = |number| efficientnet_lite::shape(number, variant).map(Shape::Mobile);
        let resnet = |block, depths| resnet::Shape::new(block, depths, variant).map(Shape::ResNet);
        let convnext = |depths| convnext::Shape::new(depths, variant).map(Shape::ConvNext);
        let transformer = |usual| vit::Shape::new(usual, variant, size).map(Shape::Transformer);
        match architecture {
            A::EfficientNetLite0 => lite(0),
            A::EfficientNetLite1 => lite(1),
            A::EfficientNetLite2 => lite(2),
            A::EfficientNetLite3 => lite(3),
            A::EfficientNetLite4 => lite(4),
            A::MobileNetV2 => mobilenet_v2::shape(variant).map(Shape::Mobile),
            A::ResNet18 => resnet(BlockKind::Basic, [2, 2, 2, 2]),
            A::ResNet34 => resnet(BlockKind::Basic, [3, 4, 6, 3]),
            A::ResNet50 => resnet(BlockKind::Bottleneck, [3, 4, 6, 3]),
            A::ResNet101 => resnet(BlockKind::Bottleneck, [3, 4, 23, 3]),
            A::ConvNextTiny => convnext([3, 3, 9, 3]),
            A::ConvNextSmall => convnext([3, 3, 27, 3]),
            // Blocks, channels, heads.
            A::VitS16 => transformer([12, 384, 6]),
            A::VitB16 => transformer([12, 768, 12]),
        }
    }
}

/// Checks a manifest's `variant` against its architecture, for inputs of `size` (rows, columns).
///
/// # Errors
/// [`VariantError`] names a field that does not fit.
pub(super) fn check_variant(
    architecture: Architecture,
    variant: &Variant,
    size: [usize; 2],
) -> Result<(), VariantError> {
    Shape::new(architecture, variant, size).map(|_| ())
}

impl<B: Kernels> Network<B> {
    /// Takes every tensor of the weights and puts the network of the manifest on the device.
    ///
    /// # Errors
    /// [`WeightsError`] names the tensor that is missing, left over or does not fit.
    pub(super) fn load(
        manifest: &Manifest,
        mut weights: Weights<'_>,
        device: &B::Device,
    ) -> Result<Self, WeightsError> {
        let size = [manifest.input.height as usize, manifest.input.width as usize];
        let shape = Shape::new(manifest.architecture, &manifest.variant, size).expect("Manifest::parse checked it");
        weights.ignore_suffix(IGNORED_SUFFIX);
        let builder = &mut Builder::new(&mut weights, size, device);
        let network = match &shape {
            Shape::Mobile(shape) => Network::Mobile(Mobile::take(builder, shape, manifest.classes)?),
            Shape::ResNet(shape) => Network::ResNet(ResNet::take(builder, shape, manifest.classes)?),
            Shape::ConvNext(shape) => Network::ConvNext(ConvNext::take(builder, shape, manifest.classes)?),
            Shape::Transformer(shape) => Network::Transformer(Transformer::take(builder, shape, manifest.classes)?),
        };
        weights.finish()?;
        Ok(network)
    }

    /// Takes normalised pixels `[batch, rows, columns, 3]`.
    pub(super) fn forward(&self, x: Tensor<B, 4>) -> Output<B> {
        match self {
            Network::Mobile(network) => network.forward(x),
            Network::ResNet(network) => network.forward(x),
            Network::ConvNext(network) => network.forward(x),
            Network::Transformer(network) => network.forward(x),
        }
    }
}

/// The naming scheme of the weights: the one whose prefix a name has. Without any it is the first, so that the error
/// names what is missing.
fn scheme<S: Copy>(weights: &Weights<'_>, schemes: &[(&str, S)]) -> S {
    let found = schemes.iter().find(|(prefix, _)| weights.has_prefix(prefix));
    found.unwrap_or(&schemes[0]).1
}
