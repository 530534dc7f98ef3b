//! A new model put in the old one's place while the worker runs.
//!
//! The follower loads it beside the old one. The device thread keeps it if its golden images pass; from then on images are
//! prepared for it, while those that were prepared for the old one still run there. When the last of them is through, the
//! old one leaves the device. Only then is the pointer looked at again, so that there are never three.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::engine::Engine;
use super::error::Fatal;
use super::generation::Generation;
use crate::metrics::Metrics;
use crate::reload::{Candidate, Follower, Refusal};

/// What a swap touches.
pub(super) struct Swap {
    pub(super) engine: Arc<Engine>,
    pub(super) replace: watch::Sender<Arc<Generation>>,
    pub(super) metrics: Arc<Metrics>,
}

/// Follows the pointer until stopped; a stop leaves what is being loaded.
pub(super) async fn run(mut follower: Follower, swap: Swap, stop: CancellationToken) -> Result<(), Fatal> {
    let follow = async {
        loop {
            follower.pause().await;
            if let Err(refusal) = swap.step(&mut follower).await? {
                if let Some(reason) = follower.refused(&refusal) {
                    swap.metrics.reload_refused(reason);
                }
                if refusal.is_from_device() {
                    // What went wrong there may have hurt the model that runs.
                    swap.engine.check().await?;
                }
            }
        }
    };
    tokio::select! {
        ended = follow => ended,
        () = stop.cancelled() => Ok(()),
    }
}

impl Swap {
    async fn step(&self, follower: &mut Follower) -> Result<Result<(), Refusal>, Fatal> {
        let old = self.replace.borrow().clone();
        let candidate = match follower.look(&old.info.digest, self.engine.suspicion()).await {
            Ok(Some(candidate)) => candidate,
            Ok(None) => return Ok(Ok(())),
            Err(refusal) => return Ok(Err(refusal)),
        };
        let Candidate { bundle, classifier, started } = candidate;
        let new = Generation::new(old.number + 1, bundle.clone(), classifier.device());
        let report = match self.engine.add(new.number, bundle, classifier).await? {
            Ok(report) => report,
            Err(error) => return Ok(Err(error.into())),
        };
        self.replace.send_replace(new.clone());
        follower.done();
        self.metrics.reloaded();
        tracing::info!(
            model = new.info.name,
            digest = new.info.digest,
            old = old.info.digest,
            golden_images = report.images,
            max_error = report.max_error,
            ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
            "another model from here on"
        );
        old.unused().await;
        self.engine.remove(old.number).await?;
        tracing::info!(digest = old.info.digest, "the old model's last images are through; it is off the device");
        Ok(Ok(()))
    }
}
