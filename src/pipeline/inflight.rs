//! Which objects are being worked on, so that a redelivery joins the running job instead of starting another; and which
//! were a moment ago, so that one that comes late makes no new work either.
//!
//! Keyed by bucket, name and generation: one upload may come under several message ids. An event without a generation
//! never joins: two of them may be about two versions of the object. Running entries are bounded by the outstanding
//! messages, since every entry and every joined message is one, finished ones by time and by bytes.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::job::Leased;
use crate::event::ObjectId;

/// Bytes that finished objects are remembered in, at most: some fifty thousand of them.
const MAX_FINISHED_BYTES: usize = 16 << 20;

/// What remembering an object takes beside its names, in bytes, about.
const ENTRY_BYTES: usize = 200;

/// The objects in flight, and those that have been.
#[derive(Debug)]
pub(super) struct Registry<M = Leased>(Arc<Mutex<Table<M>>>);

#[derive(Debug)]
struct Table<M> {
    running: HashMap<ObjectId, Vec<M>>,
    finished: Finished,
}

/// Objects with a confirmed result, oldest first.
#[derive(Debug)]
struct Finished {
    window: Duration,
    order: VecDeque<(Instant, Arc<ObjectId>)>,
    known: HashSet<Arc<ObjectId>>,
    bytes: usize,
}

/// One object in flight; dropping it ends the entry and drops the messages that joined.
#[derive(Debug)]
pub(super) struct InFlight<M = Leased> {
    registry: Registry<M>,
    /// `None` once the entry has ended: another job may own the object's next entry by then.
    object: Option<ObjectId>,
}

/// What became of a message offered to the [`Registry`].
#[derive(Debug)]
pub(super) enum Admission<M = Leased> {
    /// Nobody works on this object: start a job that holds both.
    Start(M, Option<InFlight<M>>),
    /// The message joined the job that is already running.
    Joined,
    /// The object's result was confirmed within the window: nothing is left to do but to acknowledge the message.
    Finished(M),
}

impl Finished {
    fn remembers(&mut self, object: &ObjectId, now: Instant) -> bool {
        self.forget(now);
        self.known.contains(object)
    }

    fn remember(&mut self, object: ObjectId, now: Instant) {
        self.forget(now);
        let object = Arc::new(object);
        if !self.window.is_zero() && self.known.insert(object.clone()) {
            self.bytes += bytes(&object);
            self.order.push_back((now, object));
        }
        while self.bytes > MAX_FINISHED_BYTES {
            self.forget_oldest();
        }
    }

    fn forget(&mut self, now: Instant) {
        while self.order.front().is_some_and(|(at, _)| now.saturating_duration_since(*at) >= self.window) {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let Some((_, object)) = self.order.pop_front() else { return };
        self.bytes = self.bytes.saturating_sub(bytes(&object));
        self.known.remove(&object);
    }
}

fn bytes(object: &ObjectId) -> usize {
    object.bucket.len() + object.name.len() + ENTRY_BYTES
}

impl<M> Registry<M> {
    /// Remembers finished objects for so long.
    pub(super) fn new(window: Duration) -> Self {
        let finished = Finished { window, order: VecDeque::new(), known: HashSet::new(), bytes: 0 };
        Self(Arc::new(Mutex::new(Table { running: HashMap::new(), finished })))
    }

    /// Starts an entry for `object`, or hands `message` to the job that has one.
    pub(super) fn admit(&self, object: &ObjectId, message: M, now: Instant) -> Admission<M> {
        if object.generation.is_none() {
            return Admission::Start(message, None);
        }
        let mut table = self.table();
        if let Some(joined) = table.running.get_mut(object) {
            joined.push(message);
            return Admission::Joined;
        }
        if table.finished.remembers(object, now) {
            return Admission::Finished(message);
        }
        table.running.insert(object.clone(), Vec::new());
        drop(table);
        Admission::Start(message, Some(InFlight { registry: Self(self.0.clone()), object: Some(object.clone()) }))
    }

