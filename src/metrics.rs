//! What the worker counts. Every label set is closed, so the counts are bounded.

use std::collections::BTreeMap;
use std::time::Instant;

use tokio::sync::watch;

use crate::event::LabelResult;
use crate::event::SkipReason;
use crate::model::Pool;
use crate::model::golden::GoldenReport;
use crate::pipeline::{CloseReason, RetryReason, Settled};
use crate::reload::Reason;
use crate::vram::{Ceiling, Limit, Reading};

/// Counters since the start, shared by the hops.
#[derive(Debug, Default)]
pub struct Metrics(watch::Sender<Counts>);

/// The counters at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
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
    /// Streams that were replaced because nothing came on them.
    pub silent_streams: u64,
    /// Messages acknowledged.
    pub acked: u64,
    /// Acks that an exactly-once subscription did not confirm.
    pub unconfirmed: u64,
    /// Batches by the reason they closed.
    pub batches: BTreeMap<&'static str, u64>,
    /// Batches by their size in images.
    pub batch_sizes: BTreeMap<usize, u64>,
    /// Golden images run, with what they showed at last.
    pub canary: Canary,
    /// The device's memory and what may be on it.
    pub device: DeviceCounts,
    /// Models that replaced another one.
    pub reloads: u64,
    /// Models that were refused, by reason; once for each version of the pointer object.
    pub reloads_refused: BTreeMap<&'static str, u64>,
}

/// The device's memory and what may be on it. Bytes are of the last look, which is less than a second old.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceCounts {
    /// All of the device's memory, what nobody has of it, and what this process has; `None` where nobody tells.
    pub memory: Option<Reading>,
    /// What the runtime keeps of it; `None` where tensors are in plain memory.
    pub pool: Option<Pool>,
    /// Bytes that batches may have now, by the plan and what has happened since.
    pub allowed: u64,
    /// Bytes that batches have now.
    pub held: u64,
    /// Batches on the device now.
    pub in_flight: usize,
    /// Images of the plan's largest batch.
    pub planned_batch: usize,
    /// Images of the largest batch that may run now.
    pub ceiling: usize,
    /// Why it is no larger.
    pub limit: Option<Limit>,
    /// How often the ceiling was lowered, by reason.
    pub lowered: BTreeMap<&'static str, u64>,
    /// Batches that the device had no room for, and that were split.
    pub splits: u64,
    /// When the plan was measured, in seconds since 1970; `None` without one.
    pub plan_at: Option<u64>,
}

/// The golden images' runs that passed. One that does not ends the worker.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Canary {
    /// Runs, with the one at the start.
    pub runs: u64,
    /// Largest error of a logit in the last run, relative to its image's largest logit.
    pub max_error: f32,
    /// When the last run ended: what has passed since is the age of the proof.
    pub at: Option<Instant>,
}

impl Metrics {
    /// The counters now.
    pub fn snapshot(&self) -> Counts {
        self.0.borrow().clone()
    }

    /// Waits until the counters are as `wanted`, and gives them.
    pub async fn wait_until(&self, wanted: impl Fn(&Counts) -> bool) -> Counts {
        let mut counts = self.0.subscribe();
        let reached = counts.wait_for(wanted).await.map(|counts| counts.clone());
        reached.unwrap_or_else(|_| self.snapshot())
    }

    pub(crate) fn finished(&self, result: &LabelResult, settled: Settled) {
        self.0.send_modify(|counts| {
            match &result.error {
                Some(error) => *counts.failed.entry(error.code.as_str()).or_default() += 1,
                None => counts.labeled += 1,
            }
            counts.settle(settled);
        });
    }

    pub(crate) fn skipped(&self, reason: SkipReason, settled: Settled) {
        self.0.send_modify(|counts| {
            *counts.skipped.entry(reason.as_str()).or_default() += 1;
            counts.settle(settled);
        });
    }

    pub(crate) fn silent(&self) {
        self.0.send_modify(|counts| counts.silent_streams += 1);
    }

    pub(crate) fn retried(&self, reason: RetryReason) {
        self.0.send_modify(|counts| *counts.retried.entry(reason.as_str()).or_default() += 1);
    }

    pub(crate) fn joined(&self) {
        self.0.send_modify(|counts| counts.joined += 1);
    }

    pub(crate) fn batch(&self, size: usize, reason: CloseReason) {
        self.0.send_modify(|counts| {
            *counts.batches.entry(reason.as_str()).or_default() += 1;
            *counts.batch_sizes.entry(size).or_default() += 1;
        });
    }

    pub(crate) fn ceiling(&self, ceiling: &Ceiling, lowered: Option<Limit>) {
        self.0.send_modify(|counts| {
            let device = &mut counts.device;
            (device.allowed, device.held, device.in_flight) = (ceiling.allowed(), ceiling.held(), ceiling.flying());
            (device.planned_batch, device.ceiling) = (ceiling.planned(), ceiling.largest());
            device.limit = Some(ceiling.limit());
            if let Some(limit) = lowered {
                *device.lowered.entry(limit.as_str()).or_default() += 1;
            }
        });
    }

    pub(crate) fn split(&self) {
        self.0.send_modify(|counts| counts.device.splits += 1);
    }

    pub(crate) fn memory(&self, reading: Option<Reading>) {
        self.0.send_modify(|counts| counts.device.memory = reading);
    }

    pub(crate) fn pool(&self, pool: Option<Pool>) {
        self.0.send_modify(|counts| counts.device.pool = pool);
    }

    pub(crate) fn planned(&self, at: Option<u64>) {
        self.0.send_modify(|counts| counts.device.plan_at = at);
    }

    pub(crate) fn canary(&self, report: GoldenReport) {
        self.0.send_modify(|counts| {
            let runs = counts.canary.runs + 1;
            counts.canary = Canary { runs, max_error: report.max_error, at: Some(Instant::now()) };
        });
    }

    pub(crate) fn reloaded(&self) {
        self.0.send_modify(|counts| counts.reloads += 1);
    }

    pub(crate) fn reload_refused(&self, reason: Reason) {
        self.0.send_modify(|counts| *counts.reloads_refused.entry(reason.as_str()).or_default() += 1);
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
