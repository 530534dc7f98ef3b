//! Buckets and their objects: generations, preconditions, and the notifications that changes cause.
//!
//! One generation of an object is live; an overwrite supersedes it, after which the old one is not found. One lock,
//! never held across an await. Memory is bounded by [`Capacity`].

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Deserialize;

use super::broker::Broker;
use super::error::Error;
use super::fault::{Call, Fault, Faults};
use super::notification::{Config, Event, Payload, notification};
use super::object::{Content, Object};

/// Buckets at most.
const BUCKETS: usize = 1000;
/// Notification configurations of a bucket at most, as in the service.
const CONFIGS: usize = 100;
/// Bytes of an object's name at most, as in the service.
const NAME_BYTES: usize = 1024;

/// What the store may hold at most.
#[derive(Clone, Copy, Debug)]
pub(super) struct Capacity {
    /// Bytes of one object.
    pub(super) object: usize,
    /// Bytes of all live objects.
    pub(super) total: usize,
}

/// What a caller demands of the live object.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Conditions {
    /// Only this generation will do: any other is not found.
    pub(super) generation: Option<i64>,
    /// 0: there must be no live object.
    pub(super) if_generation_match: Option<i64>,
    pub(super) if_generation_not_match: Option<i64>,
}

#[derive(Clone, Debug)]
pub(super) struct Store {
    state: Arc<Mutex<State>>,
    capacity: Capacity,
    broker: Broker,
    faults: Faults,
}

#[derive(Debug, Default)]
struct State {
    buckets: BTreeMap<String, Bucket>,
    bytes: usize,
    generation: i64,
}

#[derive(Debug, Default)]
struct Bucket {
    objects: BTreeMap<String, Arc<Object>>,
    configs: Vec<Config>,
}

impl Store {
    pub(super) fn new(capacity: Capacity, broker: Broker, faults: Faults) -> Self {
        Self { state: Arc::default(), capacity, broker, faults }
    }

    pub(super) fn capacity(&self) -> Capacity {
        self.capacity
    }

    pub(super) fn create_bucket(&self, name: &str) -> Result<(), Error> {
        if name.is_empty() || name.contains('/') {
            return Err(Error::Invalid(format!("{name:?} is not a bucket name")));
        }
        let mut state = self.lock();
        if state.buckets.contains_key(name) {
            return Err(Error::AlreadyExists(name.to_owned()));
        }
        if state.buckets.len() >= BUCKETS {
            return Err(Error::Full(format!("{BUCKETS} buckets exist")));
        }
        state.buckets.insert(name.to_owned(), Bucket::default());
        Ok(())
    }

    pub(super) fn bucket_exists(&self, name: &str) -> Result<(), Error> {
        self.lock().bucket(name).map(drop)
    }

    /// From now on the bucket tells the topic about every object that comes or goes.
    pub(super) fn notify(&self, bucket: &str, topic: &str, payload: Payload) -> Result<(), Error> {
        self.broker.topic_exists(topic)?;
        let mut state = self.lock();
        let configs = &mut state.bucket(bucket)?.configs;
        if configs.len() >= CONFIGS {
            return Err(Error::Full(format!("{bucket} has {CONFIGS} notification configurations")));
        }
        let name = format!("projects/_/buckets/{bucket}/notificationConfigs/{}", configs.len() + 1);
        configs.push(Config { name, topic: topic.to_owned(), payload });
        Ok(())
    }

    /// Stores an object under a new generation, in place of the live one.
    pub(super) fn put(
        &self,
        bucket: &str,
        name: &str,
        content: Content,
        conditions: Conditions,
    ) -> Result<Arc<Object>, Error> {
        check_name(name)?;
        let mut state = self.lock();
        let old = state.bucket(bucket)?.objects.get(name).cloned();
        conditions.check(old.as_deref(), Error::PreconditionFailed)?;
        let size = content.data.len();
        let bytes = state.bytes - old.as_ref().map_or(0, |old| old.content.data.len()) + size;
        if size > self.capacity.object || bytes > self.capacity.total {
            return Err(Error::TooLarge(format!("{size} bytes, {bytes} with all other objects")));
        }
        state.bytes = bytes;
        let generation = state.next_generation();
        let object = Arc::new(Object::new(bucket, name, generation, content));
        let held = state.bucket(bucket)?;
        held.objects.insert(name.to_owned(), object.clone());
        let configs = held.configs.clone();
        drop(state);
        let overwrote = old.as_ref().map(|old| old.generation);
        self.announce(&configs, &object, Event::Finalized { overwrote });
        if let Some(old) = old {
            self.announce(&configs, &old, Event::Deleted { overwritten_by: Some(generation) });
        }
        Ok(object)
    }

