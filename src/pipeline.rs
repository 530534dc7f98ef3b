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

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::app::Loaded;
use crate::clients::WorkerClients;
use crate::config::RunConfig;
use crate::metrics::Metrics;
use crate::reload::Follower;
use crate::vram::Sizing;
use closing::Closing;
use decode::Decoder;
use engine::FIRST_MODEL;
use generation::{Current, Generation};
use infer::Labeler;
use intake::Intake;
use publish::Writer;
use swap::Swap;

mod admission;
mod batch;
mod canary;
mod closing;
mod decode;
mod each;
mod engine;
mod error;
mod fetch;
mod generation;
mod infer;
mod inflight;
mod intake;
mod job;
mod pressure;
mod publish;
mod quiet;
mod rungs;
mod swap;

pub use admission::Admission;
pub use batch::CloseReason;
pub use engine::Engine;
pub use error::{Fatal, RetryReason};
pub use fetch::{FetchError, Fetcher};
pub(crate) use job::Settled;

/// How long the client may take to send the last acks and nacks once every receipt is settled. It flushes every 100 ms.
const FLUSH: Duration = Duration::from_secs(1);

/// What the pipeline is made of, built and checked.
pub struct Parts {
    /// What it calls.
    pub clients: WorkerClients,
    /// The loaded model, golden check passed.
    pub model: Loaded,
    /// How many of everything there may be at a time.
    pub sizing: Sizing,
    /// The pointer object that names the next model, where one is followed.
    pub follower: Option<Follower>,
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
    let Parts { clients: WorkerClients { subscriber, publisher, storage }, model, sizing, follower } = parts;
    let Sizing { ceiling, in_flight, outstanding, decode_threads, watched, planner, plan_at } = sizing;
    let (uploads_in, uploads) = mpsc::channel(outstanding);
    let (bodies_in, bodies) = mpsc::channel(decode_threads);
    let (images_in, images) = mpsc::channel(ceiling.planned());
    let (batches_in, batches) = mpsc::channel(in_flight);
    let (outcomes_in, outcomes) = mpsc::channel(outstanding);

    // One batch more, whose pixels go to the device while another one runs.
    let ahead = model.classifier.ahead_bytes(1) > 0;
    let ceiling = if ahead { ceiling.with_ahead() } else { ceiling };
    let running = in_flight + usize::from(ahead);

    metrics.planned(plan_at);
    let admission = Admission::new(ceiling, metrics.clone());
    let first = Generation::new(FIRST_MODEL, model.bundle.clone(), model.classifier.device());
    let (replace, current) = Current::new(first);
    let decoder = Decoder::new(decode_threads, config.limits, current.clone())?;
    let labeler = Labeler { top_k: config.model.top_k, min_score: config.model.min_score };
    let engine = Arc::new(Engine::start(model, admission.clone(), planner, metrics.clone())?);
    let fetcher = Fetcher::new(storage, &config.pipeline.fetch);
    let pulling = stop.child_token();
    let closing = Closing::new(pulling.clone());
    let writer = Writer::new(publisher, config, outstanding, current, metrics.clone(), closing.clone());

    let mut pull = JoinSet::new();
    let intake = Intake::new(subscriber, config, outstanding, metrics.clone(), pulling.clone());
    let flushes = TaskTracker::new();
    pull.spawn(closing.reading(intake.run(uploads_in, outcomes_in.clone(), flushes.clone())));

    let mut hops = JoinSet::new();
    let uploads = fetch::Uploads { waiting: uploads, stop: pulling.clone() };
    hops.spawn(fetch::run(uploads, fetcher, metrics.clone(), bodies_in, outcomes_in.clone()));
    hops.spawn(decode::run(bodies, decoder, closing.clone(), images_in, outcomes_in.clone()));
    hops.spawn(batch::run(images, admission.clone(), metrics.clone(), batches_in));
    hops.spawn(infer::run(batches, engine.clone(), labeler, running, closing.clone(), outcomes_in));
    hops.spawn(publish::run(outcomes, writer));

    // Beside the data path: what keeps the model right and new until the stop.
    let mut keepers = JoinSet::new();
    keepers.spawn(canary::run(config.canary_interval, engine.clone(), pulling.clone()));
    keepers.spawn(pressure::run(watched, admission, engine.clone(), metrics.clone(), pulling.clone()));
    if let Some(follower) = follower {
        let swap = Swap { engine, replace, metrics };
        keepers.spawn(swap::run(follower, swap, pulling.clone()));
    }

    let ended = supervise(&mut hops, &mut pull, &mut keepers, &stop, config.pipeline.grace).await;
    let ended = closing.before_error(ended).await;
    pulling.cancel();
    keepers.shutdown().await;
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
    keepers: &mut JoinSet<Result<(), Fatal>>,
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
            Some(ended) = keepers.join_next() => Fatal::flatten(ended)?,
            () = &mut deadline => return Ok(Ended::Returned),
        }
    }
}
