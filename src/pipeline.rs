//! The data path, wired top to bottom.
//!
//! ```text
//! Pub/Sub ─ intake ─ fetch ─ decode ─ batch ─ infer ─ publish ─ ack
//! ```
//!
//! Each hop is one owned task that reads a bounded channel and ends when that channel closes. On a stop intake pulls no
//! more, fetch returns what it has not begun, and the rest is finished. A job that fails for good leaves its hop straight
//! for publish; a job that may succeed later is dropped, which returns its message. The messages leased at a time bound
//! everything behind intake; after a reconnect, what the old stream gave out counts besides those of the new one.

use std::sync::Arc;
use std::time::Duration;

use google_cloud_pubsub::client::{Publisher, Subscriber};
use google_cloud_storage::client::Storage;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::app::Loaded;
use crate::config::RunConfig;
use crate::event::ModelInfo;
use crate::metrics::Metrics;
use decode::Decoder;
use infer::Labeler;
use intake::Intake;
use publish::Writer;

mod batch;
mod decode;
mod each;
mod error;
mod fetch;
mod infer;
mod inflight;
mod intake;
mod job;
mod publish;

pub use batch::CloseReason;
pub use error::{Fatal, RetryReason};
pub use fetch::{FetchError, Fetcher};
pub use infer::Engine;
pub(crate) use job::Settled;

/// How long the client may take to send the last acks and nacks once every receipt is settled. It flushes every 100 ms.
const FLUSH: Duration = Duration::from_secs(1);

/// How long a failed worker waits for its stream to close here, and then for Pub/Sub to notice.
const CLOSE: Duration = Duration::from_millis(200);

/// What the pipeline is made of, built and checked.
pub struct Parts {
    /// Pub/Sub, reading.
    pub subscriber: Subscriber,
    /// The results topic.
    pub publisher: Publisher,
    /// Cloud Storage.
    pub storage: Storage,
    /// The loaded model, golden check passed.
    pub model: Loaded,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Everything held was finished.
    Drained,
    /// The grace ran out; what was left is back with Pub/Sub.
    Returned,
}

/// Runs until `stop` is cancelled and what is held is finished, or until the grace runs out.
///
/// # Errors
/// Something that makes further work wrong or pointless; every message still held has been returned to Pub/Sub.
pub async fn run(
    parts: Parts,
    config: &RunConfig,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
) -> Result<Ended, Fatal> {
    let sizes = &config.pipeline;
    let (uploads_in, uploads) = mpsc::channel(sizes.max_outstanding);
    let (bodies_in, bodies) = mpsc::channel(sizes.decode_threads);
    let (images_in, images) = mpsc::channel(sizes.max_batch);
    let (batches_in, batches) = mpsc::channel(1);
    let (outcomes_in, outcomes) = mpsc::channel(sizes.max_outstanding);

    let Parts { subscriber, publisher, storage, model: Loaded { bundle, classifier, .. } } = parts;
    let model = ModelInfo {
        name: bundle.manifest().name.clone(),
        digest: bundle.digest().to_owned(),
        device: classifier.device().to_owned(),
    };
    let decoder = Decoder::new(sizes.decode_threads, config.limits, bundle.manifest().preprocess())?;
    let labeler = Labeler { bundle, top_k: config.model.top_k, min_score: config.model.min_score };
    let engine = Arc::new(Engine::start(classifier)?);
    let slots = Arc::new(Semaphore::new(infer::SLOTS));
    let fetcher = Fetcher::new(storage, &sizes.fetch);
    let writer = Writer::new(publisher, config, model, metrics.clone());
    let pulling = stop.child_token();

    let mut pull = JoinSet::new();
    let intake = Intake::new(subscriber, config, metrics.clone(), pulling.clone());
    let flushes = TaskTracker::new();
    pull.spawn(intake.run(uploads_in, outcomes_in.clone(), flushes.clone()));

    let mut hops = JoinSet::new();
    let uploads = fetch::Uploads { waiting: uploads, stop: pulling.clone() };
    hops.spawn(fetch::run(uploads, fetcher, metrics.clone(), bodies_in, outcomes_in.clone()));
    hops.spawn(decode::run(bodies, decoder, images_in, outcomes_in.clone()));
    hops.spawn(batch::run(images, sizes.max_batch, slots, metrics.clone(), batches_in));
    hops.spawn(infer::run(batches, engine, labeler, outcomes_in));
    hops.spawn(publish::run(outcomes, writer));

    let ended = supervise(&mut hops, &mut pull, &stop, sizes.grace).await;
    pulling.cancel();
    if ended.is_err() {
        // First the stream: what is returned while it is open comes straight back on it, and waits there for its lease.
        drop(timeout(CLOSE, pull.join_next()).await);
        sleep(CLOSE).await;
    }
    hops.shutdown().await;
    // Every receipt is settled or dropped now; the client still has to tell Pub/Sub.
    flushes.close();
    let flushed = timeout(FLUSH, async { tokio::join!(pull.join_next(), flushes.wait()) }).await;
    if flushed.is_err() {
        tracing::warn!("the last acks did not get through in time; those messages will come again");
    }
    ended
}

/// Waits for the hops to end by themselves, for one to fail, or for the grace to run out after a stop.
async fn supervise(
    hops: &mut JoinSet<Result<(), Fatal>>,
    pull: &mut JoinSet<Result<(), Fatal>>,
    stop: &CancellationToken,
    grace: Duration,
) -> Result<Ended, Fatal> {
    let deadline = async {
        stop.cancelled().await;
        tracing::info!(?grace, "stopping: finishing what is held");
        sleep(grace).await;
    };
    tokio::pin!(deadline);
    loop {
        tokio::select! {
            hop = hops.join_next() => match hop {
                Some(ended) => Fatal::flatten(ended)?,
                // The hops end when intake does, and it may have ended by failing.
                None => {
                    let intake = pull.join_next().await;
                    return intake.map_or(Ok(()), Fatal::flatten).map(|()| Ended::Drained);
                }
            },
            Some(ended) = pull.join_next() => Fatal::flatten(ended)?,
            () = &mut deadline => return Ok(Ended::Returned),
        }
    }
}
