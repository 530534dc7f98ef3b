//! The order of things when a worker fails: first the stream ends, then messages go back.
//!
//! A message that is returned while the stream is open comes straight back on it, and then waits there for its lease to
//! end before another worker gets it.

use std::future::Future;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::error::Fatal;

/// How long the end of a stream may take, and again until Pub/Sub knows of it.
const CLOSE: Duration = Duration::from_millis(200);

/// Ends the stream. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Closing {
    pulling: CancellationToken,
    closed: CancellationToken,
}

impl Closing {
    /// Of the stream that is open until `pulling` is cancelled.
    pub(super) fn new(pulling: CancellationToken) -> Self {
        Self { pulling, closed: CancellationToken::new() }
    }

    /// What reads the stream to its end.
    pub(super) fn reading<Pulls: Future>(&self, pulls: Pulls) -> impl Future<Output = Pulls::Output> + use<Pulls> {
        let closed = self.closed.clone().drop_guard();
        async move {
            let _closed = closed;
            pulls.await
        }
    }

    /// Passes on a result, and an error only once the stream has ended: until then the caller holds its jobs.
    pub(super) async fn before_error<T>(&self, result: Result<T, Fatal>) -> Result<T, Fatal> {
        if result.is_err() {
            self.pulling.cancel();
            drop(timeout(CLOSE, self.closed.cancelled()).await);
            sleep(CLOSE).await;
        }
        result
    }
}
