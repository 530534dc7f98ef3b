//! A network on one device, for any backend of the tensor library.
//!
//! Pixels travel as bytes and are normalised on the device. After a failure other than a lack of memory nothing more
//! runs on the device: nothing says that it would compute right.

use std::time::Instant;

use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor};
use rayon::prelude::*;

use super::failure::{guarded, verdict, watch};
use super::{Bundle, Classifier, Hardware, ModelError};
use crate::image::Pixels;
use crate::model::layers::{Formulations, Kernels, Normalise};
use crate::model::manifest::{EmbeddingSpec, Precision};
use crate::model::networks::{Network, Output};
use crate::model::precision;
use crate::model::weights::Weights;
use crate::model::{Answer, DeviceError, Pool};

/// How a batch becomes tensors.
#[derive(Clone, Copy, Debug)]
pub(super) enum Batching {
    /// Each image its own, spread over the processor's threads: threads that share an image wait for each other after
    /// every layer (on two cores 102 images/s one at a time, 140 from batches of two on), and a larger batch needs no more
    /// memory.
    Spread,
    /// One tensor, filled up to a power of two: kernels are compiled and tuned for each shape, which takes seconds.
    #[cfg(any(feature = "cuda", feature = "vulkan"))]
    Ladder,
}

pub(super) struct Engine<B: Backend> {
    network: Network<B>,
    normalise: Normalise<B>,
    /// Numbers that the network is computed in.
    float: DType,
    device: B::Device,
    hardware: Hardware,
    height: usize,
    width: usize,
    classes: usize,
    embedding: Option<EmbeddingSpec>,
    batching: Batching,
    /// Why the device is no longer used.
    failed: Option<String>,
}

impl<B: Kernels> Engine<B> {
    /// Puts the bundle's network on `device`, known as `hardware`.
    ///
    /// # Errors
    /// [`ModelError`]: weights that do not fit, a precision that the device does not compute in, or a device that fails.
    pub(super) fn load(
        bundle: &Bundle,
        device: B::Device,
        hardware: Hardware,
        batching: Batching,
        formulations: &mut Formulations,
    ) -> Result<Box<dyn Classifier>, ModelError> {
        watch();
        let manifest = bundle.manifest();
        let float = match manifest.precision {
            Precision::F16 if !B::PLAIN => DType::F16,
            Precision::Bf16 if !B::PLAIN => DType::BF16,
            _ => DType::F32,
        };
        let build = || -> Result<(Self, Formulations), ModelError> {
            if !B::supports_dtype(&device, float) {
                return Err(ModelError::Unavailable(format!("{} does not compute in {float:?}", hardware.name)));
            }
            let weights = Weights::parse(bundle.weights())?;
            let mut chosen = formulations.clone();
            let engine = Engine {
                network: precision::within(float, || Network::load(manifest, weights, &mut chosen, &device))?,
                normalise: Normalise::new(manifest.preprocess.mean, manifest.preprocess.std, &device),
                float,
                device: device.clone(),
                hardware: hardware.clone(),
                height: manifest.input.height as usize,
                width: manifest.input.width as usize,
                classes: manifest.classes,
                embedding: manifest.embedding,
                batching,
                failed: None,
            };
            Ok((engine, chosen))
        };
        let built = guarded(B::PLAIN, || {
            let built = build();
            B::sync(&device).map_err(|error| error.to_string())?;
            Ok(built)
        });
        let (engine, chosen) = built.map_err(ModelError::Unavailable)??;
        *formulations = chosen;
        Ok(Box::new(engine))
    }

    fn takes(&self, image: &Pixels) -> bool {
        let bytes = self.height * self.width * 3;
        (image.height, image.width, image.rgb.len()) == (self.height, self.width, bytes)
    }

    /// Runs the network on `images × height × width × 3` bytes.
    fn forward(&self, images: usize, rgb: Vec<u8>) -> Result<Vec<Answer>, String> {
        let started = Instant::now();
        let x = self.normalise.forward(rgb, [images, self.height, self.width]);
        let Output { logits, features } = self.network.forward(x.cast(self.float));
        let queued = started.elapsed();
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
        // On a GPU operations are queued, and computed while the answers are waited for.
        tracing::trace!(images, ?queued, total = ?started.elapsed(), "forward");
        Ok(answers)
    }

    fn run(&self, images: &[&Pixels]) -> Result<Vec<Answer>, String> {
        match self.batching {
            Batching::Spread => {
                let answers: Result<Vec<_>, _> =
                    images.par_iter().map(|image| self.forward(1, image.rgb.clone())).collect();
                answers.map(|answers| answers.into_iter().flatten().collect())
            }
            #[cfg(any(feature = "cuda", feature = "vulkan"))]
            Batching::Ladder => {
                let bytes = self.height * self.width * 3;
                let padded = images.len().next_power_of_two();
                let mut rgb = Vec::with_capacity(padded * bytes);
                images.iter().for_each(|image| rgb.extend_from_slice(&image.rgb));
                rgb.resize(padded * bytes, 0);
                self.forward(padded, rgb)
            }
        }
    }
}

impl<B: Kernels> Classifier for Engine<B> {
    fn classify(&mut self, images: &[&Pixels]) -> Result<Vec<Answer>, DeviceError> {
        if let Some(odd) = images.iter().find(|image| !self.takes(image)) {
            return Err(DeviceError::Failed(format!("an image of {} × {} pixels was given", odd.width, odd.height)));
        }
        if let Some(failure) = &self.failed {
            return Err(DeviceError::Failed(format!("not used since it failed: {failure}")));
        }
        let mut answers = guarded(B::PLAIN, || self.run(images)).map_err(|error| {
            let error = verdict(error);
            match &error {
                DeviceError::OutOfMemory(_) => B::memory_cleanup(&self.device),
                DeviceError::Failed(failure) => self.failed = Some(failure.clone()),
            }
            error
        })?;
        answers.truncate(images.len());
        Ok(answers)
    }

    fn device(&self) -> &str {
        &self.hardware.name
    }

    fn identity(&self) -> String {
        self.hardware.identity.clone()
    }

    fn pool(&self) -> Option<Pool> {
        if self.failed.is_some() { None } else { guarded(B::PLAIN, || Ok(B::pool(&self.device))).ok().flatten() }
    }

    fn give_back(&mut self) {
        if self.failed.is_some() {
            return;
        }
        self.failed = guarded(B::PLAIN, || {
            B::memory_cleanup(&self.device);
            Ok(())
        })
        .err();
    }

    fn computes_batches_as_one(&self) -> bool {
        !matches!(self.batching, Batching::Spread)
    }
}

/// The rows of a matrix on a device.
fn rows<B: Backend>(matrix: Tensor<B, 2>, width: usize) -> Result<impl Iterator<Item = Vec<f32>>, String> {
    let data = matrix.cast(DType::F32).try_into_data().map_err(|error| error.to_string())?;
    let values: Vec<f32> = data.into_vec().map_err(|error| format!("{error:?}"))?;
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
