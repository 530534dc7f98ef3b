//! Which model a job is for, from decode to its result.
//!
//! An image is prepared for one model, runs on it, and is labelled with its names: the job carries it. [`Current`] gives
//! the one that jobs are prepared for now. [`InUse`] marks a job that still needs its model on the device; when the last
//! mark of a replaced model is gone, the device drops it.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::event::ModelInfo;
use crate::model::Bundle;

/// A model that jobs are prepared for, and its number on the device thread.
#[derive(Debug)]
pub(super) struct Generation {
    pub(super) number: u64,
    pub(super) bundle: Arc<Bundle>,
    /// The model as results name it.
    pub(super) info: ModelInfo,
    uses: TaskTracker,
}

impl Generation {
    pub(super) fn new(number: u64, bundle: Arc<Bundle>, device: &str) -> Arc<Self> {
        let info = ModelInfo {
            name: bundle.manifest().name.clone(),
            digest: bundle.digest().to_owned(),
            device: device.to_owned(),
        };
        Arc::new(Self { number, bundle, info, uses: TaskTracker::new() })
    }

    /// Waits until no job needs the model on the device. It must have been replaced: nobody may begin to use it.
    pub(super) async fn unused(&self) {
        self.uses.close();
        self.uses.wait().await;
    }
}

/// A job's claim to a model on the device.
#[derive(Debug)]
pub(super) struct InUse {
    pub(super) model: Arc<Generation>,
    _token: TaskTrackerToken,
}

/// The model that jobs are prepared for.
#[derive(Clone, Debug)]
pub(super) struct Current(watch::Receiver<Arc<Generation>>);

impl Current {
    /// The model, and the one handle that replaces it.
    pub(super) fn new(first: Arc<Generation>) -> (watch::Sender<Arc<Generation>>, Self) {
        let (replace, current) = watch::channel(first);
        (replace, Self(current))
    }

    pub(super) fn get(&self) -> Arc<Generation> {
        self.0.borrow().clone()
    }

    /// The model, marked as in use.
    pub(super) fn take(&self) -> InUse {
        // Marked under the lock that a replacement takes: a model that was replaced gets no new marks.
        let model = self.0.borrow();
        InUse { model: model.clone(), _token: model.uses.token() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_replaced_model_is_in_use_until_its_last_job_is_through() {
        let bundle = Arc::new(Bundle::builtin().unwrap());
        let first = Generation::new(0, bundle.clone(), "test");
        let (replace, current) = Current::new(first.clone());
        let (early, late) = (current.take(), current.take());
        replace.send_replace(Generation::new(1, bundle, "test"));
        let newer = current.take();
        assert_eq!((early.model.number, late.model.number, newer.model.number), (0, 0, 1));
        let unused = first.unused();
        tokio::pin!(unused);
        for job in [early, late] {
            assert!(tokio::select! { biased; () = &mut unused => false, () = std::future::ready(()) => true });
            drop(job);
        }
        unused.await;
    }
}
