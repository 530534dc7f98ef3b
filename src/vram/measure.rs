//! The real model on the real device, measured.

use std::time::{Duration, Instant, SystemTime};

use super::ladder::{Bounds, Climb, Probe, Sample, Stop, climb};
use super::memory::{DeviceMemory, MemoryError};
use super::plan::{Budget, Measured, Refused};
use crate::image::Pixels;
use crate::model::{Classifier, DeviceError, Formulations};

/// Runs that a batch has, for its time; the first one before is to compile and tune, and does not count.
const RUNS: usize = 3;

/// Time that a batch is run for at least; and at most, but for the run that is under way.
const TIME: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(1)];

/// What a measurement starts from.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// `--vram-fraction`.
    pub fraction: f64,
    /// `--vram-limit`, in bytes.
    pub limit: Option<u64>,
    /// What is kept for the host's other work, in bytes.
    pub set_aside: u64,
    /// Largest batch, in images.
    pub max_batch: usize,
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// Nobody tells how much memory there is.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The device failed.
    #[error("the device failed while batches were measured")]
    Device(#[from] DeviceError),
    /// The model does not fit the budget.
    #[error("the limits leave no room for a batch")]
    Refused(#[from] Refused),
    /// The device ran out of memory and does not work since.
    #[error(
        "the device ran out of memory at a batch of {batch} and does not work since ({failure}); start again with \
         --max-batch {} or a lower --vram-fraction", (batch / 2).max(1)
    )]
    Poisoned {
        /// Images of the batch that did not fit.
        batch: usize,
        /// What it says now.
        failure: DeviceError,
    },
}

struct Model<'a> {
    classifier: &'a mut dyn Classifier,
    images: &'a [&'a Pixels],
    memory: &'a dyn DeviceMemory,
    lost: Option<MemoryError>,
}

/// Climbs the ladder with a model, whose images are taken in turn; there must be one.
///
/// # Errors
/// Nobody tells how much memory there is, or the device fails otherwise than by a lack of it.
pub fn measure(
    classifier: &mut dyn Classifier,
    images: &[&Pixels],
    memory: &dyn DeviceMemory,
    asked: Asked,
    formulations: Formulations,
) -> Result<Measured, MeasureError> {
    let Asked { fraction, limit, set_aside, max_batch } = asked;
    classifier.give_back();
    let before = memory.read()?;
    let budget = Budget::new(before, fraction, limit, set_aside);
    let base = before.process.max(pooled(classifier));
    let bounds = Bounds { base, budget: budget.bytes(), max_batch };
    let mut model = Model { classifier, images, memory, lost: None };
    let climbed = climb(bounds, &mut model);
    model.classifier.give_back();
    if let Some(error) = model.lost {
        return Err(error.into());
    }
    let Climb { steps, stop } = climbed?;
    if let (Stop::OutOfMemory { batch }, false) = (&stop, steps.is_empty()) {
        let alive = model.classifier.classify(&images[..images.len().min(1)]);
        alive.map_err(|failure| MeasureError::Poisoned { batch: *batch, failure })?;
    }
    let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    Ok(Measured { at, budget, base, steps, stop, formulations })
}

/// What the runtime has, in bytes: all that is known of a device whose memory nobody tells.
fn pooled(classifier: &dyn Classifier) -> u64 {
    classifier.pool().map_or(0, |pool| pool.reserved)
}

impl Probe for Model<'_> {
    fn run(&mut self, images: usize) -> Result<Sample, DeviceError> {
        let batch: Vec<&Pixels> = self.images.iter().copied().cycle().take(images).collect();
        self.classifier.give_back();
        self.memory.begin();
        self.classifier.classify(&batch)?;
        let (started, mut shortest, mut runs) = (Instant::now(), Duration::MAX, 0);
        let [least, most] = TIME;
        while runs == 0 || started.elapsed() < if runs < RUNS { most } else { least } {
            let run = Instant::now();
            self.classifier.classify(&batch)?;
            shortest = shortest.min(run.elapsed());
            runs += 1;
        }
        let bytes = match self.memory.read() {
            Ok(reading) => reading.peak.max(pooled(self.classifier)),
            Err(error) => {
                let failure = DeviceError::Failed(error.to_string());
                self.lost = Some(error);
                return Err(failure);
            }
        };
        // Room for the pixels of the batch after it.
        let bytes = bytes.saturating_add(self.classifier.ahead_bytes(images));
        let seconds = shortest.as_secs_f64();
        tracing::debug!(images, bytes, seconds, "measured a batch");
        Ok(Sample { bytes, seconds })
    }
}
