//! Images gathered into batches: a batch leaves when the engine has room, so its size follows the load.
//!
//! [`Batcher`] decides and never waits; the loop around it only dispatches. There is no linger timer: an idle engine
//! takes what is there, and while it works the next batch grows.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::mpsc::{Receiver, Sender};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::decode::Waiting;
use super::error::Fatal;
use super::job::Job;
use crate::metrics::Metrics;

/// Why a batch closed. A closed list, used as a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CloseReason {
    /// It reached the largest size.
    Full,
    /// The engine was idle, and no more images were there.
    Idle,
    /// The input has closed: what is left goes out.
    Drain,
}

impl CloseReason {
    /// The name in logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Idle => "idle",
            Self::Drain => "drain",
        }
    }
}

/// Gathers items in order and decides when a batch closes. Holds at most one batch.
#[derive(Debug)]
struct Batcher<T> {
    waiting: VecDeque<T>,
    max: usize,
    closed: bool,
}

impl<T> Batcher<T> {
    fn new(max: usize) -> Self {
        Self { waiting: VecDeque::with_capacity(max), max, closed: false }
    }

    /// Whether another item may be offered.
    fn has_room(&self) -> bool {
        !self.closed && self.waiting.len() < self.max
    }

    /// Takes an item, or with `None` learns that no more will come.
    fn offer(&mut self, item: Option<T>) {
        match item {
            Some(item) => self.waiting.push_back(item),
            None => self.closed = true,
        }
    }

    /// Whether there is something for an idle engine.
    fn has_work(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn is_done(&self) -> bool {
        self.closed && self.waiting.is_empty()
    }

    /// Closes the batch for an engine with room; `None` when nothing waits.
    fn close(&mut self) -> Option<(Vec<T>, CloseReason)> {
        if self.waiting.is_empty() {
            return None;
        }
        let reason = match self.closed {
            _ if self.waiting.len() == self.max => CloseReason::Full,
            true => CloseReason::Drain,
            false => CloseReason::Idle,
        };
        Some((self.waiting.drain(..).collect(), reason))
    }
}

/// A closed batch, with the engine's slot that it occupies until its answer is read.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) jobs: Vec<Job<Waiting>>,
    pub(super) slot: OwnedSemaphorePermit,
}

/// Gathers decoded images and sends a batch each time one of `slots` (the batches the engine holds) is free.
pub(super) async fn run(
    mut images: Receiver<Job<Waiting>>,
    max_batch: usize,
    slots: Arc<Semaphore>,
    metrics: Arc<Metrics>,
    batches: Sender<Batch>,
) -> Result<(), Fatal> {
    let mut batcher = Batcher::new(max_batch);
    while !batcher.is_done() {
        tokio::select! {
            // First what has arrived, so that a free engine gets all of it.
            biased;
            image = images.recv(), if batcher.has_room() => batcher.offer(image),
            slot = slots.clone().acquire_owned(), if batcher.has_work() => {
                let Some((jobs, reason)) = batcher.close() else { continue };
                metrics.batch(jobs.len(), reason);
                let slot = slot.expect("the slots are never closed");
                if batches.send(Batch { jobs, slot }).await.is_err() {
                    break;
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Arrive,
        EngineFree,
        Close,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![6 => Just(Step::Arrive), 3 => Just(Step::EngineFree), 1 => Just(Step::Close)];
        proptest::collection::vec(step, 0..200)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn every_item_leaves_once_in_order_in_batches_within_the_limit(steps in steps(), max in 1_usize..20) {
            let mut batcher = Batcher::new(max);
            let (mut arrived, mut left) = (0, Vec::new());
            for step in steps.into_iter().chain([Step::Close, Step::EngineFree]) {
                match step {
                    Step::Arrive if batcher.has_room() => {
                        batcher.offer(Some(arrived));
                        arrived += 1;
                    }
                    Step::Arrive => prop_assert!(batcher.closed || batcher.waiting.len() == max),
                    Step::Close => batcher.offer(None),
                    Step::EngineFree => {
                        let had_work = batcher.has_work();
                        let closed = batcher.close();
                        prop_assert_eq!(closed.is_some(), had_work);
                        let Some((items, reason)) = closed else { continue };
                        prop_assert!((1..=max).contains(&items.len()));
                        prop_assert_eq!(reason == CloseReason::Full, items.len() == max);
                        prop_assert_eq!(reason == CloseReason::Drain, batcher.closed && items.len() < max);
                        left.extend(items);
                    }
                }
            }
            prop_assert!(batcher.is_done());
            prop_assert_eq!(left, (0..arrived).collect::<Vec<_>>());
        }
    }
}
