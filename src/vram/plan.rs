//! The plan: what was measured on a device with a model, and what follows from it.
//!
//! Pure. What was measured can be kept in a file and fed to workers on equal machines; what follows is decided anew at
//! each start, from that and from the settings.

use std::time::Duration;

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};

use super::ladder::{Climb, MIN_GAIN, Step, Stop};
use super::memory::Reading;
use crate::model::Formulations;

/// Version of the file.
const VERSION: u32 = 1;

/// How far ahead of the device messages are leased: an object is read and decoded, and its ack is on its way, within
/// about this time.
const AHEAD: Duration = Duration::from_secs(1);

/// Most messages leased at a time, whatever the device could do: what one stream of Pub/Sub is good for.
const MAX_OUTSTANDING: usize = 10_000;

/// Largest plan file that is read, in bytes.
pub const MAX_PLAN_BYTES: u64 = 4 << 20;

/// What a plan is for. It is of no use for anything else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// Device and driver.
    pub device: String,
    /// Digest of the model's bundle.
    pub model: String,
    /// Whether neighbouring operations become one kernel.
    pub fusion: bool,
    /// Stoker's version.
    pub stoker: String,
}

/// What a process may have of a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// All that there is, in bytes.
    pub total: u64,
    /// What others left, this process's own included, in bytes.
    pub available: u64,
    /// `--vram-fraction`.
    pub fraction: f64,
    /// `--vram-limit`, in bytes.
    pub limit: Option<u64>,
    /// What is kept for the host's other work, in bytes; on a device with memory of its own 0.
    pub set_aside: u64,
}

impl Budget {
    /// Of what is there now.
    pub fn new(reading: Reading, fraction: f64, limit: Option<u64>, set_aside: u64) -> Self {
        Self { total: reading.total, available: reading.available(), fraction, limit, set_aside }
    }

    /// Bytes that this process may have on the device.
    pub fn bytes(&self) -> u64 {
        #[allow(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a number of bytes"
        )]
        let share = (self.available as f64 * self.fraction) as u64;
        share.min(self.limit.unwrap_or(u64::MAX)).saturating_sub(self.set_aside)
    }
}

/// What was measured, and for what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// When, in seconds since 1970.
    pub at: u64,
    /// What this process might have.
    pub budget: Budget,
    /// What it had with the model loaded, before the first batch, in bytes.
    pub base: u64,
    /// The batches that fit, smallest first.
    pub steps: Vec<Step>,
    /// Why no larger one was tried.
    pub stop: Stop,
    /// The convolutions' formulations on this device.
    pub formulations: Formulations,
}

/// What follows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decision {
    /// Largest batch, in images.
    pub batch: usize,
    /// Batches on the device at a time.
    pub in_flight: usize,
    /// Images a second at that batch, as measured.
    pub images_per_second: f64,
    /// Device memory that is there whether a batch runs or not, in bytes.
    pub fixed_bytes: u64,
    /// Device memory that batches may take beside it, in bytes.
    pub batch_bytes: u64,
    /// The same an image of the largest batch.
    pub image_bytes: u64,
    /// Messages leased at a time.
    pub outstanding: usize,
}

/// A plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    version: u32,
    /// What it is for.
    pub key: Key,
    /// What was measured.
    pub measured: Measured,
    /// What follows.
    pub decision: Decision,
}

/// The settings that a decision takes into account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Largest batch, in images.
    pub max_batch: usize,
    /// Batches on the device at a time.
    pub in_flight: usize,
    /// Messages leased at a time; `None` leaves it to the plan.
    pub outstanding: Option<usize>,
}

/// Nothing can run within the limits.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refused {
    /// Not even a single image.
    #[error(
        "a single image needs {} with this model, and {} may be used: of {} that {whose} leaves, --vram-fraction {} is {}{}",
        ByteSize(*needed), ByteSize(budget.bytes()), ByteSize(budget.available), budget.fraction,
        ByteSize(share(budget)), less(budget)
    )]
    Budget {
        /// What it needs, in bytes.
        needed: u64,
        /// What there is.
        budget: Budget,
        /// What sets it: `the container's limit`.
        whose: &'static str,
    },
    /// The device had no room for a single image.
    #[error("the device has no room for a single image with this model: {} are free", ByteSize(budget.available))]
    OutOfMemory {
        /// What there is.
        budget: Budget,
    },
}

fn share(budget: &Budget) -> u64 {
    Budget { limit: None, set_aside: 0, ..*budget }.bytes()
}

fn less(budget: &Budget) -> String {
    let mut less = String::new();
    if let Some(limit) = budget.limit {
        less += &format!(", --vram-limit is {}", ByteSize(limit));
    }
    if budget.set_aside > 0 {
        less += &format!(", of which {} are for reading and decoding", ByteSize(budget.set_aside));
    }
    less
}

/// A plan file that is of no use here.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// It cannot be read.
    #[error("it cannot be read")]
    Read(#[from] std::io::Error),
    /// It is no plan.
    #[error("it is no plan of this version of Stoker: {0}")]
    Malformed(String),
    /// It is for something else.
    #[error("it is for another {what}: {found}, and this is {expected}; measure anew with `stoker plan`")]
    Other {
        /// What differs.
        what: &'static str,
        /// What the plan is for.
        found: String,
        /// What is here.
        expected: String,
    },
}

