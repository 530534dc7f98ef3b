//! Batches run on the device: one OS thread owns the model, everybody else asks it.
//!
//! The thread sees pixels only. Receipts stay with the hop, so that giving up on a stuck device still returns the
//! messages.

use std::sync::Arc;
use std::thread;
use std::time::Instant;

use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::sync::oneshot;

use super::batch::Batch;
use super::each::each;
use super::error::Fatal;
use super::job::{Job, Outcome};
use crate::image::Pixels;
use crate::model::{Answer, Bundle, Classifier, DeviceError, labels};

/// Batches on the device or waiting for it: one runs, none waits.
pub(super) const SLOTS: usize = 1;

struct Request {
    images: Vec<Pixels>,
    reply: oneshot::Sender<Result<Vec<Answer>, DeviceError>>,
}

/// The device thread, as others see it. The thread ends when the engine is dropped.
pub struct Engine {
    requests: Sender<Request>,
}

impl Engine {
    /// Starts the thread that owns `classifier`.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(mut classifier: Box<dyn Classifier>) -> std::io::Result<Self> {
        let (requests, mut inbox) = mpsc::channel::<Request>(SLOTS);
        thread::Builder::new().name("device".to_owned()).spawn(move || {
            while let Some(Request { images, reply }) = inbox.blocking_recv() {
                let images: Vec<&Pixels> = images.iter().collect();
                // Nobody waits any more when the grace has run out.
                drop(reply.send(classify(&mut *classifier, &images)));
            }
        })?;
        Ok(Self { requests })
    }

    /// Runs `images` as one batch, or as several when the device has no room for that many.
    ///
    /// # Errors
    /// The device failed, or its thread has ended.
    pub async fn run(&self, images: Vec<Pixels>) -> Result<Vec<Answer>, Fatal> {
        let (reply, answer) = oneshot::channel();
        let asked = images.len();
        self.requests.send(Request { images, reply }).await.map_err(|_| Fatal::EngineDied)?;
        let answers = answer.await.map_err(|_| Fatal::EngineDied)??;
        if answers.len() != asked {
            return Err(DeviceError::Failed(format!("{} answers to {asked} images", answers.len())).into());
        }
        Ok(answers)
    }
}

/// Runs `images`; when the device runs out of memory, halves the batch, down to single images.
fn classify(classifier: &mut dyn Classifier, images: &[&Pixels]) -> Result<Vec<Answer>, DeviceError> {
    match classifier.classify(images) {
        Err(DeviceError::OutOfMemory(error)) if images.len() > 1 => {
            let (left, right) = images.split_at(images.len() / 2);
            tracing::warn!(batch = images.len(), error, "out of device memory; splitting the batch");
            let mut answers = classify(classifier, left)?;
            answers.extend(classify(classifier, right)?);
            Ok(answers)
        }
        result => result,
    }
}

/// Turns logits into the labels of a result. Clones share the model's label names.
#[derive(Clone)]
pub(super) struct Labeler {
    pub(super) bundle: Arc<Bundle>,
    pub(super) top_k: usize,
    pub(super) min_score: f32,
}

impl Labeler {
    fn label(&self, Answer { logits, embedding }: &Answer) -> Result<Vec<labels::Label>, labels::NotFinite> {
        labels::check_finite(embedding.as_deref().unwrap_or_default())?;
        labels::top(logits, self.bundle.labels(), self.bundle.manifest().activation, self.top_k, self.min_score)
    }
}

/// Runs each batch and turns its logits into labels.
pub(super) async fn run(
    batches: Receiver<Batch>,
    engine: Arc<Engine>,
    labeler: Labeler,
    outcomes: Sender<Job<Outcome>>,
) -> Result<(), Fatal> {
    each(batches, SLOTS, |Batch { jobs, slot }| {
        let (engine, labeler, outcomes) = (engine.clone(), labeler.clone(), outcomes.clone());
        async move {
            let started = Instant::now();
            let (pixels, jobs): (Vec<_>, Vec<_>) = jobs
                .into_iter()
                .map(|job| {
                    let (waiting, mut job) = job.split();
                    job.facts.spent.wait = Some(started.duration_since(waiting.since));
                    (waiting.prepared.pixels, job.with(waiting.prepared.info))
                })
                .unzip();
            let answers = engine.run(pixels).await?;
            drop(slot);
            let took = started.elapsed();
            for (job, answer) in jobs.into_iter().zip(answers) {
                let (image, mut job) = job.split();
                job.facts.spent.infer = Some(took);
                let labels = labeler.label(&answer)?;
                let embedding = answer.embedding;
                drop(outcomes.send(job.with(Outcome::Labeled { image, labels, embedding })).await);
            }
            Ok(())
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device with room for `room` images a batch, whose logits are each image's first byte.
    struct Small {
        room: usize,
        batches: Vec<usize>,
    }

    impl Classifier for Small {
        fn classify(&mut self, images: &[&Pixels]) -> Result<Vec<Answer>, DeviceError> {
            self.batches.push(images.len());
            if images.len() > self.room {
                return Err(DeviceError::OutOfMemory("test".to_owned()));
            }
            let answer = |image: &&Pixels| Answer { logits: vec![f32::from(image.rgb[0])], embedding: None };
            Ok(images.iter().map(answer).collect())
        }

        fn device(&self) -> &str {
            "test"
        }
    }

    fn pixels(count: u8) -> Vec<Pixels> {
        (0..count).map(|value| Pixels { height: 1, width: 1, rgb: vec![value; 3] }).collect()
    }

    #[test]
    fn a_batch_that_does_not_fit_is_split_and_keeps_its_order() {
        let mut device = Small { room: 3, batches: Vec::new() };
        let images = pixels(10);
        let answers = classify(&mut device, &images.iter().collect::<Vec<_>>()).unwrap();
        let firsts: Vec<f32> = answers.iter().map(|answer| answer.logits[0]).collect();
        assert_eq!(firsts, (0..10_u8).map(f32::from).collect::<Vec<_>>());
        assert_eq!(device.batches, [10, 5, 2, 3, 5, 2, 3]);
    }

    #[test]
    fn a_device_without_room_for_one_image_is_an_error() {
        let mut device = Small { room: 0, batches: Vec::new() };
        let images = pixels(2);
        let error = classify(&mut device, &images.iter().collect::<Vec<_>>()).unwrap_err();
        assert!(matches!(error, DeviceError::OutOfMemory(_)));
        assert_eq!(device.batches, [2, 1]);
    }
}
