//! What the worker counts. Every label set is closed, so the counts are bounded.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::event::LabelResult;
use crate::event::SkipReason;
use crate::pipeline::{CloseReason, RetryReason, Settled};

/// Counters since the start, shared by the hops.
#[derive(Debug, Default)]
pub struct Metrics(Mutex<Counts>);

/// The counters at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Results with labels, confirmed.
    pub labeled: u64,
    /// Failed results, confirmed, by code.
    pub failed: BTreeMap<&'static str, u64>,
    /// Events acknowledged without a result, by reason.
    pub skipped: BTreeMap<&'static str, u64>,
    /// Messages given back to Pub/Sub, by reason.
    pub retried: BTreeMap<&'static str, u64>,
    /// Redeliveries that joined a running job.
    pub joined: u64,
    /// Messages acknowledged.
    pub acked: u64,
    /// Acks that an exactly-once subscription did not confirm.
    pub unconfirmed: u64,
    /// Batches by the reason they closed.
    pub batches: BTreeMap<&'static str, u64>,
    /// Batches by their size in images.
    pub batch_sizes: BTreeMap<usize, u64>,
}

impl Metrics {
    /// The counters now.
    pub fn snapshot(&self) -> Counts {
        self.counts().clone()
    }

    pub(crate) fn finished(&self, result: &LabelResult, settled: Settled) {
        let mut counts = self.counts();
        match &result.error {
            Some(error) => *counts.failed.entry(error.code.as_str()).or_default() += 1,
            None => counts.labeled += 1,
        }
        counts.settle(settled);
    }

    pub(crate) fn skipped(&self, reason: SkipReason, settled: Settled) {
        let mut counts = self.counts();
        *counts.skipped.entry(reason.as_str()).or_default() += 1;
        counts.settle(settled);
    }

    pub(crate) fn retried(&self, reason: RetryReason) {
        *self.counts().retried.entry(reason.as_str()).or_default() += 1;
    }

    pub(crate) fn joined(&self) {
        self.counts().joined += 1;
    }

    pub(crate) fn batch(&self, size: usize, reason: CloseReason) {
        let mut counts = self.counts();
        *counts.batches.entry(reason.as_str()).or_default() += 1;
        *counts.batch_sizes.entry(size).or_default() += 1;
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        // Counters hold no invariant that a panic elsewhere could break.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    /// Failed results of every code.
    pub fn failed_total(&self) -> u64 {
        self.failed.values().sum()
    }

    fn settle(&mut self, settled: Settled) {
        self.acked += settled.acked;
        self.unconfirmed += settled.unconfirmed;
    }
}