    fn table(&self) -> MutexGuard<'_, Table<M>> {
        // No code panics while it holds the lock, and the table is whole between any two statements.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<M> InFlight<M> {
    /// Ends the entry of an object whose result is confirmed, and gives the messages that joined.
    pub(super) fn finish(mut self, now: Instant) -> Vec<M> {
        let Some(object) = self.object.take() else { return Vec::new() };
        let mut table = self.registry.table();
        let joined = table.running.remove(&object).unwrap_or_default();
        table.finished.remember(object, now);
        joined
    }
}

impl<M> Drop for InFlight<M> {
    fn drop(&mut self) {
        let joined = self.object.take().and_then(|object| self.registry.table().running.remove(&object));
        // Outside of the lock.
        drop(joined);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(generation: Option<i64>) -> ObjectId {
        ObjectId { bucket: "uploads".into(), name: "a/b.jpg".into(), generation }
    }

    const WINDOW: Duration = Duration::from_secs(60);

    fn start(registry: &Registry<u32>, generation: Option<i64>, message: u32) -> Option<InFlight<u32>> {
        match registry.admit(&object(generation), message, Instant::now()) {
            Admission::Start(given, entry) => {
                assert_eq!(given, message);
                entry
            }
            other => panic!("message {message} made no work: {other:?}"),
        }
    }

    #[test]
    fn a_redelivery_joins_until_the_job_ends() {
        let registry = Registry::new(WINDOW);
        let entry = start(&registry, Some(7), 1).expect("a generation makes an entry");
        assert!(matches!(registry.admit(&object(Some(7)), 2, Instant::now()), Admission::Joined));
        assert!(matches!(registry.admit(&object(Some(7)), 3, Instant::now()), Admission::Joined));
        assert_eq!(entry.finish(Instant::now()), [2, 3]);
        drop(start(&registry, Some(8), 4));
    }

    #[test]
    fn an_object_is_remembered_for_the_window_once_its_result_is_confirmed() {
        let registry = Registry::new(WINDOW);
        let now = Instant::now();
        let entry = start(&registry, Some(7), 1).unwrap();
        drop(start(&registry, Some(8), 2));
        entry.finish(now);
        let late =
            |seconds: u64, generation| registry.admit(&object(Some(generation)), 3, now + Duration::from_secs(seconds));
        assert!(matches!(late(59, 7), Admission::Finished(3)));
        assert!(matches!(late(59, 8), Admission::Start(..)), "its job was given up");
        assert!(matches!(late(60, 7), Admission::Start(..)), "the window is over");

        let none = Registry::new(Duration::ZERO);
        start(&none, Some(7), 1).unwrap().finish(Instant::now());
        drop(start(&none, Some(7), 2));
    }

    #[test]
    fn finished_objects_are_remembered_in_bounded_memory() {
        let registry = Registry::new(WINDOW);
        let now = Instant::now();
        let long = "x".repeat(1024);
        let object =
            |number: usize| ObjectId { bucket: "b".into(), name: format!("{long}{number}"), generation: Some(1) };
        for number in 0..20_000 {
            let Admission::Start(_, entry) = registry.admit(&object(number), (), now) else { panic!("{number}") };
            entry.unwrap().finish(now);
        }
        let table = registry.table();
        let Finished { order, known, bytes, .. } = &table.finished;
        assert!(*bytes <= MAX_FINISHED_BYTES && order.len() == known.len(), "{bytes} {}", order.len());
        assert!(order.len() > 10_000 && known.contains(&object(19_999)) && !known.contains(&object(0)));
    }

    #[test]
    fn another_generation_is_another_job() {
        let registry = Registry::new(WINDOW);
        let _first = start(&registry, Some(7), 1);
        assert!(start(&registry, Some(8), 2).is_some());
    }

    #[test]
    fn events_without_a_generation_never_join() {
        let registry = Registry::new(WINDOW);
        assert!(start(&registry, None, 1).is_none());
        assert!(start(&registry, None, 2).is_none());
    }

    #[test]
    fn a_dropped_job_frees_its_object_and_its_redeliveries() {
        let registry = Registry::new(WINDOW);
        let waiting = Arc::new(());
        let Admission::Start(_, entry) = registry.admit(&object(Some(7)), waiting.clone(), Instant::now()) else {
            panic!("nobody works on it")
        };
        assert!(matches!(registry.admit(&object(Some(7)), waiting.clone(), Instant::now()), Admission::Joined));
        drop(entry);
        assert_eq!(Arc::strong_count(&waiting), 1, "a joined message stayed in the table");
        assert!(matches!(registry.admit(&object(Some(7)), waiting, Instant::now()), Admission::Start(..)));
    }
}
