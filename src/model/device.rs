//! A bundle on a device: the only place where a backend of the tensor library is chosen.
//!
//! Pixels travel as bytes and are normalised on the device. A panic of the library is caught and becomes a
//! [`DeviceError`]. Never the library's default device: it would be another one on another machine.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;

use burn::backend::flex::{Flex, FlexDevice};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use rayon::prelude::*;

use super::layers::{Formulations, Kernels, Normalise};
use super::manifest::EmbeddingSpec;
use super::networks::{Network, Output};
use super::weights::{Weights, WeightsError};
use super::{Answer, Bundle, Classifier, DeviceError};
use crate::image::Pixels;

/// Where a model runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// This machine's processor.
    Cpu,
    /// An NVIDIA GPU, by its index; usable with the feature `cuda`.
    Cuda(usize),
}

impl FromStr for Device {
    type Err = UnknownDevice;

    /// `cpu`, `cuda` (the first GPU) or `cuda:INDEX`.
    fn from_str(text: &str) -> Result<Self, UnknownDevice> {
        match text {
            "cpu" => Some(Self::Cpu),
            "cuda" => Some(Self::Cuda(0)),
            _ => text.strip_prefix("cuda:").and_then(|index| index.parse().ok()).map(Self::Cuda),
        }
        .ok_or_else(|| UnknownDevice(text.to_owned()))
    }
}

/// No name of a device.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no device: there are cpu, cuda and cuda:INDEX")]
pub struct UnknownDevice(String);

/// A model that could not be put on a device.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The weights do not fit the network.
    #[error("model.safetensors does not fit the network")]
    Weights(#[from] WeightsError),
    /// There is no such device, or it does not work.
    #[error("no usable device: {0}")]
    Unavailable(String),
}

/// Puts a bundle's model on a device.
///
/// # Errors
/// [`ModelError`]: weights that do not fit, or a device that does not work.
pub fn load(bundle: &Bundle, device: Device) -> Result<Box<dyn Classifier>, ModelError> {
    load_with(bundle, device, &mut Formulations::default())
}

/// Puts a bundle's model on a device, with the formulations of its convolutions. Those that are missing are measured and
/// added, so that the next load need not.
///
/// # Errors
/// [`ModelError`]: weights that do not fit, or a device that does not work.
pub fn load_with(
    bundle: &Bundle,
    device: Device,
    formulations: &mut Formulations,
) -> Result<Box<dyn Classifier>, ModelError> {
    match device {
        Device::Cpu => {
            Ok(Box::new(Engine::<Flex>::load(bundle, FlexDevice, "CPU".to_owned(), Batching::Spread, formulations)?))
        }
        #[cfg(feature = "cuda")]
        Device::Cuda(index) => {
            cuda::check_driver()?;
            let device = burn::backend::cuda::CudaDevice { index };
            let name = format!("CUDA {index}");
            Ok(Box::new(Engine::<burn::backend::Cuda>::load(bundle, device, name, Batching::Ladder, formulations)?))
        }
        #[cfg(not(feature = "cuda"))]
        Device::Cuda(_) => Err(ModelError::Unavailable("this program was built without the feature `cuda`".to_owned())),
    }
}

/// How a batch becomes tensors.
#[derive(Clone, Copy, Debug)]
enum Batching {
    /// Each image its own, spread over the processor's threads: threads that share an image wait for each other after
    /// every layer (on two cores 102 images/s one at a time, 140 from batches of two on), and a larger batch needs no more
    /// memory.
    Spread,
    /// One tensor, filled up to a power of two: kernels are compiled and tuned for each shape, which takes seconds.
    #[cfg(feature = "cuda")]
    Ladder,
}

struct Engine<B: Backend> {
    network: Network<B>,
    normalise: Normalise<B>,
    name: String,
    height: usize,
    width: usize,
    classes: usize,
    embedding: Option<EmbeddingSpec>,
    batching: Batching,
}

impl<B: Kernels> Engine<B> {
    fn load(
        bundle: &Bundle,
        device: B::Device,
        name: String,
        batching: Batching,
        formulations: &mut Formulations,
    ) -> Result<Self, ModelError> {
        let manifest = bundle.manifest();
        let weights = Weights::parse(bundle.weights())?;
        let build = || -> Result<Self, ModelError> {
            Ok(Engine {
                network: Network::load(manifest, weights, formulations, &device)?,
                normalise: Normalise::new(manifest.preprocess.mean, manifest.preprocess.std, &device),
                name,
                height: manifest.input.height as usize,
                width: manifest.input.width as usize,
                classes: manifest.classes,
                embedding: manifest.embedding,
                batching,
            })
        };
        catch_unwind(AssertUnwindSafe(build))
            .unwrap_or_else(|panic| Err(ModelError::Unavailable(panic_message(panic.as_ref()))))
    }

