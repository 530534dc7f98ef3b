//! Random operations against a model that knows only what a subscriber may rely on.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Push { bytes: usize },
    Take { stream: usize, most: usize },
    Ack { delivery: usize },
    Nack { delivery: usize },
    Extend { delivery: usize, millis: u64 },
    Pass { millis: u64 },
    Reopen { stream: usize },
    ExpireLeases,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..50_usize).prop_map(|bytes| Step::Push { bytes }),
        4 => (0..2_usize, 1..6_usize).prop_map(|(stream, most)| Step::Take { stream, most }),
        2 => (0..8_usize).prop_map(|delivery| Step::Ack { delivery }),
        3 => (0..8_usize).prop_map(|delivery| Step::Nack { delivery }),
        1 => (0..8_usize, 1..400_u64).prop_map(|(delivery, millis)| Step::Extend { delivery, millis }),
        3 => (1..300_u64).prop_map(|millis| Step::Pass { millis }),
        1 => (0..2_usize).prop_map(|stream| Step::Reopen { stream }),
        1 => Just(Step::ExpireLeases),
    ]
}

const STREAMS: [Limits; 2] = [
    Limits { messages: Some(3), bytes: None, lease: Duration::from_millis(100) },
    Limits { messages: Some(10), bytes: Some(60), lease: Duration::from_millis(250) },
];

fn policy() -> impl Strategy<Value = Policy> {
    let backoff = prop_oneof![
        Just(None),
        Just(Some(Backoff { min: Duration::from_millis(40), max: Duration::from_millis(100) })),
    ];
    (backoff, prop_oneof![Just(None), (1..5_u32).prop_map(Some)])
        .prop_map(|(backoff, max_attempts)| Policy { backoff, max_attempts })
}

/// What a message may do next, as far as its subscriber can tell.
#[derive(Clone, Debug, Default)]
struct Expected {
    bytes: usize,
    attempts: u32,
    not_before: Option<Instant>,
    held: Option<Held>,
    finished: bool,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    lease: LeaseId,
    stream: StreamId,
    deadline: Instant,
}

struct Model {
    queue: Queue<u64>,
    policy: Policy,
    now: Instant,
    streams: [StreamId; 2],
    messages: BTreeMap<u64, Expected>,
    deliveries: Vec<(u64, LeaseId)>,
}

impl Model {
    fn new(policy: Policy) -> Self {
        let mut queue = Queue::new(policy, 0);
        let streams = STREAMS.map(|limits| queue.open(limits));
        Self { queue, policy, now: Instant::now(), streams, messages: BTreeMap::new(), deliveries: Vec::new() }
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Push { bytes } => {
                let id = self.messages.len() as u64;
                self.messages.insert(id, Expected { bytes, ..Expected::default() });
                self.queue.push(id, bytes);
            }
            Step::Take { stream, most } => self.take(stream, most),
            Step::Ack { delivery } => self.settle(delivery, |queue, now, lease| queue.ack(now, lease), true),
            Step::Nack { delivery } => self.settle(delivery, |queue, now, lease| queue.nack(now, lease), false),
            Step::Extend { delivery, millis } => self.extend(delivery, Duration::from_millis(millis)),
            Step::Pass { millis } => {
                self.now += Duration::from_millis(millis);
                self.pass();
            }
            Step::Reopen { stream } => {
                self.queue.close(self.streams[stream]);
                self.streams[stream] = self.queue.open(STREAMS[stream]);
            }
            Step::ExpireLeases => {
                self.queue.expire_leases(self.now);
                for id in self.ids() {
                    if self.messages[&id].held.is_some() {
                        self.failed(id, self.now);
                    }
                }
            }
        }
        self.check_counts();
    }

    fn take(&mut self, stream: usize, most: usize) {
        let limits = STREAMS[stream];
        for delivery in self.queue.take(self.now, self.streams[stream], most, usize::MAX) {
            let (messages, bytes) = self.outstanding(self.streams[stream]);
            assert!(limits.messages.is_none_or(|most| messages < most), "more messages than the stream allows");
            assert!(limits.bytes.is_none_or(|most| bytes < most), "a message although the bytes are reached");
            let message = self.messages.get_mut(&delivery.message).expect("only what was pushed is delivered");
            assert!(!message.finished, "an acknowledged or dead message was delivered");
            assert!(message.held.is_none(), "a message under two leases");
            assert!(message.not_before.is_none_or(|ready| ready <= self.now), "delivered before its back-off");
            message.attempts += 1;
            assert_eq!(delivery.attempt, message.attempts);
            assert!(self.policy.max_attempts.is_none_or(|most| delivery.attempt <= most));
            let deadline = self.now + limits.lease;
            message.held = Some(Held { lease: delivery.lease, stream: self.streams[stream], deadline });
            self.deliveries.push((delivery.message, delivery.lease));
        }
    }

    /// Settles one of the latest deliveries, valid or not, and compares what the queue says with the model.
    fn settle(&mut self, back: usize, call: impl Fn(&mut Queue<u64>, Instant, LeaseId) -> bool, acks: bool) {
        let Some(&(id, lease)) = self.deliveries.iter().rev().nth(back) else { return };
        let valid = self.messages[&id].held.is_some_and(|held| held.lease == lease);
        assert_eq!(call(&mut self.queue, self.now, lease), valid, "a lease is good exactly until its end");
        if valid && acks {
            let message = self.messages.get_mut(&id).unwrap();
            message.held = None;
            message.finished = true;
        } else if valid {
            self.failed(id, self.now);
        }
    }

    fn extend(&mut self, back: usize, time: Duration) {
        let Some(&(id, lease)) = self.deliveries.iter().rev().nth(back) else { return };
        let held = self.messages.get_mut(&id).unwrap().held.as_mut().filter(|held| held.lease == lease);
        assert_eq!(self.queue.extend(self.now, lease, time), held.is_some());
        if let Some(held) = held {
            held.deadline = self.now + time;
        }
    }

    /// Ends what is over in the model.
    fn pass(&mut self) {
        for id in self.ids() {
            if let Some(held) = self.messages[&id].held.filter(|held| held.deadline <= self.now) {
                self.failed(id, held.deadline);
            }
        }
        self.queue.expire(self.now);
    }

    fn failed(&mut self, id: u64, when: Instant) {
        let policy = self.policy;
        let message = self.messages.get_mut(&id).unwrap();
        message.held = None;
        message.finished = policy.max_attempts.is_some_and(|most| message.attempts >= most);
        message.not_before = policy.backoff.map(|backoff| when + backoff.after(message.attempts));
    }

    fn check_counts(&mut self) {
        let counts = self.queue.counts();
        let settled = counts.acked + counts.dead_lettered;
        assert_eq!(counts.unacked() as u64 + settled, self.messages.len() as u64, "a message was lost or invented");
        assert_eq!(settled, self.messages.values().filter(|message| message.finished).count() as u64);
        assert_eq!(counts.outstanding, self.messages.values().filter(|message| message.held.is_some()).count());
        let bytes: usize =
            self.messages.values().filter(|message| !message.finished).map(|message| message.bytes).sum();
        assert_eq!(self.queue.bytes(), bytes);
    }

    fn outstanding(&self, stream: StreamId) -> (usize, usize) {
        let held = self.messages.values().filter(|message| message.held.is_some_and(|held| held.stream == stream));
        held.fold((0, 0), |(messages, bytes), message| (messages + 1, bytes + message.bytes))
    }

    fn ids(&self) -> Vec<u64> {
        self.messages.keys().copied().collect()
    }
}

