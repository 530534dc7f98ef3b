//! How long nothing has come on a stream that could bring something.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Between two looks at a stream whose worker can take no more.
const FULL: Duration = Duration::from_millis(500);

/// One stream's silence. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Quiet(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    longest: Duration,
    /// The intake has one strong reference, and so has every message that is held.
    held: Weak<()>,
    max_outstanding: usize,
    /// Since when a message is waited for; `None` while one is taken.
    since: Mutex<Option<Instant>>,
    was: AtomicBool,
}

impl Quiet {
    /// Of a stream that may be silent for so long, zero for ever, unless as many messages are held as may be.
    pub(super) fn new(longest: Duration, held: &Arc<()>, max_outstanding: usize) -> Self {
        let (held, since) = (Arc::downgrade(held), Mutex::new(None));
        Self(Arc::new(Shared { longest, held, max_outstanding, since, was: AtomicBool::new(false) }))
    }

    /// A message is waited for from now on.
    pub(super) fn begins(&self) {
        self.set(Some(Instant::now()));
    }

    /// Something came.
    pub(super) fn ends(&self) {
        self.set(None);
    }

    /// Ends once the stream has been silent for too long.
    pub(super) async fn too_long(&self) {
        if self.0.longest.is_zero() {
            return std::future::pending().await;
        }
        while let Some(next) = self.look(Instant::now()) {
            sleep_until(next).await;
        }
        self.0.was.store(true, Ordering::SeqCst);
    }

    /// When to look again; `None` once the stream has been silent for too long.
    fn look(&self, now: Instant) -> Option<Instant> {
        if self.is_full() && self.since().is_some() {
            // Pub/Sub sends no more before something is settled, and then it is that which counts.
            self.set(Some(now));
        }
        match self.since() {
            Some(since) if now.saturating_duration_since(since) >= self.0.longest => None,
            Some(since) if !self.is_full() => Some((since + self.0.longest).min(now + FULL)),
            _ => Some(now + FULL),
        }
    }

    /// Whether [`Self::too_long`] has ended.
    pub(super) fn was_too_long(&self) -> bool {
        self.0.was.load(Ordering::SeqCst)
    }

    fn is_full(&self) -> bool {
        self.0.held.strong_count() > self.0.max_outstanding
    }

    fn since(&self) -> Option<Instant> {
        *self.0.since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, since: Option<Instant>) {
        *self.0.since.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_secs(15);

    /// Looks as often as told to until so many seconds after `start`: whether the stream was silent for too long by then.
    fn ends_by(quiet: &Quiet, start: Instant, from: u64, to: u64) -> bool {
        let (mut now, end) = (start + Duration::from_secs(from), start + Duration::from_secs(to));
        while now <= end {
            match quiet.look(now) {
                Some(next) => now = next,
                None => return true,
            }
        }
        false
    }

    fn begins(quiet: &Quiet, start: Instant, at: u64) {
        quiet.set(Some(start + Duration::from_secs(at)));
    }

    #[test]
    fn silence_counts_from_the_last_message_and_not_while_one_is_taken() {
        let (quiet, start) = (Quiet::new(LONGEST, &Arc::default(), 2), Instant::now());
        assert!(!ends_by(&quiet, start, 0, 100), "nothing is waited for yet");
        begins(&quiet, start, 100);
        assert!(!ends_by(&quiet, start, 100, 114));
        quiet.ends();
        assert!(!ends_by(&quiet, start, 114, 200));
        begins(&quiet, start, 200);
        assert!(!ends_by(&quiet, start, 200, 214) && ends_by(&quiet, start, 214, 215));
    }

    #[test]
    fn a_worker_that_can_take_no_more_waits_for_nothing() {
        let (intake, start) = (Arc::new(()), Instant::now());
        let quiet = Quiet::new(LONGEST, &intake, 2);
        let (first, _second) = (intake.clone(), intake.clone());
        begins(&quiet, start, 0);
        assert!(!ends_by(&quiet, start, 0, 100));
        drop(first);
        assert!(!ends_by(&quiet, start, 101, 114) && ends_by(&quiet, start, 114, 116));
    }

    #[tokio::test]
    async fn too_long_says_that_it_was_and_zero_is_for_ever() {
        let quiet = Quiet::new(Duration::from_millis(1), &Arc::default(), 2);
        quiet.begins();
        quiet.too_long().await;
        assert!(quiet.was_too_long());
        let quiet = Quiet::new(Duration::ZERO, &Arc::default(), 2);
        quiet.begins();
        assert!(tokio::time::timeout(Duration::from_millis(20), quiet.too_long()).await.is_err());
    }
}
