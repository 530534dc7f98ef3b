//! The messages of one subscription: a pure state machine that never waits and is told the time.
//!
//! Each message is in exactly one place: ready, delayed (waiting out a back-off), leased to a stream, acknowledged, or
//! dead. Every method that takes `now` first ends the leases and back-offs that are over by then, so that nothing
//! depends on when a timer fires. What the module guarantees, and its tests check:
//!
//! - nothing is lost, and nothing acknowledged or dead is delivered again;
//! - a message has at most one lease, and no delivery before its back-off is over;
//! - a stream never has more than its maximum of messages outstanding, nor is it given a message while its maximum of
//!   bytes is reached (so it may exceed that by its last message, as Pub/Sub documents it);
//! - a message is delivered at most `max_attempts` times, if there is such a limit.
//!
//! A lease outlives its stream, as in the real service: what a dead stream held comes back when its lease ends.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use super::subscription::Backoff;

#[cfg(test)]
mod tests;

/// What happens to a message that was not acknowledged.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Policy {
    /// `None`: ready again at once.
    pub(super) backoff: Option<Backoff>,
    /// `None`: delivered for ever.
    pub(super) max_attempts: Option<u32>,
}

/// What a stream asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Messages outstanding at most; `None`: any number.
    pub(super) messages: Option<usize>,
    /// Bytes outstanding from which on nothing more is sent; `None`: any number.
    pub(super) bytes: Option<usize>,
    /// How long each delivery is leased.
    pub(super) lease: Duration,
}

/// Names a stream of this queue.
pub(super) type StreamId = u64;
/// Names one delivery; never used again.
pub(super) type LeaseId = u64;

/// A message under a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Delivery<M> {
    pub(super) lease: LeaseId,
    pub(super) message: M,
    /// 1 on the first delivery.
    pub(super) attempt: u32,
}

/// How many messages are where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Waiting for a stream with room.
    pub ready: usize,
    /// Waiting out a back-off.
    pub delayed: usize,
    /// Delivered and under a lease.
    pub outstanding: usize,
    /// Acknowledged so far.
    pub acked: u64,
    /// Sent to the dead-letter topic so far.
    pub dead_lettered: u64,
}

impl Counts {
    /// Messages that still await an acknowledgement.
    #[must_use]
    pub fn unacked(&self) -> usize {
        self.ready + self.delayed + self.outstanding
    }
}

/// A message that used up its attempts; [`Queue::revive`] takes it back if it cannot be forwarded.
#[derive(Debug)]
pub(super) struct Dead<M>(Entry<M>);

impl<M> Dead<M> {
    pub(super) fn message(&self) -> &M {
        &self.0.message
    }

    pub(super) fn attempts(&self) -> u32 {
        self.0.attempts
    }
}

#[derive(Debug)]
pub(super) struct Queue<M> {
    policy: Policy,
    /// By order of arrival, so that a redelivery comes before younger messages.
    ready: BTreeMap<u64, Entry<M>>,
    delayed: BTreeMap<(Instant, u64), Entry<M>>,
    leases: HashMap<LeaseId, Lease<M>>,
    deadlines: BTreeSet<(Instant, LeaseId)>,
    streams: HashMap<StreamId, Flow>,
    dead: Vec<Dead<M>>,
    last_id: u64,
    bytes: usize,
    acked: u64,
    dead_lettered: u64,
}

#[derive(Debug)]
struct Entry<M> {
    arrival: u64,
    message: M,
    bytes: usize,
    attempts: u32,
    /// Made by [`Queue::duplicate`].
    copy: bool,
}

#[derive(Debug)]
struct Lease<M> {
    entry: Entry<M>,
    stream: StreamId,
    deadline: Instant,
}

#[derive(Debug)]
struct Flow {
    limits: Limits,
    messages: usize,
    bytes: usize,
}

impl Flow {
    fn has_room(&self) -> bool {
        self.limits.messages.is_none_or(|most| self.messages < most)
            && self.limits.bytes.is_none_or(|most| self.bytes < most)
    }
}

impl<M: Clone> Queue<M> {
    /// An empty queue, whose ids come after `last_id`.
    pub(super) fn new(policy: Policy, last_id: u64) -> Self {
        Self {
            policy,
            ready: BTreeMap::new(),
            delayed: BTreeMap::new(),
            leases: HashMap::new(),
            deadlines: BTreeSet::new(),
            streams: HashMap::new(),
            dead: Vec::new(),
            last_id,
            bytes: 0,
            acked: 0,
            dead_lettered: 0,
        }
    }

    /// Adds a message of `bytes` bytes; it is ready at once.
    pub(super) fn push(&mut self, message: M, bytes: usize) {
        self.add(message, bytes, false);
    }

    /// Adds a copy of a leased message, as at-least-once delivery may. Copies are not copied again, so that no script
    /// of faults multiplies a message without end.
    pub(super) fn duplicate(&mut self, lease: LeaseId) {
        if let Some(entry) = self.leases.get(&lease).map(|lease| &lease.entry).filter(|entry| !entry.copy) {
            self.add(entry.message.clone(), entry.bytes, true);
        }
    }

    pub(super) fn open(&mut self, limits: Limits) -> StreamId {
        let id = self.fresh_id();
        self.streams.insert(id, Flow { limits, messages: 0, bytes: 0 });
        id
    }

    /// Forgets a stream. Its leases run on.
    pub(super) fn close(&mut self, stream: StreamId) {
        self.streams.remove(&stream);
    }

    /// Changes how long the stream's later deliveries are leased.
    pub(super) fn set_lease(&mut self, stream: StreamId, lease: Duration) {
        if let Some(flow) = self.streams.get_mut(&stream) {
            flow.limits.lease = lease;
        }
    }

