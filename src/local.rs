//! In-process Pub/Sub and Cloud Storage, for `stoker demo` and the tests.
//!
//! [`Services`] serves both on loopback ports, so that Google's own clients can be pointed at them, and offers what a
//! test needs besides: direct calls without a client, counts, events to wait for, and a script of [`Faults`].
//! Everything is in memory, bounded by [`Settings`], and gone when the services stop.
//!
//! ```text
//! client ── gRPC, REST ── pubsub ── broker ── queue      (one queue a subscription)
//! client ── HTTP ──────── storage ── store ── broker     (notifications)
//! ```

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use broker::{Broker, Received};
use message::Draft;
use net::Connections;
use pubsub::Pubsub;
use storage::Storage;
use store::{Conditions, Store};

pub use error::Error;
pub use fault::{Call, Fault, Faults, Rule};
pub use message::Message;
pub use notification::Payload;
pub use object::Content;
pub use queue::Counts;
pub use subscription::{Backoff, DeadLetter, SubscriptionSettings};

mod broker;
mod error;
mod fault;
mod message;
mod net;
mod notification;
mod object;
mod pubsub;
mod queue;
mod storage;
mod store;
mod subscription;

/// How long calls in flight may take to finish when the services stop.
const GRACE: Duration = Duration::from_secs(1);

/// Where the services listen and what they may hold.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Address of Pub/Sub; port 0 takes a free one.
    pub pubsub_address: SocketAddr,
    /// Address of Cloud Storage; port 0 takes a free one.
    pub storage_address: SocketAddr,
    /// Unacknowledged messages at most, all subscriptions together.
    pub max_messages: usize,
    /// Bytes of unacknowledged messages at most, all subscriptions together.
    pub max_message_bytes: usize,
    /// Bytes of one object at most.
    pub max_object_bytes: usize,
    /// Bytes of all live objects at most.
    pub max_stored_bytes: usize,
}

impl Default for Settings {
    /// Free ports on 127.0.0.1; a million messages of 512 MiB, objects of 64 MiB and 1 GiB in all.
    fn default() -> Self {
        let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Self {
            pubsub_address: free,
            storage_address: free,
            max_messages: 1_000_000,
            max_message_bytes: 512 << 20,
            max_object_bytes: 64 << 20,
            max_stored_bytes: 1 << 30,
        }
    }
}

/// A message pulled without a client; see [`Services::pull`].
#[derive(Clone, Debug)]
pub struct Pulled {
    /// Names this delivery for [`Services::acknowledge`].
    pub ack_id: String,
    /// What was published.
    pub message: Arc<Message>,
    /// Only where the subscription has a dead-letter policy; 1 on the first delivery.
    pub delivery_attempt: Option<u32>,
}

/// Running services. Dropping them cuts every connection; [`Services::shutdown`] ends them in good order.
#[derive(Debug)]
pub struct Services {
    pubsub_address: SocketAddr,
    storage_address: SocketAddr,
    broker: Broker,
    store: Store,
    faults: Faults,
    connections: Connections,
    streams: TaskTracker,
    stop: CancellationToken,
    servers: JoinSet<io::Result<()>>,
}

impl Services {
    /// Binds both addresses and serves them.
    ///
    /// # Errors
    /// When an address cannot be bound.
    pub async fn start(settings: Settings) -> io::Result<Self> {
        let pubsub = TcpListener::bind(settings.pubsub_address).await?;
        let storage = TcpListener::bind(settings.storage_address).await?;
        let faults = Faults::new();
        let stop = CancellationToken::new();
        let broker =
            Broker::new(broker::Capacity { messages: settings.max_messages, bytes: settings.max_message_bytes });
        let capacity = store::Capacity { object: settings.max_object_bytes, total: settings.max_stored_bytes };
        let store = Store::new(capacity, broker.clone(), faults.clone());
        let mut services = Self {
            pubsub_address: pubsub.local_addr()?,
            storage_address: storage.local_addr()?,
            broker: broker.clone(),
            store: store.clone(),
            faults: faults.clone(),
            connections: Connections::default(),
            streams: TaskTracker::new(),
            stop: stop.clone(),
            servers: JoinSet::new(),
        };
        let streams = services.streams.clone();
        let grpc = Pubsub { broker: broker.clone(), faults: faults.clone(), streams, stop: stop.clone() }.router();
        let json = Storage { store, faults }.router();
        let connections = &services.connections;
        services.servers.spawn(net::serve(pubsub, grpc, connections.clone(), stop.clone()));
        services.servers.spawn(net::serve(storage, json, connections.clone(), stop.clone()));
        services.servers.spawn(async move {
            broker.keep_time(stop).await;
            Ok(())
        });
        Ok(services)
    }

