//! A network on one device, for any backend of the tensor library.
//!
//! Pixels travel as bytes and are normalised on the device. After a failure other than a lack of memory nothing more
//! runs on the device: nothing says that it would compute right.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Instant;

use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor};
use rayon::prelude::*;

use super::failure::{guarded, verdict, watch};
use super::{Bundle, Classifier, Hardware, ModelError};
use crate::image::Pixels;
use crate::model::layers::{Formulations, Input, Kernels, Normalise};
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
    /// The next batch's pixels.
    ahead: Option<Ahead<B>>,
    /// Why the device is no longer used.
    failed: Option<String>,
}

/// A batch whose pixels were put on the device before its turn.
struct Ahead<B: Backend> {
    images: Arc<[Pixels]>,
    input: Input<B>,
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
                ahead: None,
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

    /// Runs the network on what is on the device, and does something else before it waits for the answers.
    fn forward(&self, input: Input<B>, meanwhile: impl FnOnce()) -> Result<Vec<Answer>, String> {
        let started = Instant::now();
        let x = self.normalise.forward(input);
        let [images, ..] = x.dims();
        let Output { logits, features } = self.network.forward(x.cast(self.float));
        let queued = started.elapsed();
        meanwhile();
        let waiting = started.elapsed();
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
        tracing::trace!(images, ?queued, ?waiting, total = ?started.elapsed(), "forward");
        Ok(answers)
    }

    fn run(&self, images: &[&Pixels]) -> Result<Vec<Answer>, String> {
        match self.batching {
            Batching::Spread => {
                let one = |image: &&Pixels| self.forward(self.put([*image].into_iter()), || ());
                let answers: Result<Vec<_>, _> = images.par_iter().map(one).collect();
                answers.map(|answers| answers.into_iter().flatten().collect())
            }
            #[cfg(any(feature = "cuda", feature = "vulkan"))]
            Batching::Ladder => self.forward(self.put(images.iter().copied()), || ()),
        }
    }

    /// What a batch of so many images has, filled up to a power of two.
    fn bytes(&self, images: usize) -> usize {
        images.next_power_of_two() * self.height * self.width * 3
    }

    /// Puts images on the device, filled up to a power of two.
    fn put<'a>(&self, images: impl ExactSizeIterator<Item = &'a Pixels>) -> Input<B> {
        let (padded, bytes) = (images.len().next_power_of_two(), self.bytes(images.len()));
        let mut rgb = Vec::with_capacity(bytes);
        images.for_each(|image| rgb.extend_from_slice(&image.rgb));
        rgb.resize(bytes, 0);
        self.normalise.put(rgb, [padded, self.height, self.width])
    }

    /// Answers to as many images, or what the failure means.
    fn answer(
        &mut self,
        images: &[&Pixels],
        run: impl Fn(&Self) -> Result<Vec<Answer>, String>,
    ) -> Result<Vec<Answer>, DeviceError> {
        if let Some(odd) = images.iter().find(|image| !self.takes(image)) {
            return Err(DeviceError::Failed(format!("an image of {} × {} pixels was given", odd.width, odd.height)));
        }
        if let Some(failure) = &self.failed {
            return Err(DeviceError::Failed(format!("not used since it failed: {failure}")));
        }
        let mut answers = guarded(B::PLAIN, || run(self)).map_err(|error| {
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
}

impl<B: Kernels> Classifier for Engine<B> {
    fn classify(&mut self, images: &[&Pixels]) -> Result<Vec<Answer>, DeviceError> {
        self.ahead = None;
        self.answer(images, |engine| engine.run(images))
    }

    fn classify_ahead(
        &mut self,
        images: &Arc<[Pixels]>,
        next: &mut dyn FnMut() -> Option<Arc<[Pixels]>>,
    ) -> Result<Vec<Answer>, DeviceError> {
        let pictures: Vec<&Pixels> = images.iter().collect();
        if self.ahead_bytes(1) == 0 {
            return self.classify(&pictures);
        }
        let there = self.ahead.take().filter(|ahead| Arc::ptr_eq(&ahead.images, images));
        let (next, ahead) = (RefCell::new(Some(next)), RefCell::new(None));
        let answers = self.answer(&pictures, |engine| {
            // What was put there by an attempt that went wrong is not to be trusted.
            *ahead.borrow_mut() = None;
            let input = there.as_ref().map(|there| there.input.clone());
            engine.forward(input.unwrap_or_else(|| engine.put(images.iter())), || {
                let images = next.borrow_mut().take().and_then(|next| next());
                let images = images.filter(|images| images.iter().all(|image| engine.takes(image)));
                *ahead.borrow_mut() = images.map(|images| Ahead { input: engine.put(images.iter()), images });
            })
        })?;
        self.ahead = ahead.into_inner();
        Ok(answers)
    }

    fn ahead_bytes(&self, images: usize) -> u64 {
        if matches!(self.batching, Batching::Spread) { 0 } else { self.bytes(images) as u64 }
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
        self.ahead = None;
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