    fn takes(&self, image: &Pixels) -> bool {
        let bytes = self.height * self.width * 3;
        (image.height, image.width, image.rgb.len()) == (self.height, self.width, bytes)
    }

    /// Runs the network on `images × height × width × 3` bytes.
    fn forward(&self, images: usize, rgb: Vec<u8>) -> Result<Vec<Answer>, String> {
        let x = self.normalise.forward(rgb, [images, self.height, self.width]);
        let Output { logits, features } = self.network.forward(x);
        let mut answers: Vec<Answer> =
            rows(logits, self.classes)?.map(|logits| Answer { logits, embedding: None }).collect();
        if let Some(EmbeddingSpec { normalize }) = self.embedding {
            let width = features.dims()[1];
            for (answer, mut features) in answers.iter_mut().zip(rows(features, width)?) {
                if normalize {
                    scale_to_length_1(&mut features);
                }
                answer.embedding = Some(features);
            }
        }
        Ok(answers)
    }
}

impl<B: Kernels> Classifier for Engine<B> {
    fn classify(&mut self, images: &[&Pixels]) -> Result<Vec<Answer>, DeviceError> {
        if let Some(odd) = images.iter().find(|image| !self.takes(image)) {
            return Err(DeviceError::Failed(format!("an image of {} × {} pixels was given", odd.width, odd.height)));
        }
        let run = || match self.batching {
            Batching::Spread => {
                let answers: Result<Vec<_>, _> =
                    images.par_iter().map(|image| self.forward(1, image.rgb.clone())).collect();
                answers.map(|answers| answers.into_iter().flatten().collect::<Vec<_>>())
            }
            #[cfg(feature = "cuda")]
            Batching::Ladder => {
                let bytes = self.height * self.width * 3;
                let padded = images.len().next_power_of_two();
                let mut rgb = Vec::with_capacity(padded * bytes);
                images.iter().for_each(|image| rgb.extend_from_slice(&image.rgb));
                rgb.resize(padded * bytes, 0);
                self.forward(padded, rgb)
            }
        };
        let mut answers = catch_unwind(AssertUnwindSafe(run))
            .unwrap_or_else(|panic| Err(panic_message(panic.as_ref())))
            .map_err(classify_failure)?;
        answers.truncate(images.len());
        Ok(answers)
    }

    fn device(&self) -> &str {
        &self.name
    }
}

/// The rows of a matrix on a device.
fn rows<B: Backend>(matrix: Tensor<B, 2>, width: usize) -> Result<impl Iterator<Item = Vec<f32>>, String> {
    let values: Vec<f32> =
        matrix.try_into_data().map_err(|error| error.to_string())?.into_vec().map_err(|error| format!("{error:?}"))?;
    let starts = (0..values.len() / width.max(1)).map(move |row| row * width);
    Ok(starts.map(move |start| values[start..start + width].to_vec()))
}

/// Divides a vector by its Euclidean length; one of zeros stays as it is.
fn scale_to_length_1(vector: &mut [f32]) {
    let length = vector.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    if length > 0.0 {
        for value in vector {
            #[allow(clippy::cast_possible_truncation, reason = "rounding to f32 is what is meant")]
            let scaled = (f64::from(*value) / length) as f32;
            *value = scaled;
        }
    }
}

/// The library's errors are texts; the ones that it gives when memory runs out are these.
fn classify_failure(message: String) -> DeviceError {
    let lower = message.to_lowercase();
    if ["out of device memory", "out of memory", "outofmemory"].iter().any(|sign| lower.contains(sign)) {
        DeviceError::OutOfMemory(message)
    } else {
        DeviceError::Failed(message)
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without a message".to_owned())
}

#[cfg(feature = "cuda")]
mod cuda {
    //! Whether this machine has an NVIDIA driver at all. Without one the first operation panics in a thread of the
    //! runtime, with a message that helps nobody.

    use std::path::Path;

    use super::ModelError;

    /// Device nodes of the driver: on Linux, and on Windows' Linux.
    const DEVICE_NODES: [&str; 2] = ["/dev/nvidiactl", "/dev/dxg"];

    pub(super) fn check_driver() -> Result<(), ModelError> {
        if DEVICE_NODES.iter().any(|node| Path::new(node).exists()) {
            return Ok(());
        }
        let problem = format!("no NVIDIA driver on this machine (neither of {})", DEVICE_NODES.join(", "));
        Err(ModelError::Unavailable(problem))
    }
}
