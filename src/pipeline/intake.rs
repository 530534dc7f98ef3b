//! Messages in, uploads out: pulls the stream, reads each event, skips what is no upload, and joins redeliveries.
//!
//! The only hop that knows about stopping. `MessageStream::next` is never cancelled: a cancelled call leaves a dead
//! stream behind whose messages are lost until their lease ends. So one loop does nothing but call it, and a stop goes
//! through the client's shutdown token.
//!
//! So does the end of a stream that is silent although more messages may be leased. It may be idle, or dead without a
//! sign: the client shows no heartbeat, and its pauses between attempts grow to a minute. Another one on connections of
//! its own costs nothing, and what the first one gave out stays leased.

use std::sync::Arc;
use std::time::{Duration, Instant};

use backoff::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use google_cloud_pubsub::client::Subscriber;
use google_cloud_pubsub::model::Message;
use google_cloud_pubsub::subscriber::handler::Handler;
use google_cloud_pubsub::subscriber::{MessageStream, ShutdownBehavior};
use tokio::sync::mpsc::Sender;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::error::Fatal;
use super::inflight::{Admission, Registry};
use super::job::{EventFacts, Facts, Job, Leased, Outcome, Receipt, Spent};
use super::quiet::Quiet;
use crate::clients::Renewable;
use crate::config::RunConfig;
use crate::event::{self, FailureCode, Filters, Reading, SkipReason, Upload};
use crate::metrics::Metrics;

/// A stream that lived this long was in order, even if it gave no message.
const STEADY: Duration = Duration::from_secs(60);

const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A silent stream is replaced after so long at the latest: about as often as the client itself tries at most.
const LONGEST_SILENCE: Duration = Duration::from_secs(60);

/// Pulls a subscription until told to stop.
pub(super) struct Intake {
    subscriber: Renewable<Subscriber>,
    subscription: String,
    filters: Filters,
    max_outstanding: usize,
    lease_extension: Duration,
    max_lease: Duration,
    /// How long a stream may be silent.
    silence: Duration,
    in_flight: Registry,
    /// Clones of it are with the messages that are held.
    held: Arc<()>,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
}

/// One stream read to its end.
struct Pulled {
    messages: u64,
    end: StreamEnd,
}

/// How a stream ended.
enum StreamEnd {
    /// Pub/Sub refused it. Errors that pass do not end a stream: the client reconnects.
    Refused(google_cloud_pubsub::Error),
    /// Pub/Sub closed it without a word.
    Closed,
    /// It was silent for too long.
    Silent,
}

/// Where intake sends what it makes of a message.
struct Outputs {
    uploads: Sender<Job<()>>,
    outcomes: Sender<Job<Outcome>>,
}

impl Intake {
    pub(super) fn new(
        subscriber: Renewable<Subscriber>,
        config: &RunConfig,
        max_outstanding: usize,
        metrics: Arc<Metrics>,
        stop: CancellationToken,
    ) -> Self {
        Self {
            subscriber,
            subscription: config.subscription.clone(),
            filters: config.filters.clone(),
            max_outstanding,
            lease_extension: config.pipeline.lease_extension,
            max_lease: config.pipeline.max_lease,
            silence: config.pipeline.stream_silence,
            in_flight: Registry::new(config.pipeline.repeat_window),
            held: Arc::default(),
            metrics,
            stop,
        }
    }

