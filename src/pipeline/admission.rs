//! The ceiling, shared: the batcher waits for room and takes it, the device thread says what fitted, and a watcher says
//! what other processes leave.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::metrics::Metrics;
use crate::vram::{Ceiling, Ladder, Share};

/// A ceiling that many hold. Clones share it.
#[derive(Clone, Debug)]
pub struct Admission {
    ceiling: Arc<watch::Sender<Ceiling>>,
    /// What the ceiling's time counts from.
    since: Instant,
    metrics: Arc<Metrics>,
}

/// A batch's share of the device, given back when dropped.
#[derive(Debug)]
pub(super) struct Permit {
    admission: Admission,
    share: Option<Share>,
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(share) = self.share.take() {
            self.admission.change(|ceiling, _| ceiling.release(share));
        }
    }
}

impl Admission {
    /// Holds everybody to `ceiling`.
    pub fn new(ceiling: Ceiling, metrics: Arc<Metrics>) -> Self {
        metrics.ceiling(&ceiling, None);
        Self { ceiling: Arc::new(watch::Sender::new(ceiling)), since: Instant::now(), metrics }
    }

    /// Waits until a batch of the images that are there has room, if only for one of them, and says how many have.
    pub(super) async fn room(&self, images: usize) -> usize {
        let mut ceiling = self.ceiling.subscribe();
        let room = ceiling.wait_for(|ceiling| ceiling.room(images) > 0).await.map(|ceiling| ceiling.room(images));
        // This holds the sender: it is never closed.
        room.unwrap_or(0)
    }

    /// Room for a batch of so many images; `None` where there is none any more.
    pub(super) fn admit(&self, images: usize) -> Option<Permit> {
        let share = self.change(|ceiling, _| ceiling.admit(images))?;
        Some(Permit { admission: self.clone(), share: Some(share) })
    }

    /// The device had no room for a batch of so many images.
    pub(super) fn ran_out(&self, images: usize) {
        self.change(|ceiling, now| ceiling.ran_out(images, now));
        self.metrics.split();
    }

    /// A batch of so many images ran.
    pub(super) fn ran(&self, images: usize) {
        self.change(|ceiling, _| ceiling.ran(images));
    }

    /// Another model is on the device, with a plan of its own.
    pub(super) fn replan(&self, (fixed, ladder): Ladder) {
        self.change(|ceiling, _| ceiling.replan(fixed, ladder));
    }

    /// Other processes leave so many bytes for the model and its batches. Says whether that is less than before.
    pub(super) fn leave(&self, bytes: u64) -> bool {
        let before = self.ceiling.borrow().largest();
        self.change(|ceiling, now| ceiling.leave(bytes, now));
        let after = self.ceiling.borrow().largest();
        if after < before {
            tracing::warn!(batch = after, before, left = bytes, "other processes have the device's memory");
        }
        after < before
    }

    /// Lets the ceiling grow, if its time has come.
    pub(super) fn grow(&self) {
        let before = self.ceiling.borrow().largest();
        if self.change(Ceiling::grow) {
            let after = self.ceiling.borrow().largest();
            if after > before {
                tracing::info!(batch = after, before, "trying larger batches again");
            }
        }
    }

    /// Images of the plan's largest batch.
    pub(super) fn planned(&self) -> usize {
        self.ceiling.borrow().planned()
    }

    fn change<T>(&self, change: impl FnOnce(&mut Ceiling, Duration) -> T) -> T {
        let now = self.since.elapsed();
        let (mut result, mut lowered) = (None, None);
        self.ceiling.send_modify(|ceiling| {
            let before = ceiling.allowed();
            result = Some(change(ceiling, now));
            lowered = (ceiling.allowed() < before).then(|| ceiling.limit());
            self.metrics.ceiling(ceiling, lowered);
        });
        result.expect("the change was made")
    }
}
