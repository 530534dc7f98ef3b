//! The climb: the model at batches of 1, 2, 4 … images, each measured, until the next is not worth it or would not fit.
//!
//! Pure but for the [`Probe`], which runs the batches.

use serde::{Deserialize, Serialize};

use crate::model::DeviceError;

/// The least that a step must add to the best rate so far to be worth climbing on, as a share of it.
pub const MIN_GAIN: f64 = 0.03;

/// Steps in a row that may add less: one may be a stumble, by noise or by a shape that suits the device badly.
const PATIENCE: usize = 2;

/// A batch whose rate is this close to the best is as good, as a share of it: then the smaller one is taken, which makes
/// images wait less and leaves memory.
const AS_GOOD: f64 = 0.01;

/// A batch that takes this long, in seconds, is the last: a worker that is told to stop has to wait for it, and what it
/// costs beside its images has long become small.
const LONGEST: f64 = 2.0;

/// Runs batches on a device.
pub trait Probe {
    /// Runs a batch of so many images until its time is known.
    ///
    /// # Errors
    /// Those of the device.
    fn run(&mut self, images: usize) -> Result<Sample, DeviceError>;
}

/// What a batch took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Most bytes of device memory that this process had meanwhile, the model's own included.
    pub bytes: u64,
    /// Seconds from the pixels to the answers.
    pub seconds: f64,
}

/// A batch size that was measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Images.
    pub batch: usize,
    /// Most bytes of device memory that this process had meanwhile, the model's own included. Never less than at a
    /// smaller batch.
    pub bytes: u64,
    /// Seconds a batch.
    pub seconds: f64,
}

impl Step {
    /// Images a second.
    pub fn rate(&self) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "batches are small")]
        let images = self.batch as f64;
        if self.seconds > 0.0 { images / self.seconds } else { 0.0 }
    }
}

/// How far a climb may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// What this process has before the first batch, the model loaded, in bytes.
    pub base: u64,
    /// What it may have, in bytes.
    pub budget: u64,
    /// Largest batch, in images; those between two powers of two are not tried.
    pub max_batch: usize,
}

/// Why a climb ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "reason", deny_unknown_fields)]
pub enum Stop {
    /// The next batch was predicted to need more than the budget, or this one was measured to.
    Budget {
        /// Images of the batch that does not fit.
        batch: usize,
        /// What it needs, in bytes.
        bytes: u64,
    },
    /// The device had no room for this batch.
    OutOfMemory {
        /// Its images.
        batch: usize,
    },
    /// The last steps added less than [`MIN_GAIN`].
    Knee {
        /// Images of the last batch tried.
        batch: usize,
    },
    /// This batch took over two seconds.
    Slow {
        /// Its images.
        batch: usize,
    },
    /// `--max-batch` was reached.
    MaxBatch,
}

/// What a climb found.
#[derive(Clone, Debug, PartialEq)]
pub struct Climb {
    /// The batches that fit, smallest first; empty when not even a single image does.
    pub steps: Vec<Step>,
    /// Why it ended.
    pub stop: Stop,
}

/// Climbs.
///
/// # Errors
/// The device failed otherwise than by a lack of memory.
pub fn climb(bounds: Bounds, probe: &mut impl Probe) -> Result<Climb, DeviceError> {
    let mut steps: Vec<Step> = Vec::new();
    let (mut best, mut idle) = (0.0, 0);
    let mut batch = 1;
    let stop = loop {
        let predicted = predict(bounds.base, &steps);
        if predicted > bounds.budget {
            break Stop::Budget { batch, bytes: predicted };
        }
        let sample = match probe.run(batch) {
            Ok(sample) => sample,
            Err(DeviceError::OutOfMemory(_)) => break Stop::OutOfMemory { batch },
            Err(error) => return Err(error),
        };
        // Memory that a smaller batch took is needed for it again.
        let bytes = sample.bytes.max(steps.last().map_or(bounds.base, |step| step.bytes));
        if bytes > bounds.budget {
            break Stop::Budget { batch, bytes };
        }
        let step = Step { batch, bytes, seconds: sample.seconds };
        idle = if step.rate() < best * (1.0 + MIN_GAIN) { idle + 1 } else { 0 };
        best = step.rate().max(best);
        steps.push(step);
        if idle == PATIENCE {
            break Stop::Knee { batch };
        }
        if step.seconds > LONGEST {
            break Stop::Slow { batch };
        }
        match batch.checked_mul(2) {
            Some(next) if next <= bounds.max_batch => batch = next,
            _ => break Stop::MaxBatch,
        }
    };
    Ok(Climb { steps, stop })
}

