//! Results out: waits until Pub/Sub has confirmed the result, then settles the message.
//!
//! The client retries the call within the deadline; a result that is not confirmed returns its message, so that the
//! upload comes again. Concurrency bounds the client's own queue, which has no bound.

use std::sync::Arc;
use std::time::{Duration, Instant};

use google_cloud_gax::error::rpc::Code;
use google_cloud_pubsub::client::Publisher;
use google_cloud_pubsub::error::PublishError;
use google_cloud_pubsub::model::Message;
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;

use super::closing::Closing;
use super::each::each;
use super::error::{Fatal, RetryReason};
use super::generation::Current;
use super::job::{Facts, Job, Outcome, Spent};
use crate::clients::Renewable;
use crate::config::RunConfig;
use crate::event::{Failure, LabelResult, ObjectInfo, Status, Timing, WorkerInfo, result_id, unreadable_id};
use crate::metrics::Metrics;

/// Writes results to the topic. Clones share the client.
#[derive(Clone)]
pub(super) struct Writer {
    shared: Arc<Shared>,
}

struct Shared {
    publisher: Renewable<Publisher>,
    closing: Closing,
    topic: String,
    deadline: Duration,
    concurrency: usize,
    /// What a result names that failed before a model had to do with it.
    current: Current,
    worker: WorkerInfo,
    metrics: Arc<Metrics>,
}

/// Why a result was not confirmed.
#[derive(Debug, thiserror::Error)]
enum Unconfirmed {
    #[error("the result was not confirmed within {0:?} (--publish-timeout)")]
    TimedOut(Duration),
    #[error(transparent)]
    Refused(PublishError),
}

impl Writer {
    pub(super) fn new(
        publisher: Renewable<Publisher>,
        config: &RunConfig,
        concurrency: usize,
        current: Current,
        metrics: Arc<Metrics>,
        closing: Closing,
    ) -> Self {
        let worker = WorkerInfo { version: env!("CARGO_PKG_VERSION").to_owned(), instance: config.instance.clone() };
        let shared = Shared {
            publisher,
            closing,
            topic: config.results_topic.clone(),
            deadline: config.pipeline.publish_timeout,
            concurrency,
            current,
            worker,
            metrics,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Publishes the job's result, if it has one, and settles its message.
    async fn finish(&self, job: Job<Outcome>) -> Result<(), Fatal> {
        let (outcome, job) = job.split();
        if let Outcome::Skipped(reason) = outcome {
            tracing::info!(object = named(&job.facts), verdict = "skipped", reason = reason.as_str());
            let settled = job.receipt.done().await;
            self.shared.metrics.skipped(reason, settled);
            return Ok(());
        }
        let result = self.result(&job.facts, outcome);
        match self.publish(&result).await {
            Ok(()) => {
                let settled = job.receipt.done().await;
                log(&result);
                self.shared.metrics.finished(&result, settled);
                Ok(())
            }
            Err(Unconfirmed::Refused(error)) if is_refusal_of_topic(&error) => {
                let fatal = Fatal::ResultsTopic { topic: self.shared.topic.clone(), source: error };
                self.shared.closing.before_error(Err(fatal)).await
            }
            Err(error) => {
                job.retry(error.reason(), &error, &self.shared.metrics);
                Ok(())
            }
        }
    }

    async fn publish(&self, result: &LabelResult) -> Result<(), Unconfirmed> {
        let message = Message::new().set_data(result.to_json()).set_attributes(result.attributes());
        let Shared { publisher, deadline, .. } = &*self.shared;
        match timeout(*deadline, publisher.get().publish(message)).await {
            Ok(confirmed) => confirmed.map(drop).map_err(Unconfirmed::Refused),
            Err(_) => {
                publisher.renew("a publish timed out").await;
                Err(Unconfirmed::TimedOut(*deadline))
            }
        }
    }

    fn result(&self, facts: &Facts, outcome: Outcome) -> LabelResult {
        let Shared { current, worker, .. } = &*self.shared;
        let model = facts.model.clone().unwrap_or_else(|| current.get()).info.clone();
        let id = match &facts.object {
            Some(object) => result_id(object, &model.digest),
            None => unreadable_id(&facts.event.message_id),
        };
        let mut result = LabelResult {
            id,
            status: Status::Failed,
            object: facts.object.as_ref().map(|object| ObjectInfo {
                bucket: object.bucket.clone(),
                name: object.name.clone(),
                generation: object.generation,
                size: facts.size,
                content_type: facts.content_type.clone(),
            }),
            image: None,
            labels: Vec::new(),
            embedding: None,
            model,
            event: facts.event.info(),
            timing_ms: timing(&facts.spent, facts.arrived),
            worker: worker.clone(),
            error: None,
        };
        match outcome {
            Outcome::Labeled { image, labels, embedding } => {
                result.status = Status::Labeled;
                result.image = Some(image.into());
                result.labels = labels.into_iter().map(Into::into).collect();
                result.embedding = embedding;
            }
            Outcome::Failed { code, message } => result.error = Some(Failure::new(code, message)),
            Outcome::Skipped(_) => {}
        }
        result
    }
}

impl Unconfirmed {
    fn reason(&self) -> RetryReason {
        match self {
            Self::TimedOut(_) => RetryReason::PublishTimeout,
            Self::Refused(_) => RetryReason::PublishFailed,
        }
    }
}

/// Whether the topic is missing or closed to this identity: every other result would be refused as well.
fn is_refusal_of_topic(error: &PublishError) -> bool {
    let PublishError::Rpc(error) = error else { return false };
    error.status().is_some_and(|status| matches!(status.code, Code::NotFound | Code::PermissionDenied))
}

/// Publishes each job's outcome, as many at a time as messages are leased.
pub(super) async fn run(outcomes: Receiver<Job<Outcome>>, writer: Writer) -> Result<(), Fatal> {
    each(outcomes, writer.shared.concurrency, |job| {
        let writer = writer.clone();
        async move { writer.finish(job).await }
    })
    .await
}

fn timing(spent: &Spent, arrived: Instant) -> Timing {
    let whole = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let ms = |time: Option<Duration>| time.map(whole);
    Timing {
        fetch: ms(spent.fetch),
        decode: ms(spent.decode),
        wait: ms(spent.wait),
        infer: ms(spent.infer),
        total: whole(arrived.elapsed()),
    }
}

fn named(facts: &Facts) -> Option<String> {
    facts.object.as_ref().map(ToString::to_string)
}

/// One line an outcome, where it settles.
fn log(result: &LabelResult) {
    let object = result.object.as_ref().map(|object| format!("gs://{}/{}", object.bucket, object.name));
    let (attempt, total_ms) = (result.event.attempt, result.timing_ms.total);
    match (&result.error, result.labels.first()) {
        (Some(error), _) => {
            let code = error.code.as_str();
            tracing::warn!(object, verdict = "failed", code, reason = error.message, attempt, total_ms);
        }
        (None, best) => {
            let label = best.map(|label| label.name.as_str());
            tracing::info!(object, verdict = "labeled", label, attempt, total_ms);
        }
    }
}
