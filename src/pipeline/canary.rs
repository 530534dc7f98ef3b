//! The golden images, run again and again: a device that begins to compute wrong ends the worker.
//!
//! The device thread runs them between batches, on an idle worker too; a batch waits for one check at most.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::engine::Engine;
use super::error::Fatal;

/// Has the golden images run with pauses of `interval` until stopped; without one, never.
pub(super) async fn run(interval: Option<Duration>, engine: Arc<Engine>, stop: CancellationToken) -> Result<(), Fatal> {
    let Some(interval) = interval else { return Ok(()) };
    loop {
        tokio::select! {
            () = sleep(interval) => engine.check().await?,
            () = stop.cancelled() => return Ok(()),
        }
    }
}
