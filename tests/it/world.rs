//! What a worker needs around it, over real sockets: topics, subscriptions, a bucket, and the results read back.
//!
//! The same over the in-process services and over other people's emulators, through Google's clients alone.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use google_cloud_auth::credentials::{Credentials, anonymous};
use google_cloud_pubsub::client::{Publisher, Subscriber, SubscriptionAdmin, TopicAdmin};
use google_cloud_pubsub::model::{Message, Subscription};
use google_cloud_storage::client::Storage;
use stoker::app::{self, AppError, Loaded};
use stoker::clients::Connector;
use stoker::config::{PipelineConfig, RunArgs, RunConfig};
use stoker::event::LabelResult;
use stoker::local::{Services, Settings};
use stoker::metrics::{Counts, Metrics};
use stoker::pipeline::{self, Ended, Parts};
use stoker::vram::Sizing;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Most time any test may take before it counts as stuck.
const STUCK: Duration = Duration::from_secs(120);

/// What was on its way over a stream that broke comes again when its lease ends; this is the shortest there is.
const SHORTEST_LEASE: Duration = Duration::from_secs(10);

pub(crate) const CAT: &[u8] = include_bytes!("../../fixtures/photos/chelsea.jpg");
pub(crate) const COFFEE: &[u8] = include_bytes!("../../fixtures/photos/coffee.jpg");
pub(crate) const ROCKET: &[u8] = include_bytes!("../../fixtures/photos/rocket.jpg");

/// Waits for `work`, but not for ever.
pub(crate) async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(STUCK, work).await.expect("stuck")
}

/// Services with an uploads subscription, a results subscription and a bucket, under names of their own.
pub(crate) struct World {
    pub(crate) pubsub: String,
    pub(crate) storage: String,
    /// The in-process services, where the world is theirs.
    pub(crate) local: Option<Services>,
    pub(crate) bucket: String,
    pub(crate) uploads_topic: String,
    pub(crate) uploads: String,
    pub(crate) results_topic: String,
    results: mpsc::Receiver<Received>,
    _reading: JoinSet<()>,
    publisher: Publisher,
    objects: Storage,
}

/// A result and the message it came in.
pub(crate) struct Received {
    pub(crate) result: LabelResult,
    pub(crate) message: Message,
}

impl World {
    /// A world of in-process services.
    pub(crate) async fn local() -> Self {
        Self::local_with(|uploads| uploads).await
    }

    /// The same with an uploads subscription of another kind.
    pub(crate) async fn local_with(uploads: impl FnOnce(Subscription) -> Subscription) -> Self {
        let services = Services::start(Settings::default()).await.unwrap();
        services.create_bucket("photos").unwrap();
        let (pubsub, storage) = (services.pubsub_endpoint(), services.storage_endpoint());
        Self { local: Some(services), ..Self::at(pubsub, storage, "photos".to_owned(), uploads).await }
    }

    /// A world of services that run already, with a bucket that exists.
    pub(crate) async fn at(
        pubsub: String,
        storage: String,
        bucket: String,
        uploads: impl FnOnce(Subscription) -> Subscription,
    ) -> Self {
        static WORLDS: AtomicU64 = AtomicU64::new(0);
        let id = format!("{}-{}", std::process::id(), WORLDS.fetch_add(1, Ordering::Relaxed));
        let topics = TopicAdmin::builder().with_endpoint(&pubsub).with_credentials(anyone()).build().await.unwrap();
        let subscriptions = SubscriptionAdmin::builder().with_endpoint(&pubsub).with_credentials(anyone());
        let subscriptions = subscriptions.build().await.unwrap();
        let name = |kind: &str, id: &str| format!("projects/stoker/{kind}/{id}");
        let (uploads_topic, results_topic) = (name("topics", &format!("up-{id}")), name("topics", &format!("re-{id}")));
        let (uploads_name, results_name) =
            (name("subscriptions", &format!("up-{id}")), name("subscriptions", &format!("re-{id}")));
        for topic in [&uploads_topic, &results_topic] {
            topics.create_topic().set_name(topic).send().await.unwrap();
        }
        let plain =
            |name: &str, topic: &str| Subscription::new().set_name(name).set_topic(topic).set_ack_deadline_seconds(10);
        for subscription in [uploads(plain(&uploads_name, &uploads_topic)), plain(&results_name, &results_topic)] {
            subscriptions.create_subscription().with_request(subscription).send().await.unwrap();
        }
        let subscriber = Subscriber::builder().with_endpoint(&pubsub).with_credentials(anyone());
        let (results, reading) = read(subscriber.build().await.unwrap(), results_name);
        let publisher = Publisher::builder(&uploads_topic).with_endpoint(&pubsub).with_credentials(anyone());
        let objects = Storage::builder().with_endpoint(&storage).with_credentials(anyone());
        Self {
            local: None,
            bucket,
            uploads: uploads_name,
            uploads_topic,
            results_topic,
            results,
            _reading: reading,
            publisher: publisher.build().await.unwrap(),
            objects: objects.build().await.unwrap(),
            pubsub,
            storage,
        }
    }

    /// The in-process services.
    pub(crate) fn services(&self) -> &Services {
        self.local.as_ref().expect("a world of in-process services")
    }

    /// Stores an object; returns its generation. No event follows.
    pub(crate) async fn put(&self, name: &str, bytes: &'static [u8]) -> i64 {
        let bytes = bytes::Bytes::from_static(bytes);
        let write = self.objects.write_object(format!("projects/_/buckets/{}", self.bucket), name, bytes);
        write.set_content_type("image/jpeg").send_buffered().await.unwrap().generation
    }

