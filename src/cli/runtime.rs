//! The async runtime of a command, and the signals that stop it.

use std::future::Future;
use std::time::{Duration, Instant};

use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::Exit;

/// A supervisor may send its signal to the process and to its group at once: that is one.
const ONE_SIGNAL: Duration = Duration::from_secs(1);

/// How long the clients may take to give back what an aborted `work` held. They send every 0.1 s.
const GIVE_BACK: Duration = Duration::from_millis(300);

/// Runs `work` on a fresh runtime. The first SIGTERM or Ctrl-C cancels the token that `work` gets; another one, a second
/// later or more, drops `work` where it is.
pub(super) fn block_on<Work>(work: impl FnOnce(CancellationToken) -> Work) -> anyhow::Result<Exit>
where
    Work: Future<Output = anyhow::Result<Exit>>,
{
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let exit = runtime.block_on(async {
        let stop = CancellationToken::new();
        let aborted = twice(stop.clone());
        tokio::select! {
            exit = work(stop) => return exit,
            aborted = aborted => aborted?,
        }
        tokio::time::sleep(GIVE_BACK).await;
        Ok(Exit::Aborted)
    });
    // A device call or a decoder that is still busy must not hold up the end.
    runtime.shutdown_background();
    exit
}

/// Cancels `stop` at the first signal and ends at another one, [`ONE_SIGNAL`] later or more.
async fn twice(stop: CancellationToken) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut stopping: Option<Instant> = None;
    loop {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        if stopping.is_some_and(|since| since.elapsed() >= ONE_SIGNAL) {
            return Ok(());
        }
        stopping.get_or_insert_with(Instant::now);
        stop.cancel();
    }
}
