//! Free memory, watched: another process that takes it lowers the ceiling at the next look.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::admission::Admission;
use super::engine::Engine;
use super::error::Fatal;
use crate::metrics::Metrics;
use crate::vram::{Budget, Watched};

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Looks until stopped, and lets the ceiling grow back.
pub(super) async fn run(
    watched: Option<Watched>,
    admission: Admission,
    engine: Arc<Engine>,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
) -> Result<(), Fatal> {
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told = false;
    loop {
        tokio::select! {
            _ = looks.tick() => {}
            () = stop.cancelled() => return Ok(()),
        }
        admission.grow();
        let Some(Watched { memory, planned }) = watched.clone() else { continue };
        // A driver's answer may take milliseconds.
        let Ok(reading) = tokio::task::spawn_blocking(move || memory.read()).await else { continue };
        if let (Err(error), false) = (&reading, std::mem::replace(&mut told, reading.is_err())) {
            tracing::warn!(%error, "other processes' memory goes unseen");
        }
        metrics.memory(reading.as_ref().ok().copied());
        if let (Ok(reading), Some(budget)) = (reading, planned) {
            let Budget { fraction, limit, set_aside, .. } = budget;
            let now = Budget::new(reading, fraction, limit, set_aside).bytes();
            if admission.leave(now) {
                engine.give_back().await?;
            }
        }
    }
}
