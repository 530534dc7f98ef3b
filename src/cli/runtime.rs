//! The async runtime of a command, and the signals that stop it.

use std::future::Future;

use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::Exit;

/// Runs `work` on a fresh runtime. The first SIGTERM or Ctrl-C cancels the token that `work` gets; a second one drops
/// `work` where it is.
pub(super) fn block_on<Work>(work: impl FnOnce(CancellationToken) -> Work) -> anyhow::Result<Exit>
where
    Work: Future<Output = anyhow::Result<Exit>>,
{
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let exit = runtime.block_on(async {
        let stop = CancellationToken::new();
        let aborted = twice(stop.clone());
        tokio::select! {
            exit = work(stop) => exit,
            aborted = aborted => aborted.map(|()| Exit::Aborted),
        }
    });
    // A device call or a decoder that is still busy must not hold up the end.
    runtime.shutdown_background();
    exit
}

/// Cancels `stop` at the first signal and ends at the second.
async fn twice(stop: CancellationToken) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    for _ in 0..2 {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        stop.cancel();
    }
    Ok(())
}