    /// Pulls until stopped. Each stream it opened ends in a task of `flushes`, once the messages that it gave out are
    /// settled and Pub/Sub knows.
    ///
    /// A stream that ends is opened again, with growing pauses; one that is refused again and again is
    /// [`Fatal::Stream`].
    pub(super) async fn run(
        self,
        uploads: Sender<Job<()>>,
        outcomes: Sender<Job<Outcome>>,
        flushes: TaskTracker,
    ) -> Result<(), Fatal> {
        let outputs = Outputs { uploads, outcomes };
        let (mut pauses, mut silence) = (pauses(), self.silence);
        loop {
            let opened = Instant::now();
            let Pulled { messages, end } = self.pull(&outputs, &flushes, silence).await;
            if self.stop.is_cancelled() {
                return Ok(());
            }
            if messages > 0 {
                silence = self.silence;
            }
            // A quiet subscription's stream may be closed now and then, and nothing is wrong.
            if messages > 0 || opened.elapsed() > STEADY {
                pauses = self::pauses();
            }
            if let StreamEnd::Silent = end {
                self.metrics.silent();
                self.subscriber.renew("no message for a while").await;
                // A subscription that is idle gets less and less attention, but never less than the client's own.
                silence = (silence * 2).min(self.silence.max(LONGEST_SILENCE));
                continue;
            }
            let pause = match (pauses.next(), end) {
                (Some(pause), _) => pause,
                (None, StreamEnd::Closed | StreamEnd::Silent) => LONGEST_PAUSE,
                (None, StreamEnd::Refused(error)) => {
                    return Err(Fatal::Stream { subscription: self.subscription.clone(), source: error });
                }
            };
            tracing::warn!(subscription = self.subscription, ?pause, "the stream ended; opening another");
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.stop.cancelled() => return Ok(()),
            }
        }
    }

    fn open(&self) -> MessageStream {
        self.subscriber
            .get()
            .subscribe(&self.subscription)
            .set_max_outstanding_messages(i64::try_from(self.max_outstanding).unwrap_or(i64::MAX))
            .set_max_lease_extension(self.lease_extension)
            .set_max_lease(self.max_lease)
            .set_shutdown_behavior(ShutdownBehavior::WaitForProcessing)
            .build()
    }

    /// Opens a stream and reads it to its end, until stopped, or until it was silent for so long.
    async fn pull(&self, outputs: &Outputs, flushes: &TaskTracker, silence: Duration) -> Pulled {
        let mut stream = self.open();
        let ended = CancellationToken::new();
        let _ended_on_return = ended.clone().drop_guard();
        let (shutdown, stop) = (stream.shutdown_token(), self.stop.clone());
        let quiet = Quiet::new(silence, &self.held, self.max_outstanding);
        let watched = quiet.clone();
        flushes.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = ended.cancelled() => {}
                () = watched.too_long() => {}
            }
            shutdown.shutdown().await;
        });
        let mut messages = 0;
        let end = loop {
            quiet.begins();
            let next = stream.next().await;
            quiet.ends();
            match next {
                Some(Ok((message, handler))) => {
                    messages += 1;
                    self.take(message, handler, outputs).await;
                }
                Some(Err(error)) => {
                    tracing::warn!(subscription = self.subscription, %error, "Pub/Sub refused the stream");
                    break StreamEnd::Refused(error);
                }
                None if quiet.was_too_long() => break StreamEnd::Silent,
                None => break StreamEnd::Closed,
            }
        };
        Pulled { messages, end }
    }

    /// Reads one event and sends it where it belongs. A closed output means that the pipeline is ending: the job is
    /// dropped, which returns its message.
    async fn take(&self, message: Message, handler: Handler, outputs: &Outputs) {
        let reading = event::read(&message.attributes, &message.data, &self.filters);
        let mut facts = Box::new(Facts {
            object: None,
            size: None,
            content_type: None,
            event: EventFacts {
                kind: None,
                message_id: message.message_id,
                published_at: message.publish_time.map(String::from),
                attempt: handler.delivery_attempt().and_then(|attempt| attempt.try_into().ok()),
            },
            model: None,
            arrived: Instant::now(),
            spent: Spent::default(),
        });
        let message = Leased::new(handler, &self.held);
        match reading {
            Ok(Reading::Upload(Upload { object, kind, size, content_type })) => {
                match self.in_flight.admit(&object, message, facts.arrived) {
                    Admission::Start(message, entry) => {
                        facts.object = Some(object);
                        facts.event.kind = Some(kind);
                        facts.size = size;
                        facts.content_type = content_type;
                        let job = Job { stage: (), facts, receipt: Receipt::new(message, entry) };
                        drop(outputs.uploads.send(job).await);
                    }
                    Admission::Joined => {
                        self.metrics.joined();
                        let message_id = facts.event.message_id;
                        tracing::info!(%object, message_id, "a redelivery joined the running job");
                    }
                    Admission::Finished(message) => {
                        facts.object = Some(object);
                        facts.event.kind = Some(kind);
                        self.skip(SkipReason::Repeated, facts, message, outputs).await;
                    }
                }
            }
            Ok(Reading::Skip { reason, kind, object }) => {
                facts.object = object;
                facts.event.kind = Some(kind);
                self.skip(reason, facts, message, outputs).await;
            }
            Err(error) => {
                facts.event.kind = error.kind();
                let job = Job { stage: (), facts, receipt: Receipt::new(message, None) };
                drop(outputs.outcomes.send(job.reject(FailureCode::UnreadableEvent, error.to_string())).await);
            }
        }
    }

    async fn skip(&self, reason: SkipReason, facts: Box<Facts>, message: Leased, outputs: &Outputs) {
        let job = Job { stage: Outcome::Skipped(reason), facts, receipt: Receipt::new(message, None) };
        drop(outputs.outcomes.send(job).await);
    }
}

/// Pauses before a stream is opened again: 0.5 s, doubled, with jitter, four times without a message in between.
///
/// The client itself reconnects after errors that pass, for as long as it takes; what ends a stream is a refusal, such
/// as a subscription that does not exist. It can pass too, while a grant spreads, but not for long.
fn pauses() -> ExponentialBackoff {
    ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(500))
        .with_max_delay(LONGEST_PAUSE)
        .with_factor(2.0)
        .with_jitter()
        .with_max_times(4)
        .build()
}
