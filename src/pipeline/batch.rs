//! Images gathered into batches: a batch leaves when the engine has room, so its size follows the load.
//!
//! [`Batcher`] decides and never waits; the loop around it only dispatches. There is no linger timer: an idle engine
//! takes what is there, and while it works the next batch grows. A batch is for one model: while a model is replaced,
//! images for the old one leave first.

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
    /// The engine was idle, and the other images that were there are for the next model.
    Model,
    /// The input has closed: what is left goes out.
    Drain,
}

impl CloseReason {
    /// The name in logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Idle => "idle",
            Self::Model => "model",
            Self::Drain => "drain",
        }
    }
}

/// Gathers items in order and decides when a batch closes. Holds at most as many as a batch takes.
///
/// Each item is for a model, named by its number; a batch is for one model, the oldest that an item waits for.
#[derive(Debug)]
struct Batcher<T> {
    waiting: VecDeque<(u64, T)>,
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

    /// Takes an item and the number of its model, or with `None` learns that no more will come.
    fn offer(&mut self, item: Option<(u64, T)>) {
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
        let model = self.waiting.iter().map(|(model, _)| *model).min()?;
        let (batch, rest): (VecDeque<_>, VecDeque<_>) = self.waiting.drain(..).partition(|(of, _)| *of == model);
        self.waiting = rest;
        let reason = match self.closed {
            _ if batch.len() == self.max => CloseReason::Full,
            _ if !self.waiting.is_empty() => CloseReason::Model,
            true => CloseReason::Drain,
            false => CloseReason::Idle,
        };
        Some((batch.into_iter().map(|(_, item)| item).collect(), reason))
    }
}

/// A closed batch, all for one model, with the engine's slot that it occupies until its answer is read.
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
            image = images.recv(), if batcher.has_room() => {
                batcher.offer(image.map(|job| (job.stage.model.model.number, job)));
            }
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
        Arrive { late: bool },
        EngineFree,
        Replace,
        Close,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            6 => any::<bool>().prop_map(|late| Step::Arrive { late }),
            3 => Just(Step::EngineFree),
            1 => Just(Step::Replace),
            1 => Just(Step::Close)
        ];
        proptest::collection::vec(step, 0..200)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn every_item_leaves_once_in_order_with_its_model_in_batches_within_the_limit(
            steps in steps(),
            max in 1_usize..20,
        ) {
            let mut batcher = Batcher::new(max);
            let (mut model, mut arrived, mut left) = (1, Vec::new(), Vec::new());
            let end = std::iter::repeat_n(Step::EngineFree, 200);
            for step in steps.into_iter().chain([Step::Close]).chain(end) {
                match step {
                    Step::Arrive { late } if batcher.has_room() => {
                        // An image that was prepared for the model before may take longer than others.
                        let of = model - u64::from(late);
                        let item = (of, arrived.len());
                        batcher.offer(Some((of, item)));
                        arrived.push(item);
                    }
                    Step::Arrive { .. } => prop_assert!(batcher.closed || batcher.waiting.len() == max),
                    Step::Replace => model += 1,
                    Step::Close => batcher.offer(None),
                    Step::EngineFree => {
                        let oldest = batcher.waiting.iter().map(|(of, _)| *of).min();
                        let Some((items, reason)) = batcher.close() else {
                            prop_assert_eq!(oldest, None, "an idle engine got nothing though something waits");
                            continue;
                        };
                        prop_assert!((1..=max).contains(&items.len()));
                        let alike = items.iter().all(|(of, _)| Some(*of) == oldest);
                        prop_assert!(alike, "{:?} should all be for {:?}", items, oldest);
                        let others = !batcher.waiting.is_empty();
                        let rest = batcher.waiting.iter().all(|(of, _)| Some(*of) > oldest);
                        prop_assert!(rest, "the oldest model's items leave together");
                        prop_assert_eq!(reason == CloseReason::Full, items.len() == max);
                        prop_assert_eq!(reason == CloseReason::Model, items.len() < max && others);
                        let drained = items.len() < max && !others && batcher.closed;
                        prop_assert_eq!(reason == CloseReason::Drain, drained);
                        left.extend(items);
                    }
                }
            }
            prop_assert!(batcher.is_done());
            // Once each, and in order among those for the same model.
            left.sort_by_key(|(of, _)| *of);
            arrived.sort_by_key(|(of, _)| *of);
            prop_assert_eq!(left, arrived);
        }
    }
}
