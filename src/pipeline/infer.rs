//! Batches run on the device, and their answers become labels: on the model that the images were prepared for, with its
//! names.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc::{Receiver, Sender};

use super::batch::Batch;
use super::closing::Closing;
use super::decode::Waiting;
use super::each::each;
use super::engine::Engine;
use super::error::Fatal;
use super::job::{Job, Outcome};
use crate::event::FailureCode;
use crate::model::{Answer, Bundle, labels};

/// Turns logits into the labels of a result.
#[derive(Clone, Copy)]
pub(super) struct Labeler {
    pub(super) top_k: usize,
    pub(super) min_score: f32,
}

impl Labeler {
    fn label(
        self,
        Answer { logits, embedding }: &Answer,
        bundle: &Bundle,
    ) -> Result<Vec<labels::Label>, labels::NotFinite> {
        labels::check_finite(embedding.as_deref().unwrap_or_default())?;
        labels::top(logits, bundle.labels(), bundle.manifest().activation, self.top_k, self.min_score)
    }
}

/// Runs each batch and turns its logits into labels.
pub(super) async fn run(
    batches: Receiver<Batch>,
    engine: Arc<Engine>,
    labeler: Labeler,
    in_flight: usize,
    closing: Closing,
    outcomes: Sender<Job<Outcome>>,
) -> Result<(), Fatal> {
    each(batches, in_flight, |Batch { jobs, permit }| {
        let (engine, closing, outcomes) = (engine.clone(), closing.clone(), outcomes.clone());
        async move {
            let started = Instant::now();
            let (mut pixels, mut waiting, mut in_use) = (Vec::new(), Vec::new(), Vec::new());
            for job in jobs {
                let (Waiting { prepared, model, since }, mut job) = job.split();
                job.facts.spent.wait = Some(started.duration_since(since));
                pixels.push(prepared.pixels);
                waiting.push(job.with(prepared.info));
                in_use.push(model);
            }
            let Some(model) = in_use.first().map(|job| job.model.clone()) else { return Ok(()) };
            let answers = closing.before_error(engine.run_on(model.number, pixels).await).await?;
            drop((permit, in_use));
            let took = started.elapsed();
            let mut checked = false;
            for (job, answer) in waiting.into_iter().zip(answers) {
                let (image, mut job) = job.split();
                job.facts.spent.infer = Some(took);
                let outcome = match labeler.label(&answer, &model.bundle) {
                    Ok(labels) => job.with(Outcome::Labeled { image, labels, embedding: answer.embedding }),
                    // Numbers overflow, in half precision above all; or the device computes wrong.
                    Err(error) => {
                        if !std::mem::replace(&mut checked, true) {
                            closing.before_error(engine.check().await).await?;
                        }
                        job.reject(FailureCode::NotFinite, error.to_string())
                    }
                };
                drop(outcomes.send(outcome).await);
            }
            Ok(())
        }
    })
    .await
}
