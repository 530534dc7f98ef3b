//! The vision model behind one trait. No type of the tensor library appears here.
//!
//! A [`Bundle`] is a model's files, verified; [`load`] puts it on a device; [`golden::check`] proves that the device
//! computes right; [`labels::top`] turns its logits into names.
//!
//! `bundle → weights → networks (on layers) → device`

mod bundle;
mod device;
pub mod golden;
pub mod labels;
mod layers;
mod manifest;
mod networks;
mod precision;
mod weights;

pub use bundle::{Bundle, BundleError};
pub(crate) use device::failure::is_out_of_memory;
#[cfg(feature = "cuda")]
pub(crate) use device::failure::probe;
pub use device::{Device, GpuSettings, ModelError, UnknownDevice, load, load_with};
pub use layers::{Formulation, Formulations};
pub use manifest::{
    Activation, Architecture, EmbeddingSpec, FileSpec, Manifest, ManifestError, Precision, PreprocessSpec, ResizeSpec,
};
pub use networks::{Padding, Variant};
pub(crate) use weights::is_counter;
pub use weights::{Weights, WeightsError};

use std::sync::Arc;

use crate::image::Pixels;

/// A model loaded on a device. Owned by one OS thread; every call blocks it.
pub trait Classifier: Send {
    /// Runs one batch of at least one image, each of the model's input size.
    ///
    /// Returns the answer for each image, in the order of `images`.
    ///
    /// # Errors
    /// [`DeviceError`] says whether a smaller batch may still work.
    fn classify(&mut self, images: &[&Pixels]) -> Result<Vec<Answer>, DeviceError>;

    /// The same; once the device has this batch's work, `next` is asked for the batch after it, whose pixels go there
    /// while it computes. They are used if that batch is the next to run, and forgotten if another one is.
    ///
    /// # Errors
    /// As [`Self::classify`], of this batch, which a lack of memory for the next one's pixels fails too.
    fn classify_ahead(
        &mut self,
        images: &Arc<[Pixels]>,
        _next: &mut dyn FnMut() -> Option<Arc<[Pixels]>>,
    ) -> Result<Vec<Answer>, DeviceError> {
        self.classify(&images.iter().collect::<Vec<_>>())
    }

    /// Device memory that the pixels of a batch of so many images take before its turn, in bytes; 0 where they are never
    /// put there.
    fn ahead_bytes(&self, _images: usize) -> u64 {
        0
    }

    /// The device the model runs on, as shown to people: `CPU`, `NVIDIA L4`.
    fn device(&self) -> &str;

    /// The device and its driver, as plans and kept kernels are told apart by.
    fn identity(&self) -> String {
        self.device().to_owned()
    }

    /// What this process's runtime has of the device's memory; `None` where tensors are in plain memory.
    fn pool(&self) -> Option<Pool> {
        None
    }

    /// Gives the memory that batches left behind back to the device.
    fn give_back(&mut self) {}

    /// Whether a batch's size may change what is computed: it does where a batch is one tensor.
    fn computes_batches_as_one(&self) -> bool {
        true
    }
}

/// Memory that a runtime has of a device, in bytes. What it has once it keeps, until it is told to give it back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    /// All of it.
    pub reserved: u64,
    /// What tensors are in.
    pub in_use: u64,
}

/// What the model says of one image.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// One value a class, before softmax or sigmoid.
    pub logits: Vec<f32>,
    /// What the last layer reads, one value a feature, where the manifest asks for it; scaled to length 1 where it says so.
    pub embedding: Option<Vec<f32>>,
}

/// A batch failed on the device.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The batch did not fit; a smaller one may.
    #[error("out of device memory: {0}")]
    OutOfMemory(String),
    /// The device or its runtime failed; nothing says that it still computes right.
    #[error("device failed: {0}")]
    Failed(String),
}
