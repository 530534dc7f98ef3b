//! Images gathered into batches: a batch leaves when the engine has room, so its size follows the load.
//!
//! [`Batcher`] decides and never waits; the loop around it only dispatches. There is no linger timer: an idle engine
//! takes what is there, and while it works the next batch grows; a full one leaves ahead, where its pixels can be put on
//! the device. A batch is for one model: while a model is replaced, images for the old one leave first.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::mpsc::{Receiver, Sender};

use super::admission::{Admission, Permit};
use super::decode::Waiting;
use super::error::Fatal;
use super::job::Job;
use crate::metrics::Metrics;

/// Why a batch closed. A closed list, used as a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CloseReason {
    /// It reached the largest size that had room.
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

    /// Images that could leave as one batch: those for the oldest model.
    fn ready(&self) -> usize {
        let oldest = self.waiting.iter().map(|(model, _)| *model).min();
        self.waiting.iter().filter(|(model, _)| Some(*model) == oldest).count()
    }

    fn is_done(&self) -> bool {
        self.closed && self.waiting.is_empty()
    }

    /// Closes a batch of at most `room` images; `None` when nothing waits.
    fn close(&mut self, room: usize) -> Option<(Vec<T>, CloseReason)> {
        let oldest = self.waiting.iter().map(|(model, _)| *model).min()?;
        let (mut batch, mut rest) = (Vec::new(), VecDeque::with_capacity(self.max));
        for (model, item) in self.waiting.drain(..) {
            if model == oldest && batch.len() < room { batch.push(item) } else { rest.push_back((model, item)) }
        }
        self.waiting = rest;
        let reason = match self.closed {
            _ if batch.len() == room => CloseReason::Full,
            _ if !self.waiting.is_empty() => CloseReason::Model,
            true => CloseReason::Drain,
            false => CloseReason::Idle,
        };
        Some((batch, reason))
    }
}

/// A closed batch, all for one model, with its share of the device, held until its answer is read.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) jobs: Vec<Job<Waiting>>,
    pub(super) permit: Permit,
}

/// Gathers decoded images and sends a batch each time the device has room.
pub(super) async fn run(
    mut images: Receiver<Job<Waiting>>,
    admission: Admission,
    metrics: Arc<Metrics>,
    batches: Sender<Batch>,
) -> Result<(), Fatal> {
    let mut batcher = Batcher::new(admission.planned());
    while !batcher.is_done() {
        batcher.max = admission.planned();
        tokio::select! {
            // First what has arrived, so that a free engine gets all of it.
            biased;
            image = images.recv(), if batcher.has_room() => {
                batcher.offer(image.map(|job| (job.stage.model.model.number, job)));
            }
            room = admission.room(batcher.ready()), if batcher.ready() > 0 => {
                // The ceiling may have come down meanwhile.
                let Some(permit) = admission.admit(batcher.ready().min(room)) else { continue };
                let Some((jobs, reason)) = batcher.close(room) else { continue };
                metrics.batch(jobs.len(), reason);
                if batches.send(Batch { jobs, permit }).await.is_err() {
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
        EngineFree { room: usize },
        Replace,
        Close,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            6 => any::<bool>().prop_map(|late| Step::Arrive { late }),
            3 => (1_usize..20).prop_map(|room| Step::EngineFree { room }),
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
            let end = std::iter::repeat_n(Step::EngineFree { room: max }, 200);
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
                    Step::EngineFree { room } => {
                        let oldest = batcher.waiting.iter().map(|(of, _)| *of).min();
                        let ready = batcher.ready();
                        let Some((items, reason)) = batcher.close(room) else {
                            prop_assert_eq!(oldest, None, "an idle engine got nothing though something waits");
                            continue;
                        };
                        prop_assert_eq!(items.len(), ready.min(room));
                        let alike = items.iter().all(|(of, _)| Some(*of) == oldest);
                        prop_assert!(alike, "{:?} should all be for {:?}", items, oldest);
                        let others = !batcher.waiting.is_empty();
                        let rest = batcher.waiting.iter().all(|(of, _)| Some(*of) > oldest);
                        prop_assert!(rest || items.len() == room, "the oldest model's items leave together");
                        prop_assert_eq!(reason == CloseReason::Full, items.len() == room);
                        prop_assert_eq!(reason == CloseReason::Model, items.len() < room && others);
                        let drained = items.len() < room && !others && batcher.closed;
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
