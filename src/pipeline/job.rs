//! One upload on its way through the hops, and the receipt that settles its message.
//!
//! `Job<S>` is generic over what the current hop has made of it: `Upload` → [`Body`](super::fetch::Body) →
//! `Prepared` → [`Outcome`]. The [`Receipt`] is the only code that settles a message: `done` acknowledges,
//! dropping it returns the message to Pub/Sub.

use std::sync::Arc;
use std::time::{Duration, Instant};

use google_cloud_pubsub::subscriber::handler::Handler;
use tokio::task::JoinSet;

use super::error::RetryReason;
use super::generation::Generation;
use super::inflight::InFlight;
use crate::event::{EventInfo, EventKind, FailureCode, ObjectId, SkipReason};
use crate::image::ImageInfo;
use crate::metrics::Metrics;
use crate::model::labels::Label;

/// One upload and what the hops know of it so far.
#[derive(Debug)]
pub(super) struct Job<S> {
    pub(super) stage: S,
    pub(super) facts: Box<Facts>,
    pub(super) receipt: Receipt,
}

/// What stays with a job whatever its stage.
#[derive(Debug)]
pub(super) struct Facts {
    /// The object; its generation is filled in by the read where the event named none. `None`: the event is unreadable.
    pub(super) object: Option<ObjectId>,
    /// Size in bytes, from the event and then from the read.
    pub(super) size: Option<u64>,
    /// Declared content type, from the event and then from the read.
    pub(super) content_type: Option<String>,
    pub(super) event: EventFacts,
    /// The model that the image was prepared for; `None` before that.
    pub(super) model: Option<Arc<Generation>>,
    pub(super) arrived: Instant,
    pub(super) spent: Spent,
}

/// The message that brought the event.
#[derive(Clone, Debug)]
pub(super) struct EventFacts {
    /// `None` when no known shape was found.
    pub(super) kind: Option<EventKind>,
    pub(super) message_id: String,
    pub(super) published_at: Option<String>,
    /// Delivery attempt; known only where the subscription has a dead-letter policy.
    pub(super) attempt: Option<u32>,
}

/// Time a job spent in each hop it reached; `wait` is from decoded to the start of its batch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spent {
    pub(super) fetch: Option<Duration>,
    pub(super) decode: Option<Duration>,
    pub(super) wait: Option<Duration>,
    pub(super) infer: Option<Duration>,
}

/// How a job ends, when it does not go back to Pub/Sub.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The labels, best first, and the embedding where the model gives one.
    Labeled { image: ImageInfo, labels: Vec<Label>, embedding: Option<Vec<f32>> },
    /// A permanent failure: retrying would fail the same way.
    Failed { code: FailureCode, message: String },
    /// Not an upload that this worker labels: no result, only the ack.
    Skipped(SkipReason),
}

impl<S> Job<S> {
    /// The job with the next stage's value in place of this one's.
    pub(super) fn with<T>(self, stage: T) -> Job<T> {
        Job { stage, facts: self.facts, receipt: self.receipt }
    }

    /// The job with its stage's value taken out.
    pub(super) fn split(self) -> (S, Job<()>) {
        let Self { stage, facts, receipt } = self;
        (stage, Job { stage: (), facts, receipt })
    }

    /// Ends the job by returning its messages to Pub/Sub, which delivers them again under its retry policy.
    pub(super) fn retry(self, reason: RetryReason, error: &dyn std::error::Error, metrics: &Metrics) {
        let Facts { object, event, .. } = &*self.facts;
        let object = object.as_ref().map(ToString::to_string);
        tracing::warn!(object, attempt = event.attempt, verdict = "retry", reason = reason.as_str(), %error);
        metrics.retried(reason);
        drop(self.receipt);
    }

    /// The job as a failed result.
    pub(super) fn reject(self, code: FailureCode, message: impl Into<String>) -> Job<Outcome> {
        self.with(Outcome::Failed { code, message: message.into() })
    }
}

/// The right, and the duty, to settle the messages of one upload.
///
/// It holds the message that started the job and, through [`InFlight`], the redeliveries that joined it. Dropping it
/// returns all of them to Pub/Sub.
#[derive(Debug)]
#[must_use = "dropping a receipt returns its message to Pub/Sub"]
pub(super) struct Receipt {
    message: Leased,
    joined: Option<InFlight>,
}

/// A message that this worker has; dropping it returns the message to Pub/Sub.
#[derive(Debug)]
pub(super) struct Leased {
    handler: Handler,
    _held: Arc<()>,
}

impl Leased {
    /// Counted by the clones of `held`.
    pub(super) fn new(handler: Handler, held: &Arc<()>) -> Self {
        Self { handler, _held: held.clone() }
    }
}

impl Receipt {
    /// A receipt for a message whose redeliveries, if any, join through `joined`.
    pub(super) fn new(message: Leased, joined: Option<InFlight>) -> Self {
        Self { message, joined }
    }

    /// Acknowledges every message of the upload; the one place that does.
    ///
    /// On a subscription with exactly-once delivery it waits for the confirmation. Returns how many messages were
    /// acknowledged and how many confirmations failed; a message of the latter comes again and gives the same result.
    pub(super) async fn done(self) -> Settled {
        let redelivered = self.joined.map(|entry| entry.finish(Instant::now())).unwrap_or_default();
        let mut settled = Settled::default();
        // All acks leave before the first confirmation is awaited: each takes a flush of the client, 0.1 s.
        let mut confirmations = JoinSet::new();
        for message in std::iter::once(self.message).chain(redelivered) {
            match message.handler {
                Handler::ExactlyOnce(message) => drop(confirmations.spawn(message.confirmed_ack())),
                message => {
                    message.ack();
                    settled.acked += 1;
                }
            }
        }
        while let Some(confirmed) = confirmations.join_next().await {
            match confirmed {
                Ok(Ok(())) => settled.acked += 1,
                Ok(Err(error)) => {
                    tracing::warn!(%error, "ack not confirmed: Pub/Sub will deliver the message again");
                    settled.unconfirmed += 1;
                }
                Err(error) => tracing::error!(%error, "an ack's task ended early"),
            }
        }
        settled
    }
}

/// What [`Receipt::done`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settled {
    pub(crate) acked: u64,
    pub(crate) unconfirmed: u64,
}

impl EventFacts {
    /// The facts as a result carries them.
    pub(super) fn info(&self) -> EventInfo {
        EventInfo {
            kind: self.kind,
            message_id: self.message_id.clone(),
            published_at: self.published_at.clone(),
            attempt: self.attempt,
        }
    }
}
