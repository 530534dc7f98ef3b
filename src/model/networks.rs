//! The networks that can be run: one file an architecture, on the layers of [`super::layers`].

mod efficientnet_lite;

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use self::efficientnet_lite::{EfficientNetLite, LITE0};
use super::layers::{Builder, Kernels};
use super::manifest::{Architecture, Manifest};
use super::weights::{Weights, WeightsError};

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
    EfficientNetLite(EfficientNetLite<B>),
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
        let mut builder = Builder::new(&mut weights, size, device);
        let network = match manifest.architecture {
            Architecture::EfficientNetLite0 => {
                Network::EfficientNetLite(EfficientNetLite::take(&mut builder, &LITE0, manifest.classes)?)
            }
        };
        weights.finish()?;
        Ok(network)
    }

    /// Takes normalised pixels `[batch, rows, columns, 3]`.
    pub(super) fn forward(&self, x: Tensor<B, 4>) -> Output<B> {
        match self {
            Network::EfficientNetLite(network) => network.forward(x),
        }
    }
}