impl Plan {
    /// Decides.
    ///
    /// # Errors
    /// Not even a single image fits.
    pub fn new(key: Key, measured: Measured, wanted: Wanted, whose: &'static str) -> Result<Self, Refused> {
        let budget = measured.budget;
        let fitting = |in_flight: usize| {
            let fits = |step: &&Step| {
                let batches = step.bytes.saturating_sub(measured.base).saturating_mul(in_flight as u64);
                step.batch <= wanted.max_batch.max(1) && measured.base.saturating_add(batches) <= budget.bytes()
            };
            let steps: Vec<Step> = measured.steps.iter().filter(fits).copied().collect();
            Climb { steps, stop: measured.stop.clone() }
        };
        // Rather one batch at a time than none.
        let in_flight = if fitting(wanted.in_flight).steps.is_empty() { 1 } else { wanted.in_flight.max(1) };
        let climb = fitting(in_flight);
        let Some(step) = climb.choice() else {
            return Err(match (&measured.stop, measured.steps.first()) {
                (Stop::OutOfMemory { .. }, None) => Refused::OutOfMemory { budget },
                (Stop::Budget { bytes, .. }, None) => Refused::Budget { needed: *bytes, budget, whose },
                (_, first) => Refused::Budget { needed: first.map_or(0, |first| first.bytes), budget, whose },
            });
        };
        let batch_bytes = step.bytes.saturating_sub(measured.base);
        let decision = Decision {
            batch: step.batch,
            in_flight,
            images_per_second: step.rate(),
            fixed_bytes: measured.base,
            batch_bytes,
            image_bytes: batch_bytes.div_ceil(step.batch as u64),
            outstanding: wanted.outstanding.unwrap_or_else(|| outstanding(step, in_flight)),
        };
        Ok(Self { version: VERSION, key, measured, decision })
    }

    /// Reads a plan file.
    ///
    /// # Errors
    /// It is no plan.
    pub fn parse(json: &[u8]) -> Result<Self, PlanError> {
        let plan: Self = serde_json::from_slice(json).map_err(|error| PlanError::Malformed(error.to_string()))?;
        let malformed = |what: &str| Err(PlanError::Malformed(what.to_owned()));
        let Measured { steps, base, .. } = &plan.measured;
        if plan.version != VERSION {
            return malformed("its version differs");
        }
        let sizes = steps.iter().map(|step| Some(step.batch));
        if !sizes.eq((0..).map(|power| 1_usize.checked_shl(power)).take(steps.len())) {
            return malformed("the batches of its steps are not 1, 2, 4 …");
        }
        if steps.iter().any(|step| !(step.seconds > 0.0 && step.seconds.is_finite() && step.bytes >= *base)) {
            return malformed("a step took no time, or less memory than the model alone");
        }
        if !steps.is_sorted_by_key(|step| step.bytes) {
            return malformed("a step takes less memory than one before it");
        }
        Ok(plan)
    }

    /// Whether it is for this.
    ///
    /// # Errors
    /// It is for something else.
    pub fn check(&self, here: &Key) -> Result<(), PlanError> {
        let Key { device, model, fusion, stoker } = &self.key;
        let pairs = [
            ("version of Stoker", stoker.clone(), here.stoker.clone()),
            ("device or driver", device.clone(), here.device.clone()),
            ("model", model.clone(), here.model.clone()),
            ("--kernel-fusion", fusion.to_string(), here.fusion.to_string()),
        ];
        match pairs.into_iter().find(|(_, found, expected)| found != expected) {
            Some((what, found, expected)) => Err(PlanError::Other { what, found, expected }),
            None => Ok(()),
        }
    }

    /// The ladder that a ceiling holds the worker to: batch sizes up to the chosen one, with their bytes.
    pub fn ladder(&self) -> impl Iterator<Item = (usize, u64)> {
        let Measured { steps, base, .. } = &self.measured;
        let batch = self.decision.batch;
        steps
            .iter()
            .filter(move |step| step.batch <= batch)
            .map(|step| (step.batch, step.bytes.saturating_sub(*base).max(1)))
    }

    /// Why the batch is what it is, for people.
    pub fn reason(&self) -> String {
        let Decision { batch, images_per_second: rate, .. } = self.decision;
        let budget = self.measured.budget.bytes();
        let last = self.measured.steps.last().map_or(0, |step| step.batch);
        let slower = if batch < last { format!("; {batch} is as fast as any larger batch") } else { String::new() };
        let why = match &self.measured.stop {
            Stop::Budget { batch, bytes } => format!(
                "a batch of {batch} would need {}, over the budget of {}{slower}",
                ByteSize(*bytes),
                ByteSize(budget)
            ),
            Stop::OutOfMemory { batch } => format!("the device has no room for a batch of {batch}{slower}"),
            Stop::Knee { batch: tried } => {
                format!("up to {tried}, larger batches add less than {:.0} % each{slower}", MIN_GAIN * 100.0)
            }
            Stop::Slow { batch: tried } => format!("a batch of {tried} takes over two seconds{slower}"),
            Stop::MaxBatch => format!("--max-batch allows no larger one than {last}{slower}"),
        };
        let images = if batch == 1 { "1 image".to_owned() } else { format!("{batch} images") };
        format!("{images} at {rate:.1} images/s: {why}")
    }
}

/// Messages that keep the device fed: what it does while an object is on its way, the batches on the device, and the next.
fn outstanding(step: Step, in_flight: usize) -> usize {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped below; saturates")]
    let ahead = (step.rate() * (AHEAD.as_secs_f64() + step.seconds)).ceil() as usize;
    let batches = step.batch.saturating_mul(in_flight + 1);
    ahead.saturating_add(batches).min(MAX_OUTSTANDING.max(batches))
}