    /// Endpoint for Google's Pub/Sub clients, gRPC and REST: `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn pubsub_endpoint(&self) -> String {
        format!("http://{}", self.pubsub_address)
    }

    /// Endpoint for Google's Cloud Storage client: `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn storage_endpoint(&self) -> String {
        format!("http://{}", self.storage_address)
    }

    /// The fault script and the counts of calls.
    #[must_use]
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Resets every open connection of both services, as a network that breaks. New ones are accepted.
    pub fn reset_connections(&self) {
        self.connections.reset();
    }

    /// Creates a topic: `projects/P/topics/T`.
    ///
    /// # Errors
    /// [`Error::Invalid`] name, [`Error::AlreadyExists`], [`Error::Full`].
    pub fn create_topic(&self, name: &str) -> Result<(), Error> {
        self.broker.create_topic(name)
    }

    /// Creates a subscription.
    ///
    /// # Errors
    /// [`Error::Invalid`] name, [`Error::NotFound`] topic, [`Error::AlreadyExists`], [`Error::Full`].
    pub fn create_subscription(&self, settings: SubscriptionSettings) -> Result<(), Error> {
        self.broker.create_subscription(settings)
    }

    /// Deletes a subscription with its messages; its open streams end with "not found".
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn delete_subscription(&self, name: &str) -> Result<(), Error> {
        self.broker.delete_subscription(name)
    }

    /// Publishes one message; returns its id.
    ///
    /// # Errors
    /// [`Error::NotFound`] topic, [`Error::Invalid`] message, [`Error::Full`].
    pub fn publish(&self, topic: &str, attributes: &[(&str, &str)], data: impl Into<Bytes>) -> Result<String, Error> {
        let attributes: BTreeMap<_, _> =
            attributes.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let ids = self.broker.publish(topic, vec![Draft { attributes, data: data.into() }])?;
        Ok(ids.concat())
    }

    /// Leases up to `most` messages that are ready now, for the subscription's `ack_deadline`.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn pull(&self, subscription: &str, most: usize) -> Result<Vec<Pulled>, Error> {
        let taken = self.broker.pull(subscription, most)?;
        let pulled = |Received { ack_id, message, attempt }| Pulled { ack_id, message, delivery_attempt: attempt };
        Ok(taken.into_iter().map(pulled).collect())
    }

    /// Acknowledges one pulled message; false if its lease is over.
    ///
    /// # Errors
    /// [`Error::NotFound`] subscription.
    pub fn acknowledge(&self, subscription: &str, ack_id: &str) -> Result<bool, Error> {
        Ok(self.broker.acknowledge(subscription, vec![ack_id.to_owned()])?.invalid.is_empty())
    }

    /// Waits for `n` messages and acknowledges them; returns them in the order of their delivery.
    ///
    /// # Errors
    /// [`Error::NotFound`] subscription.
    pub async fn receive(&self, subscription: &str, n: usize) -> Result<Vec<Arc<Message>>, Error> {
        let mut changes = self.broker.changes();
        let mut received = Vec::new();
        loop {
            changes.mark_unchanged();
            for pulled in self.pull(subscription, n - received.len())? {
                if self.acknowledge(subscription, &pulled.ack_id)? {
                    received.push(pulled.message);
                }
            }
            if received.len() == n {
                return Ok(received);
            }
            changes.changed().await.expect("self holds the sender");
        }
    }

    /// Where the messages of a subscription are.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn counts(&self, subscription: &str) -> Result<Counts, Error> {
        self.broker.counts(subscription)
    }

    /// Waits until the counts of a subscription are as `wanted`.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub async fn wait_until(&self, subscription: &str, wanted: impl Fn(&Counts) -> bool) -> Result<Counts, Error> {
        let mut changes = self.broker.changes();
        loop {
            changes.mark_unchanged();
            let counts = self.counts(subscription)?;
            if wanted(&counts) {
                return Ok(counts);
            }
            changes.changed().await.expect("self holds the sender");
        }
    }

    /// Waits until every message of a subscription is acknowledged or dead-lettered.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub async fn wait_idle(&self, subscription: &str) -> Result<Counts, Error> {
        self.wait_until(subscription, |counts| counts.unacked() == 0).await
    }

    /// Ends every lease of a subscription now, as if its deadline had come.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn expire_leases(&self, subscription: &str) -> Result<(), Error> {
        self.broker.expire_leases(subscription)
    }

    /// Creates a bucket.
    ///
    /// # Errors
    /// [`Error::Invalid`] name, [`Error::AlreadyExists`], [`Error::Full`].
    pub fn create_bucket(&self, name: &str) -> Result<(), Error> {
        self.store.create_bucket(name)
    }

    /// Lets a bucket tell a topic about every object that comes or goes from now on.
    ///
    /// # Errors
    /// [`Error::NotFound`] bucket or topic, [`Error::Full`].
    pub fn notify(&self, bucket: &str, topic: &str, payload: Payload) -> Result<(), Error> {
        self.store.notify(bucket, topic, payload)
    }

    /// Stores an object, over the live one of that name if there is any; returns its generation.
    ///
    /// # Errors
    /// [`Error::NotFound`] bucket, [`Error::Invalid`] name, [`Error::TooLarge`].
    pub fn put_object(&self, bucket: &str, name: &str, content: Content) -> Result<i64, Error> {
        Ok(self.store.put(bucket, name, content, Conditions::default())?.generation)
    }

    /// Deletes the live object of that name.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn delete_object(&self, bucket: &str, name: &str) -> Result<(), Error> {
        self.store.delete(bucket, name, Conditions::default())
    }

    /// Stops: no new connection, streams end, calls in flight get a second, then every connection is cut.
    pub async fn shutdown(mut self) {
        self.stop.cancel();
        self.streams.close();
        let streams = self.streams.clone();
        let mut servers = std::mem::take(&mut self.servers);
        let mut ended = std::pin::pin!(async move {
            streams.wait().await;
            while let Some(server) = servers.join_next().await {
                if let Err(error) | Ok(Err(error)) = server.map_err(io::Error::other) {
                    tracing::warn!(%error, "in-process service ended badly");
                }
            }
        });
        if tokio::time::timeout(GRACE, &mut ended).await.is_err() {
            self.connections.reset();
            ended.await;
        }
    }
}

impl Drop for Services {
    fn drop(&mut self) {
        self.stop.cancel();
        self.connections.reset();
    }
}
