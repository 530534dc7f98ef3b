//! Topics and subscriptions: fans messages out, keeps the clock of the queues, forwards dead letters.
//!
//! One lock, never held across an await. Whoever waits (streams, tests) watches [`Broker::changes`], which ticks after
//! anything that may have made a message deliverable, settled or gone. Memory is bounded by [`Capacity`].

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::error::Error;
use super::message::{self, Draft, Message};
use super::queue::{Counts, Limits, Queue, StreamId};
use super::subscription::SubscriptionSettings;
use state::{State, is_in, parse_ack_id};

mod state;

/// What the broker may hold at most, all subscriptions together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Capacity {
    pub(super) messages: usize,
    pub(super) bytes: usize,
}

#[derive(Clone, Debug)]
pub(super) struct Broker {
    state: Arc<Mutex<State>>,
    changes: Arc<watch::Sender<()>>,
}

/// A message as a subscriber gets it.
#[derive(Clone, Debug)]
pub(super) struct Received {
    pub(super) ack_id: String,
    pub(super) message: Arc<Message>,
    /// Only with a dead-letter policy.
    pub(super) attempt: Option<u32>,
}

/// What became of each ack id of a call.
#[derive(Debug)]
pub(super) struct Settled {
    /// Ids whose lease is over, or that never were.
    pub(super) invalid: Vec<String>,
    /// Whether the subscription reports them.
    pub(super) exactly_once: bool,
}

impl Broker {
    pub(super) fn new(capacity: Capacity) -> Self {
        Self { state: Arc::new(Mutex::new(State::new(capacity))), changes: Arc::new(watch::Sender::new(())) }
    }

