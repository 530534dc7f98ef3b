//! Which objects are being worked on, so that a redelivery joins the running job instead of starting another.
//!
//! Keyed by bucket, name and generation: one upload may come under several message ids. An event without a generation
//! never joins: two of them may be about two versions of the object. Bounded by the outstanding messages, since every
//! entry and every joined message is one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use google_cloud_pubsub::subscriber::handler::Handler;

use crate::event::ObjectId;

/// The objects in flight.
#[derive(Debug)]
pub(super) struct Registry<M = Handler>(Arc<Mutex<HashMap<ObjectId, Vec<M>>>>);

/// One object in flight; dropping it ends the entry and drops the messages that joined.
#[derive(Debug)]
pub(super) struct InFlight<M = Handler> {
    registry: Registry<M>,
    /// `None` once the entry has ended: another job may own the object's next entry by then.
    object: Option<ObjectId>,
}

/// What became of a message offered to the [`Registry`].
#[derive(Debug)]
pub(super) enum Admission<M = Handler> {
    /// Nobody works on this object: start a job that holds both.
    Start(M, Option<InFlight<M>>),
    /// The message joined the job that is already running.
    Joined,
}

impl<M> Registry<M> {
    pub(super) fn new() -> Self {
        Self(Arc::default())
    }

    /// Starts an entry for `object`, or hands `message` to the job that has one.
    pub(super) fn admit(&self, object: &ObjectId, message: M) -> Admission<M> {
        if object.generation.is_none() {
            return Admission::Start(message, None);
        }
        let mut table = self.table();
        if let Some(joined) = table.get_mut(object) {
            joined.push(message);
            return Admission::Joined;
        }
        table.insert(object.clone(), Vec::new());
        drop(table);
        Admission::Start(message, Some(InFlight { registry: Self(self.0.clone()), object: Some(object.clone()) }))
    }

    fn table(&self) -> MutexGuard<'_, HashMap<ObjectId, Vec<M>>> {
        // No code panics while it holds the lock, and the table is whole between any two statements.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<M> InFlight<M> {
    /// Ends the entry and gives the messages that joined.
    pub(super) fn finish(mut self) -> Vec<M> {
        self.end()
    }

    fn end(&mut self) -> Vec<M> {
        self.object.take().and_then(|object| self.registry.table().remove(&object)).unwrap_or_default()
    }
}

impl<M> Drop for InFlight<M> {
    fn drop(&mut self) {
        drop(self.end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(generation: Option<i64>) -> ObjectId {
        ObjectId { bucket: "uploads".into(), name: "a/b.jpg".into(), generation }
    }

    fn start(registry: &Registry<u32>, generation: Option<i64>, message: u32) -> Option<InFlight<u32>> {
        match registry.admit(&object(generation), message) {
            Admission::Start(given, entry) => {
                assert_eq!(given, message);
                entry
            }
            Admission::Joined => panic!("message {message} joined a job that has ended"),
        }
    }

    #[test]
    fn a_redelivery_joins_until_the_job_ends() {
        let registry = Registry::new();
        let entry = start(&registry, Some(7), 1).expect("a generation makes an entry");
        assert!(matches!(registry.admit(&object(Some(7)), 2), Admission::Joined));
        assert!(matches!(registry.admit(&object(Some(7)), 3), Admission::Joined));
        assert_eq!(entry.finish(), [2, 3]);
        drop(start(&registry, Some(7), 4));
    }

    #[test]
    fn another_generation_is_another_job() {
        let registry = Registry::new();
        let _first = start(&registry, Some(7), 1);
        assert!(start(&registry, Some(8), 2).is_some());
    }

    #[test]
    fn events_without_a_generation_never_join() {
        let registry = Registry::new();
        assert!(start(&registry, None, 1).is_none());
        assert!(start(&registry, None, 2).is_none());
    }

    #[test]
    fn a_dropped_job_frees_its_object_and_its_redeliveries() {
        let registry = Registry::new();
        let waiting = Arc::new(());
        let Admission::Start(_, entry) = registry.admit(&object(Some(7)), waiting.clone()) else {
            panic!("nobody works on it")
        };
        assert!(matches!(registry.admit(&object(Some(7)), waiting.clone()), Admission::Joined));
        drop(entry);
        assert_eq!(Arc::strong_count(&waiting), 1, "a joined message stayed in the table");
        assert!(matches!(registry.admit(&object(Some(7)), waiting), Admission::Start(..)));
    }
}