    pub(super) fn get(&self, bucket: &str, name: &str, conditions: Conditions) -> Result<Arc<Object>, Error> {
        let mut state = self.lock();
        let live = state.bucket(bucket)?.objects.get(name).cloned();
        let live = live.ok_or_else(|| Error::NotFound(format!("{bucket}/{name}")))?;
        conditions.check(Some(&live), Error::NotModified)?;
        Ok(live)
    }

    pub(super) fn delete(&self, bucket: &str, name: &str, conditions: Conditions) -> Result<(), Error> {
        let mut state = self.lock();
        let held = state.bucket(bucket)?;
        let live = held.objects.get(name).cloned().ok_or_else(|| Error::NotFound(format!("{bucket}/{name}")))?;
        conditions.check(Some(&live), Error::PreconditionFailed)?;
        held.objects.remove(name);
        let configs = held.configs.clone();
        state.bytes -= live.content.data.len();
        drop(state);
        self.announce(&configs, &live, Event::Deleted { overwritten_by: None });
        Ok(())
    }

    /// Objects whose name begins with `prefix` and comes after `after`, in order of their names; at most `most`.
    pub(super) fn list(
        &self,
        bucket: &str,
        prefix: &str,
        after: Option<&str>,
        most: usize,
    ) -> Result<Vec<Arc<Object>>, Error> {
        let mut state = self.lock();
        let objects = &state.bucket(bucket)?.objects;
        let from =
            objects.range(prefix.to_owned()..).filter(|(name, _)| after.is_none_or(|after| name.as_str() > after));
        let matching = from.take_while(|(name, _)| name.starts_with(prefix));
        Ok(matching.take(most).map(|(_, object)| object.clone()).collect())
    }

    fn announce(&self, configs: &[Config], object: &Object, event: Event) {
        for config in configs {
            let draft = notification(config, object, event);
            let fault = self.faults.decide(Call::Notify, &format!("{}/{}", object.bucket, object.name));
            let times = if fault == Some(Fault::Duplicate) { 2 } else { 1 };
            for draft in std::iter::repeat_n(draft, times) {
                // As in the service, an upload does not fail because its topic is gone or full.
                if let Err(error) = self.broker.publish(&config.topic, vec![draft]) {
                    tracing::warn!(%error, topic = config.topic, "in-process bucket: notification lost");
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn bucket(&mut self, name: &str) -> Result<&mut Bucket, Error> {
        self.buckets
            .get_mut(name)
            .ok_or_else(|| Error::NotFound(format!("the specified bucket does not exist: {name}")))
    }

    /// Microseconds since 1970, as in the service, and always growing.
    fn next_generation(&mut self) -> i64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map(|since| since.as_micros()).unwrap_or_default();
        self.generation = i64::try_from(now).unwrap_or(i64::MAX).max(self.generation + 1);
        self.generation
    }
}

impl Conditions {
    /// `unchanged` is the error of an `ifGenerationNotMatch` that does not hold.
    fn check(&self, live: Option<&Object>, unchanged: fn(String) -> Error) -> Result<(), Error> {
        // The service compares with 0 when there is no live object.
        let generation = live.map_or(0, |live| live.generation);
        if self.generation.is_some_and(|wanted| wanted != generation) {
            return Err(Error::NotFound(format!("generation {:?}", self.generation)));
        }
        if self.if_generation_match.is_some_and(|wanted| wanted != generation) {
            return Err(Error::PreconditionFailed(format!("the live generation is {generation}")));
        }
        if self.if_generation_not_match == Some(generation) {
            return Err(unchanged(format!("the live generation is {generation}")));
        }
        Ok(())
    }
}

/// What the service asks of an object's name.
fn check_name(name: &str) -> Result<(), Error> {
    let valid = (1..=NAME_BYTES).contains(&name.len()) && name != "." && name != ".." && !name.contains(['\r', '\n']);
    if valid { Ok(()) } else { Err(Error::Invalid(format!("{name:?} is not an object name"))) }
}