    /// Ticks after every change.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Ends leases and back-offs on time, until `stop`.
    pub(super) async fn keep_time(self, stop: CancellationToken) {
        let mut changes = self.changes();
        loop {
            changes.mark_unchanged();
            let next = self.tick(Instant::now());
            let timer = async {
                match next {
                    Some(next) => tokio::time::sleep_until(next.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                // Whoever looked in between may have ended what was over without telling the others.
                () = timer => self.announce(),
                _ = changes.changed() => {}
            }
        }
    }

    pub(super) fn create_topic(&self, name: &str) -> Result<(), Error> {
        self.lock().create_topic(name)
    }

    pub(super) fn topic_exists(&self, name: &str) -> Result<(), Error> {
        self.lock().topic(name)
    }

    /// Subscriptions stay, without a topic.
    pub(super) fn delete_topic(&self, name: &str) -> Result<(), Error> {
        let mut state = self.lock();
        if !state.topics.remove(name) {
            return Err(Error::NotFound(name.to_owned()));
        }
        for subscription in state.subscriptions.values_mut().filter(|held| held.settings.topic == name) {
            "_deleted-topic_".clone_into(&mut subscription.settings.topic);
        }
        Ok(())
    }

    pub(super) fn topics(&self, project: &str) -> Vec<String> {
        let state = self.lock();
        state.topics.iter().filter(|name| is_in(name, project)).cloned().collect()
    }

    pub(super) fn create_subscription(&self, settings: SubscriptionSettings) -> Result<(), Error> {
        self.lock().create_subscription(settings)
    }

    pub(super) fn subscription(&self, name: &str) -> Result<SubscriptionSettings, Error> {
        Ok(self.lock().subscription(name)?.settings.clone())
    }

    /// Messages and leases are gone; open streams end with "not found".
    pub(super) fn delete_subscription(&self, name: &str) -> Result<(), Error> {
        let removed = self.lock().subscriptions.remove(name);
        self.announce();
        removed.map(drop).ok_or_else(|| Error::NotFound(name.to_owned()))
    }

    pub(super) fn subscriptions(&self, project: &str) -> Vec<SubscriptionSettings> {
        let state = self.lock();
        let held = state.subscriptions.values().filter(|held| is_in(&held.settings.name, project));
        held.map(|held| held.settings.clone()).collect()
    }

    /// Publishes all or nothing; returns one id a message.
    pub(super) fn publish(&self, topic: &str, drafts: Vec<Draft>) -> Result<Vec<String>, Error> {
        message::check(&drafts)?;
        let mut state = self.lock();
        state.topic(topic)?;
        state.check_capacity(topic, &drafts)?;
        let ids = drafts.into_iter().map(|draft| state.fan_out(topic, draft)).collect();
        drop(state);
        self.announce();
        Ok(ids)
    }

    pub(super) fn open(&self, subscription: &str, limits: Limits) -> Result<StreamId, Error> {
        Ok(self.lock().subscription(subscription)?.queue.open(limits))
    }

    pub(super) fn close(&self, subscription: &str, stream: StreamId) {
        if let Ok(held) = self.lock().subscription(subscription) {
            held.queue.close(stream);
        }
    }

    pub(super) fn set_lease(&self, subscription: &str, stream: StreamId, lease: Duration) {
        if let Ok(held) = self.lock().subscription(subscription) {
            held.queue.set_lease(stream, lease);
        }
    }

    pub(super) fn deliverable(&self, subscription: &str, stream: StreamId) -> Result<bool, Error> {
        let deliverable = self.lock().subscription(subscription)?.queue.deliverable(Instant::now(), stream);
        // Unknown: the subscription was deleted and made anew under the stream.
        deliverable.ok_or_else(|| Error::NotFound(subscription.to_owned()))
    }

    /// Leases messages to a stream; `twice` makes each of them ready a second time.
    pub(super) fn take(
        &self,
        subscription: &str,
        stream: StreamId,
        messages: usize,
        bytes: usize,
        twice: bool,
    ) -> Result<Vec<Received>, Error> {
        let mut state = self.lock();
        let held = state.subscription(subscription)?;
        let taken = held.queue.take(Instant::now(), stream, messages, bytes);
        if twice {
            taken.iter().for_each(|delivery| held.queue.duplicate(delivery.lease));
        }
        let received: Vec<Received> = taken.into_iter().map(|delivery| held.received(delivery)).collect();
        drop(state);
        if !received.is_empty() {
            self.announce();
        }
        Ok(received)
    }

    /// Leases messages without a stream, for the subscription's own deadline.
    pub(super) fn pull(&self, subscription: &str, messages: usize) -> Result<Vec<Received>, Error> {
        let lease = self.subscription(subscription)?.ack_deadline;
        let stream = self.open(subscription, Limits { messages: None, bytes: None, lease })?;
        let taken = self.take(subscription, stream, messages, usize::MAX, false);
        self.close(subscription, stream);
        taken
    }

    pub(super) fn acknowledge(&self, subscription: &str, ack_ids: Vec<String>) -> Result<Settled, Error> {
        self.settle(subscription, ack_ids, |queue, now, lease| queue.ack(now, lease))
    }

    /// Moves the deadline of each lease to `time` from now; zero gives the message back.
    pub(super) fn modify(&self, subscription: &str, ack_ids: Vec<String>, time: Duration) -> Result<Settled, Error> {
        self.settle(subscription, ack_ids, |queue, now, lease| {
            if time.is_zero() { queue.nack(now, lease) } else { queue.extend(now, lease, time) }
        })
    }

    pub(super) fn expire_leases(&self, subscription: &str) -> Result<(), Error> {
        self.lock().subscription(subscription)?.queue.expire_leases(Instant::now());
        self.tick(Instant::now());
        self.announce();
        Ok(())
    }

    pub(super) fn counts(&self, subscription: &str) -> Result<Counts, Error> {
        Ok(self.lock().subscription(subscription)?.queue.counts())
    }

    fn settle(
        &self,
        subscription: &str,
        ack_ids: Vec<String>,
        call: impl Fn(&mut Queue<Arc<Message>>, Instant, u64) -> bool,
    ) -> Result<Settled, Error> {
        let now = Instant::now();
        let mut state = self.lock();
        let held = state.subscription(subscription)?;
        let exactly_once = held.settings.exactly_once;
        let mut settle = |ack_id: &str| parse_ack_id(ack_id).is_some_and(|lease| call(&mut held.queue, now, lease));
        let invalid = ack_ids.into_iter().filter(|ack_id| !settle(ack_id)).collect();
        state.forward_dead(now);
        drop(state);
        self.announce();
        Ok(Settled { invalid, exactly_once })
    }

    /// Ends what is over by `now`; returns when something ends next.
    fn tick(&self, now: Instant) -> Option<Instant> {
        let mut state = self.lock();
        let mut changed = false;
        for subscription in state.subscriptions.values_mut() {
            changed |= subscription.queue.next_event().is_some_and(|next| next <= now);
            subscription.queue.expire(now);
        }
        changed |= state.forward_dead(now);
        let next = state.subscriptions.values().filter_map(|held| held.queue.next_event()).min();
        drop(state);
        if changed {
            self.announce();
        }
        next
    }

    fn announce(&self) {
        self.changes.send_replace(());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
