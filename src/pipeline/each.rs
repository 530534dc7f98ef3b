//! Bounded concurrency for a hop: one task an item, at most so many at a time, all of them owned.

use std::future::Future;

use tokio::sync::mpsc::Receiver;
use tokio::task::JoinSet;

use super::error::Fatal;

/// Runs `work` on every item of `input`, at most `limit` at a time, until the input closes and the work is done.
///
/// Dropping the future aborts what is running, which drops the jobs and so returns their messages.
pub(super) async fn each<T, Work>(mut input: Receiver<T>, limit: usize, work: impl Fn(T) -> Work) -> Result<(), Fatal>
where
    Work: Future<Output = Result<(), Fatal>> + Send + 'static,
{
    let mut running = JoinSet::new();
    let mut open = true;
    loop {
        tokio::select! {
            Some(ended) = running.join_next() => Fatal::flatten(ended)?,
            item = input.recv(), if open && running.len() < limit => match item {
                Some(item) => drop(running.spawn(work(item))),
                None => open = false,
            },
            else => return Ok(()),
        }
    }
}