    /// Publishes an upload event.
    pub(crate) async fn publish(&self, attributes: HashMap<String, String>, data: impl Into<Vec<u8>>) -> String {
        let message = Message::new().set_attributes(attributes).set_data(data.into());
        self.publisher.publish(message).await.unwrap()
    }

    /// Publishes what a bucket says when an object is finalized, without a payload.
    pub(crate) async fn announce(&self, name: &str, generation: i64) -> String {
        let attributes = [
            ("eventType", "OBJECT_FINALIZE"),
            ("payloadFormat", "NONE"),
            ("bucketId", &self.bucket),
            ("objectId", name),
            ("objectGeneration", &generation.to_string()),
        ];
        self.publish(attributes.map(|(key, value)| (key.to_owned(), value.to_owned())).into(), Vec::new()).await
    }

    /// Stores an object and announces it; returns its generation.
    pub(crate) async fn upload(&self, name: &str, bytes: &'static [u8]) -> i64 {
        let generation = self.put(name, bytes).await;
        self.announce(name, generation).await;
        generation
    }

    /// The next result.
    pub(crate) async fn next(&mut self) -> Received {
        within(self.results.recv()).await.expect("the results ended")
    }

    /// The next `n` results by the name of their object.
    pub(crate) async fn results(&mut self, n: usize) -> HashMap<String, LabelResult> {
        let mut results = HashMap::new();
        while results.len() < n {
            let Received { result, .. } = self.next().await;
            let name = result.object.as_ref().expect("a result with an object").name.clone();
            results.insert(name, result);
        }
        results
    }

    /// Starts a worker on this world.
    pub(crate) fn worker(&self, flags: &[(&str, &str)]) -> Worker {
        let config = self.config(flags);
        Worker::start(|metrics, stop| async move { app::run(&config, metrics, stop).await })
    }

    /// Starts a worker whose model is on its device already.
    pub(crate) fn worker_on(&self, model: Loaded, flags: &[(&str, &str)]) -> Worker {
        let PipelineConfig { max_batch, max_outstanding, .. } = self.config(flags).pipeline;
        self.worker_sized(model, Sizing::unmeasured(max_batch, max_outstanding, 2), flags)
    }

    /// The same, with these sizes.
    pub(crate) fn worker_sized(&self, model: Loaded, sizing: Sizing, flags: &[(&str, &str)]) -> Worker {
        let config = self.config(flags);
        Worker::start(|metrics, stop| async move {
            let connector = Connector::new(config.services.clone()).await?;
            let clients = connector.worker(&config.results_topic, config.pipeline.publish_timeout).await?;
            let parts = Parts { clients, model, sizing, follower: None };
            Ok(pipeline::run(parts, &config, metrics, stop).await?)
        })
    }

    fn config(&self, flags: &[(&str, &str)]) -> RunConfig {
        let needed = [
            ("--pubsub-endpoint", self.pubsub.as_str()),
            ("--storage-endpoint", self.storage.as_str()),
            ("--subscription", self.uploads.as_str()),
            ("--results-topic", self.results_topic.as_str()),
            ("--instance", "test"),
            // Measuring costs each a second or more.
            ("--plan", "off"),
        ];
        RunArgs::from_flags(needed.into_iter().chain(flags.iter().copied())).unwrap().check().unwrap()
    }
}

/// A running worker. Dropping it kills it where it stands.
pub(crate) struct Worker {
    pub(crate) metrics: Arc<Metrics>,
    stop: CancellationToken,
    task: JoinSet<Result<Ended, AppError>>,
}

impl Worker {
    fn start<Run>(run: impl FnOnce(Arc<Metrics>, CancellationToken) -> Run) -> Self
    where
        Run: Future<Output = Result<Ended, AppError>> + Send + 'static,
    {
        let (metrics, stop) = (Arc::new(Metrics::default()), CancellationToken::new());
        let mut task = JoinSet::new();
        task.spawn(run(metrics.clone(), stop.clone()));
        Worker { metrics, stop, task }
    }

    /// Waits until the worker has counted what is `wanted`.
    pub(crate) async fn counted(&self, wanted: impl Fn(&Counts) -> bool) -> Counts {
        within(self.metrics.wait_until(wanted)).await
    }

    /// Tells the worker to stop and waits until it has.
    pub(crate) async fn stop(self) -> Result<Ended, AppError> {
        self.stop.cancel();
        self.ended().await
    }

    /// Waits until the worker ends by itself.
    pub(crate) async fn ended(mut self) -> Result<Ended, AppError> {
        within(self.task.join_next()).await.expect("one task").expect("no panic")
    }
}

fn anyone() -> Credentials {
    anonymous::Builder::new().build()
}

/// Reads a subscription in a task of its own: a cancelled `next()` would leave a dead stream behind.
fn read(subscriber: Subscriber, subscription: String) -> (mpsc::Receiver<Received>, JoinSet<()>) {
    let (results, receiver) = mpsc::channel(1024);
    let mut reading = JoinSet::new();
    reading.spawn(async move {
        let mut stream = subscriber.subscribe(subscription).set_max_lease_extension(SHORTEST_LEASE).build();
        while let Some(Ok((message, handler))) = stream.next().await {
            handler.ack();
            let result = serde_json::from_slice(&message.data).expect("every message on the results topic is a result");
            if results.send(Received { result, message }).await.is_err() {
                return;
            }
        }
    });
    (receiver, reading)
}