    /// Whether [`Self::take`] would deliver anything; `None` if there is no such stream.
    pub(super) fn deliverable(&mut self, now: Instant, stream: StreamId) -> Option<bool> {
        self.expire(now);
        self.streams.get(&stream).map(|flow| !self.ready.is_empty() && flow.has_room())
    }

    /// Leases ready messages to the stream, oldest first: at most `messages`, and none once `bytes` are reached.
    pub(super) fn take(&mut self, now: Instant, stream: StreamId, messages: usize, bytes: usize) -> Vec<Delivery<M>> {
        self.expire(now);
        let mut taken = Vec::new();
        let mut taken_bytes = 0;
        while taken.len() < messages && taken_bytes < bytes {
            let Some(flow) = self.streams.get_mut(&stream).filter(|flow| flow.has_room()) else { break };
            let Some((_, mut entry)) = self.ready.pop_first() else { break };
            flow.messages += 1;
            flow.bytes += entry.bytes;
            let deadline = now + flow.limits.lease;
            taken_bytes += entry.bytes;
            entry.attempts += 1;
            let lease = self.fresh_id();
            taken.push(Delivery { lease, message: entry.message.clone(), attempt: entry.attempts });
            self.deadlines.insert((deadline, lease));
            self.leases.insert(lease, Lease { entry, stream, deadline });
        }
        taken
    }

    /// Ends a lease for good; false if it is over already.
    pub(super) fn ack(&mut self, now: Instant, lease: LeaseId) -> bool {
        self.expire(now);
        let Some(entry) = self.end_lease(lease) else { return false };
        self.bytes -= entry.bytes;
        self.acked += 1;
        true
    }

    /// Gives a message back; false if its lease is over already.
    pub(super) fn nack(&mut self, now: Instant, lease: LeaseId) -> bool {
        self.expire(now);
        let Some(entry) = self.end_lease(lease) else { return false };
        self.fail(now, entry);
        true
    }

    /// Lets a lease end at `now + time`; false if it is over already.
    pub(super) fn extend(&mut self, now: Instant, lease: LeaseId, time: Duration) -> bool {
        self.expire(now);
        let Some(held) = self.leases.get_mut(&lease) else { return false };
        self.deadlines.remove(&(held.deadline, lease));
        held.deadline = now + time;
        self.deadlines.insert((held.deadline, lease));
        true
    }

    /// Ends the leases and back-offs that are over at `now`.
    pub(super) fn expire(&mut self, now: Instant) {
        while let Some(&(deadline, lease)) = self.deadlines.first().filter(|(deadline, _)| *deadline <= now) {
            self.deadlines.pop_first();
            if let Some(entry) = self.end_lease(lease) {
                self.fail(deadline, entry);
            }
        }
        while let Some(delayed) = self.delayed.first_entry().filter(|delayed| delayed.key().0 <= now) {
            let entry = delayed.remove();
            self.ready.insert(entry.arrival, entry);
        }
    }

    /// Ends every lease, as if its deadline had come.
    pub(super) fn expire_leases(&mut self, now: Instant) {
        let leases: Vec<LeaseId> = self.deadlines.iter().map(|(_, lease)| *lease).collect();
        for lease in leases {
            self.nack(now, lease);
        }
    }

    /// When the next lease or back-off ends.
    pub(super) fn next_event(&self) -> Option<Instant> {
        let lease = self.deadlines.first().map(|(deadline, _)| *deadline);
        let delayed = self.delayed.first_key_value().map(|((ready, _), _)| *ready);
        lease.into_iter().chain(delayed).min()
    }

    /// Messages that used up their attempts since the last call; the caller forwards or revives them.
    pub(super) fn take_dead(&mut self) -> Vec<Dead<M>> {
        std::mem::take(&mut self.dead)
    }

    /// Takes back a message that could not be forwarded; it will be tried once more.
    pub(super) fn revive(&mut self, now: Instant, dead: Dead<M>) {
        self.dead_lettered -= 1;
        self.bytes += dead.0.bytes;
        self.retry(now, dead.0);
    }

    pub(super) fn counts(&self) -> Counts {
        Counts {
            ready: self.ready.len(),
            delayed: self.delayed.len(),
            outstanding: self.leases.len(),
            acked: self.acked,
            dead_lettered: self.dead_lettered,
        }
    }

    /// Bytes of all messages that are neither acknowledged nor dead.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    fn end_lease(&mut self, lease: LeaseId) -> Option<Entry<M>> {
        let ended = self.leases.remove(&lease)?;
        self.deadlines.remove(&(ended.deadline, lease));
        if let Some(flow) = self.streams.get_mut(&ended.stream) {
            flow.messages -= 1;
            flow.bytes -= ended.entry.bytes;
        }
        Some(ended.entry)
    }

    /// A delivery of `entry` failed at `when`.
    fn fail(&mut self, when: Instant, entry: Entry<M>) {
        if self.policy.max_attempts.is_some_and(|most| entry.attempts >= most) {
            self.dead_lettered += 1;
            self.bytes -= entry.bytes;
            self.dead.push(Dead(entry));
        } else {
            self.retry(when, entry);
        }
    }

    fn retry(&mut self, when: Instant, entry: Entry<M>) {
        match self.policy.backoff {
            Some(backoff) => {
                let ready = when + backoff.after(entry.attempts);
                self.delayed.insert((ready, entry.arrival), entry);
            }
            None => {
                self.ready.insert(entry.arrival, entry);
            }
        }
    }

    fn add(&mut self, message: M, bytes: usize, copy: bool) {
        let arrival = self.fresh_id();
        self.bytes += bytes;
        self.ready.insert(arrival, Entry { arrival, message, bytes, attempts: 0, copy });
    }

    fn fresh_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }
}
