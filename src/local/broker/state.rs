//! What the broker holds under its lock, and the rules for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use prost_types::Timestamp;

use super::{Capacity, Received};
use crate::local::error::Error;
use crate::local::message::{Draft, Message};
use crate::local::queue::{Dead, Delivery, LeaseId, Policy, Queue};
use crate::local::subscription::SubscriptionSettings;

/// Topics and subscriptions at most, each.
const NAMES: usize = 1000;

#[derive(Debug)]
pub(super) struct State {
    pub(super) capacity: Capacity,
    pub(super) topics: BTreeSet<String>,
    pub(super) subscriptions: BTreeMap<String, Subscription>,
    /// Published so far.
    messages: u64,
    /// Subscriptions created so far.
    created: u64,
}

/// A subscription and its messages.
#[derive(Debug)]
pub(super) struct Subscription {
    pub(super) settings: SubscriptionSettings,
    pub(super) queue: Queue<Arc<Message>>,
}

impl State {
    pub(super) fn new(capacity: Capacity) -> Self {
        Self { capacity, topics: BTreeSet::new(), subscriptions: BTreeMap::new(), messages: 0, created: 0 }
    }

    pub(super) fn create_topic(&mut self, name: &str) -> Result<(), Error> {
        check_name(name, "topics")?;
        if self.topics.contains(name) {
            return Err(Error::AlreadyExists(name.to_owned()));
        }
        if self.topics.len() >= NAMES {
            return Err(Error::Full(format!("{NAMES} topics exist")));
        }
        self.topics.insert(name.to_owned());
        Ok(())
    }

    pub(super) fn create_subscription(&mut self, settings: SubscriptionSettings) -> Result<(), Error> {
        check_name(&settings.name, "subscriptions")?;
        self.topic(&settings.topic)?;
        if self.subscriptions.contains_key(&settings.name) {
            return Err(Error::AlreadyExists(settings.name));
        }
        if self.subscriptions.len() >= NAMES {
            return Err(Error::Full(format!("{NAMES} subscriptions exist")));
        }
        self.created += 1;
        let max_attempts = settings.dead_letter.as_ref().map(|dead| dead.max_attempts);
        // Ids of its own, so that neither an ack id nor a stream outlives the subscription that it belongs to.
        let queue = Queue::new(Policy { backoff: settings.retry, max_attempts }, self.created << 32);
        self.subscriptions.insert(settings.name.clone(), Subscription { settings, queue });
        Ok(())
    }

    pub(super) fn topic(&self, name: &str) -> Result<(), Error> {
        if self.topics.contains(name) { Ok(()) } else { Err(Error::NotFound(name.to_owned())) }
    }

    pub(super) fn subscription(&mut self, name: &str) -> Result<&mut Subscription, Error> {
        self.subscriptions.get_mut(name).ok_or_else(|| Error::NotFound(name.to_owned()))
    }

    pub(super) fn check_capacity(&self, topic: &str, drafts: &[Draft]) -> Result<(), Error> {
        let copies = self.subscriptions.values().filter(|held| held.settings.topic == topic).count();
        let held = self.subscriptions.values().map(|held| (held.queue.counts().unacked(), held.queue.bytes()));
        let (messages, bytes) = held.fold((0, 0), |(messages, bytes), one| (messages + one.0, bytes + one.1));
        let more: usize = drafts.iter().map(Draft::bytes).sum();
        if messages + copies * drafts.len() > self.capacity.messages || bytes + copies * more > self.capacity.bytes {
            return Err(Error::Full(format!("{messages} messages of {bytes} bytes are waiting")));
        }
        Ok(())
    }

    pub(super) fn fan_out(&mut self, topic: &str, draft: Draft) -> String {
        self.messages += 1;
        let id = self.messages.to_string();
        let bytes = draft.bytes();
        let Draft { attributes, data } = draft;
        let message = Arc::new(Message { id: id.clone(), attributes, data, published: SystemTime::now() });
        for subscription in self.subscriptions.values_mut().filter(|held| held.settings.topic == topic) {
            subscription.queue.push(message.clone(), bytes);
        }
        id
    }

    /// Sends what used up its attempts to the dead-letter topics; says whether there was any.
    pub(super) fn forward_dead(&mut self, now: Instant) -> bool {
        let mut letters = Vec::new();
        for subscription in self.subscriptions.values_mut() {
            let Some(policy) = &subscription.settings.dead_letter else { continue };
            for dead in subscription.queue.take_dead() {
                if self.topics.contains(&policy.topic) {
                    letters.push((policy.topic.clone(), letter(&subscription.settings.name, &dead)));
                } else {
                    subscription.queue.revive(now, dead);
                }
            }
        }
        let any = !letters.is_empty();
        for (topic, letter) in letters {
            self.fan_out(&topic, letter);
        }
        any
    }
}

impl Subscription {
    pub(super) fn received(&self, delivery: Delivery<Arc<Message>>) -> Received {
        Received {
            ack_id: format!("{:x}", delivery.lease),
            message: delivery.message,
            attempt: self.settings.dead_letter.as_ref().map(|_| delivery.attempt),
        }
    }
}

/// `None` for what never was an ack id.
pub(super) fn parse_ack_id(ack_id: &str) -> Option<LeaseId> {
    u64::from_str_radix(ack_id, 16).ok()
}

/// The message as it arrives at the dead-letter topic, with the attributes that the service adds.
fn letter(subscription: &str, dead: &Dead<Arc<Message>>) -> Draft {
    let message = dead.message();
    let mut attributes = message.attributes.clone();
    let mut parts = subscription.split('/');
    let mut add = |key: &str, value: String| _ = attributes.insert(format!("CloudPubSubDeadLetterSource{key}"), value);
    add("DeliveryCount", dead.attempts().to_string());
    add("SubscriptionProject", parts.nth(1).unwrap_or_default().to_owned());
    add("Subscription", parts.nth(1).unwrap_or_default().to_owned());
    add("TopicPublishTime", Timestamp::from(message.published).to_string());
    Draft { attributes, data: message.data.clone() }
}

/// `projects/P/KIND/ID`, with no empty part.
fn check_name(name: &str, kind: &str) -> Result<(), Error> {
    let parts: Vec<&str> = name.split('/').collect();
    match parts[..] {
        ["projects", project, found, id] if found == kind && !project.is_empty() && !id.is_empty() => Ok(()),
        _ => Err(Error::Invalid(format!("{name:?} is not projects/PROJECT/{kind}/ID"))),
    }
}

pub(super) fn is_in(name: &str, project: &str) -> bool {
    name.strip_prefix(project).is_some_and(|rest| rest.starts_with('/'))
}
