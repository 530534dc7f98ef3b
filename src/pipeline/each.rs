//! Bounded concurrency for a hop: one task an item, at most so many at a time, all of them owned.

use std::future::{Future, pending};

use tokio::sync::mpsc::Receiver;
use tokio::task::JoinSet;

use super::error::Fatal;

/// Runs `work` on every item of `input`, at most `limit` at a time, until the input closes and the work is done.
///
/// Dropping the future aborts what is running, which drops the jobs and so returns their messages.
pub(super) async fn each<T, Work>(input: Receiver<T>, limit: usize, work: impl Fn(T) -> Work) -> Result<(), Fatal>
where
    Work: Future<Output = Result<(), Fatal>> + Send + 'static,
{
    each_until(pending(), input, limit, work).await
}

/// The same until `stop` resolves: then what waits in `input` is dropped, and what runs is finished.
pub(super) async fn each_until<T, Work>(
    stop: impl Future<Output = ()>,
    mut input: Receiver<T>,
    limit: usize,
    work: impl Fn(T) -> Work,
) -> Result<(), Fatal>
where
    Work: Future<Output = Result<(), Fatal>> + Send + 'static,
{
    let mut running = JoinSet::new();
    let mut open = true;
    tokio::pin!(stop);
    loop {
        tokio::select! {
            Some(ended) = running.join_next() => Fatal::flatten(ended)?,
            () = &mut stop, if open => {
                open = false;
                input.close();
                while input.recv().await.is_some() {}
            }
            item = input.recv(), if open && running.len() < limit => match item {
                Some(item) => drop(running.spawn(work(item))),
                None => open = false,
            },
            else => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tokio::sync::{Notify, mpsc};

    #[tokio::test]
    async fn a_stop_drops_what_waits_and_finishes_what_runs() {
        let (items, input) = mpsc::channel(8);
        let (started, mut running) = mpsc::channel(8);
        let (release, stop) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (finished, mut done) = mpsc::channel(8);
        for item in 0..5 {
            items.send(item).await.unwrap();
        }
        let hop = each_until(stop.notified(), input, 2, |item| {
            let (started, release, finished) = (started.clone(), release.clone(), finished.clone());
            async move {
                started.send(item).await.unwrap();
                release.notified().await;
                finished.send(item).await.unwrap();
                Ok(())
            }
        });
        let driver = async {
            let begun = [running.recv().await, running.recv().await];
            stop.notify_one();
            items.closed().await;
            release.notify_waiters();
            begun
        };
        let (ended, begun) = tokio::join!(hop, driver);
        ended.unwrap();
        assert_eq!(begun, [Some(0), Some(1)], "no more than the limit runs");
        drop(finished);
        let mut left = Vec::new();
        while let Some(item) = done.recv().await {
            left.push(item);
        }
        assert_eq!(left, [0, 1]);
    }
}
