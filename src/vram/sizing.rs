//! How many of everything a worker has at a time, from the plan or without one.

use std::sync::Arc;

use bytesize::ByteSize;

use super::ceiling::Ceiling;
use super::measure::MeasureError;
use super::memory::DeviceMemory;
use super::plan::{Budget, Plan};
use crate::model::{Bundle, Classifier};

/// Largest batch of a worker that measures nothing and was told nothing.
pub const UNMEASURED_BATCH: usize = 8;

/// Messages leased at a time by such a worker.
pub(super) const UNMEASURED_OUTSTANDING: usize = 128;

/// A device's memory and what a process may have of it.
#[derive(Clone)]
pub struct Watched {
    /// Who knows it.
    pub memory: Arc<dyn DeviceMemory>,
    /// The settings; `None` where the ceiling counts no bytes.
    pub planned: Option<Budget>,
}

/// What a model takes without a batch, in bytes, and its ladder: batches with the bytes that each takes beside it.
pub type Ladder = (u64, Vec<(usize, u64)>);

/// Measures a model that is on the device, on the thread that owns it.
pub type Planner = Arc<dyn Fn(&mut dyn Classifier, &Bundle) -> Result<Ladder, MeasureError> + Send + Sync>;

/// How many of everything a worker has at a time.
#[derive(Clone)]
pub struct Sizing {
    /// What may be on the device.
    pub ceiling: Ceiling,
    /// Batches on the device.
    pub in_flight: usize,
    /// Messages leased.
    pub outstanding: usize,
    /// Threads that decode.
    pub decode_threads: usize,
    /// Who knows the device's memory; `None` where nobody does.
    pub watched: Option<Watched>,
    /// Measures another model; `None` keeps the plan of the first.
    pub planner: Option<Planner>,
    /// When the plan was measured, in seconds since 1970.
    pub plan_at: Option<u64>,
}

impl Sizing {
    /// Without a plan.
    pub fn unmeasured(max_batch: Option<usize>, outstanding: Option<usize>, decode_threads: usize) -> Self {
        let max_batch = max_batch.unwrap_or(UNMEASURED_BATCH);
        Self {
            ceiling: Ceiling::unmeasured(max_batch, 1),
            in_flight: 1,
            outstanding: outstanding.unwrap_or(UNMEASURED_OUTSTANDING).max(max_batch),
            decode_threads,
            watched: None,
            planner: None,
            plan_at: None,
        }
    }

    /// As the plan has it.
    pub fn planned(plan: &Plan, memory: Arc<dyn DeviceMemory>, budget: Budget, decode_threads: usize) -> Self {
        let decision = &plan.decision;
        Self {
            ceiling: Ceiling::new(decision.fixed_bytes, plan.ladder(), decision.in_flight),
            in_flight: decision.in_flight,
            outstanding: decision.outstanding,
            decode_threads,
            watched: Some(Watched { memory, planned: Some(budget) }),
            planner: None,
            plan_at: Some(plan.measured.at),
        }
    }
}

/// What reading and decoding may take of the host's memory at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostWork {
    /// `--fetch-budget`, in bytes.
    pub fetch: u64,
    /// `--decode-memory`, in bytes a thread.
    pub decode: u64,
    /// Threads that decode, and whether fewer will do.
    pub threads: Threads,
}

/// Threads that decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// As many as were asked for.
    Fixed(usize),
    /// Up to so many.
    UpTo(usize),
}

/// The host has not enough memory for what the settings allow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "these settings may take {} of the host's memory, and {} are there ({limit}): {} for the model and a batch, \
     --fetch-budget {}, and --decode-memory {} for each of {threads} decode threads; lower them or give the worker more",
    ByteSize(*needed), ByteSize(*available), ByteSize(*model), ByteSize(*fetch), ByteSize(*decode)
)]
pub struct HostTooSmall {
    /// What the settings allow, in bytes.
    pub needed: u64,
    /// What there is, in bytes.
    pub available: u64,
    /// What sets that: `the container's limit`.
    pub limit: &'static str,
    /// What the model takes, in bytes.
    pub model: u64,
    /// `--fetch-budget`, in bytes.
    pub fetch: u64,
    /// `--decode-memory`, in bytes.
    pub decode: u64,
    /// The fewest decode threads that the settings allow.
    pub threads: usize,
}

impl HostWork {
    /// Decode threads, as many as `available` bytes have room for beside a model of `model` bytes.
    ///
    /// # Errors
    /// Not even the fewest that the settings allow have room.
    pub fn fit(self, available: u64, limit: &'static str, model: u64) -> Result<usize, HostTooSmall> {
        let Self { fetch, decode, .. } = self;
        let (fewest, most) = match self.threads {
            Threads::Fixed(threads) => (threads, threads),
            Threads::UpTo(threads) => (1, threads),
        };
        let needed = |threads: usize| model.saturating_add(self.bytes(threads));
        match (fewest..=most).rev().find(|threads| needed(*threads) <= available) {
            Some(threads) => Ok(threads),
            None => {
                let needed = needed(fewest);
                Err(HostTooSmall { needed, available, limit, model, fetch, decode, threads: fewest })
            }
        }
    }

    /// Bytes with so many threads.
    pub fn bytes(self, threads: usize) -> u64 {
        self.fetch.saturating_add(self.decode.saturating_mul(threads as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn fewer_threads_decode_where_memory_is_short_and_fixed_ones_are_refused() {
        let work = |threads| HostWork { fetch: 256 * MIB, decode: 512 * MIB, threads };
        let fit = |threads, available: u64| work(threads).fit(available * MIB, "the container's limit", 150 * MIB);
        assert_eq!(fit(Threads::UpTo(8), 9_999), Ok(8));
        assert_eq!(fit(Threads::UpTo(8), 2_048), Ok(3));
        assert_eq!(fit(Threads::UpTo(8), 918), Ok(1));
        let error = fit(Threads::UpTo(8), 917).unwrap_err().to_string();
        for part in ["918.0 MiB", "917.0 MiB", "150.0 MiB", "--fetch-budget 256.0 MiB", "each of 1 decode threads"] {
            assert!(error.contains(part), "{part}: {error}");
        }
        assert_eq!(fit(Threads::Fixed(4), 2_048).unwrap_err().threads, 4);
    }
}