proptest! {
    #[test]
    fn no_message_is_lost_or_delivered_against_the_rules(
        policy in policy(),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut model = Model::new(policy);
        for step in &steps {
            model.apply(step);
        }
    }

    #[test]
    fn what_is_left_can_always_be_delivered_and_acknowledged(
        policy in policy(),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut model = Model::new(policy);
        for step in &steps {
            model.apply(step);
        }
        let Model { mut queue, mut now, .. } = model;
        let stream = queue.open(Limits { messages: None, bytes: None, lease: Duration::from_secs(10) });
        let mut seen = BTreeSet::new();
        for _ in 0..1000 {
            for delivery in queue.take(now, stream, usize::MAX, usize::MAX) {
                prop_assert!(seen.insert(delivery.message), "acknowledged, yet delivered again");
                prop_assert!(queue.ack(now, delivery.lease));
            }
            let Some(next) = queue.next_event() else { break };
            now = now.max(next);
        }
        prop_assert_eq!(queue.counts().unacked(), 0);
    }
}

#[test]
fn back_off_doubles_up_to_its_maximum() {
    let backoff = Backoff { min: Duration::from_secs(10), max: Duration::from_secs(600) };
    let pauses: Vec<u64> = [1, 2, 3, 7, 100].map(|attempt| backoff.after(attempt).as_secs()).to_vec();
    assert_eq!(pauses, [10, 20, 40, 600, 600]);
}

#[test]
fn a_message_that_cannot_be_forwarded_comes_back() {
    let now = Instant::now();
    let mut queue = Queue::new(Policy { backoff: None, max_attempts: Some(1) }, 0);
    queue.push('a', 1);
    let stream = queue.open(STREAMS[0]);
    let lease = queue.take(now, stream, 1, 1)[0].lease;
    assert!(queue.nack(now, lease));
    let dead = queue.take_dead().remove(0);
    assert_eq!((*dead.message(), dead.attempts(), queue.counts().dead_lettered), ('a', 1, 1));
    queue.revive(now, dead);
    assert_eq!(queue.counts(), Counts { ready: 1, ..Counts::default() });
}

#[test]
fn a_duplicate_is_settled_on_its_own() {
    let now = Instant::now();
    let mut queue = Queue::new(Policy::default(), 0);
    queue.push('a', 1);
    let stream = queue.open(STREAMS[0]);
    let first = queue.take(now, stream, 1, 1).remove(0);
    queue.duplicate(first.lease);
    let second = queue.take(now, stream, 1, 1).remove(0);
    queue.duplicate(second.lease);
    assert_eq!(queue.deliverable(now, stream), Some(false), "a copy is not copied");
    assert_eq!(second.message, 'a');
    assert!(queue.ack(now, first.lease) && queue.ack(now, second.lease));
    assert_eq!(queue.counts(), Counts { acked: 2, ..Counts::default() });
}