impl Climb {
    /// The batch to run at: the smallest that is as good as the fastest.
    pub fn choice(&self) -> Option<Step> {
        let best = self.steps.iter().map(Step::rate).fold(0.0, f64::max);
        self.steps.iter().find(|step| step.rate() >= best * (1.0 - AS_GOOD)).copied()
    }
}

/// What the next batch needs, in bytes. A batch twice as large adds twice what the last doubling added.
fn predict(base: u64, steps: &[Step]) -> u64 {
    let before = |index: usize| steps.len().checked_sub(index).and_then(|at| steps.get(at)).map_or(base, |it| it.bytes);
    let (last, earlier) = (before(1), before(2));
    last.saturating_add(last.saturating_sub(earlier).saturating_mul(if steps.len() > 1 { 2 } else { 1 }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Bytes and images a second at each batch size of the ladder; out of memory past the last.
    struct Table(&'static [(u64, f64)]);

    impl Probe for Table {
        fn run(&mut self, images: usize) -> Result<Sample, DeviceError> {
            let row = self.0.get(images.trailing_zeros() as usize);
            let (bytes, rate) = row.ok_or_else(|| DeviceError::OutOfMemory("test".to_owned()))?;
            Ok(Sample { bytes: bytes * MIB, seconds: images as f64 / rate })
        }
    }

    fn found(table: &'static [(u64, f64)], budget: u64, max_batch: usize) -> (Vec<usize>, Stop, Option<usize>) {
        let bounds = Bounds { base: 100 * MIB, budget: budget * MIB, max_batch };
        let climb = climb(bounds, &mut Table(table)).unwrap();
        let batches = climb.steps.iter().map(|step| step.batch).collect();
        let choice = climb.choice().map(|step| step.batch);
        (batches, climb.stop, choice)
    }

    const DOUBLING: &[(u64, f64)] = &[(110, 100.0), (120, 200.0), (140, 400.0), (180, 800.0), (260, 1600.0)];

    #[test]
    fn it_ends_where_the_next_batch_would_not_fit() {
        let stop = Stop::Budget { batch: 16, bytes: 260 * MIB };
        assert_eq!(found(DOUBLING, 259, 1024), (vec![1, 2, 4, 8], stop, Some(8)), "predicted");
        assert_eq!(found(DOUBLING, 260, 16).0, [1, 2, 4, 8, 16]);
        const JUMPING: &[(u64, f64)] = &[(110, 1.0), (120, 2.0), (400, 4.0)];
        let stop = Stop::Budget { batch: 4, bytes: 400 * MIB };
        assert_eq!(found(JUMPING, 300, 8), (vec![1, 2], stop, Some(2)), "measured");
        assert_eq!(found(DOUBLING, 105, 8), (vec![], Stop::Budget { batch: 1, bytes: 110 * MIB }, None));
        assert_eq!(found(DOUBLING, 99, 8).1, Stop::Budget { batch: 1, bytes: 100 * MIB });
    }

    #[test]
    fn it_ends_where_the_device_has_no_room_and_at_the_largest_batch() {
        assert_eq!(found(DOUBLING, 9_999, 1024).1, Stop::OutOfMemory { batch: 32 });
        assert_eq!(found(DOUBLING, 9_999, 12), (vec![1, 2, 4, 8], Stop::MaxBatch, Some(8)));
        assert_eq!(found(&[], 9_999, 8), (vec![], Stop::OutOfMemory { batch: 1 }, None));
    }

    #[test]
    fn it_ends_at_a_batch_that_takes_too_long() {
        const CRAWLING: &[(u64, f64)] = &[(110, 1.0), (110, 1.5), (110, 1.9), (110, 2.5)];
        assert_eq!(found(CRAWLING, 9_999, 1024), (vec![1, 2, 4], Stop::Slow { batch: 4 }, Some(4)));
    }

    #[test]
    fn it_ends_at_the_knee_but_not_at_a_stumble() {
        const KNEE: &[(u64, f64)] =
            &[(110, 100.0), (110, 150.0), (110, 152.0), (110, 153.0), (110, 900.0), (110, 900.0)];
        assert_eq!(found(KNEE, 9_999, 1024), (vec![1, 2, 4, 8], Stop::Knee { batch: 8 }, Some(4)));
        const STUMBLE: &[(u64, f64)] =
            &[(110, 100.0), (110, 90.0), (110, 180.0), (110, 181.0), (110, 190.0), (110, 189.9), (110, 189.0)];
        assert_eq!(found(STUMBLE, 9_999, 64), (vec![1, 2, 4, 8, 16, 32, 64], Stop::Knee { batch: 64 }, Some(16)));
    }
}
