//! A device that computes nothing and has the memory and the speed that it is told to have, for tests.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::ladder::{Probe, Sample};
use super::memory::{DeviceMemory, MemoryError, Reading};
use crate::model::DeviceError;

/// What a simulated device with a model on it is like. Batches are filled up to a power of two.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Simulation {
    /// All that there is, in bytes.
    pub capacity: u64,
    /// What the model takes, in bytes.
    pub fixed: u64,
    /// What an image takes, in bytes.
    pub image: u64,
    /// What a batch takes on top by gaps between its pieces: from nothing up to this share, another one each time.
    pub fragmentation: f64,
    /// Seconds that a batch takes, whatever its size.
    pub launch_seconds: f64,
    /// Seconds that an image adds.
    pub image_seconds: f64,
    /// How far measured times are off, up or down, as a share of them.
    pub noise: f64,
}

/// A simulated device.
#[derive(Debug)]
pub struct Simulated {
    about: Simulation,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    random: u64,
    /// What batches have now, and had at most.
    held: u64,
    peak: u64,
    foreign: u64,
}

impl Simulated {
    /// A device like that; gaps and noise come from `seed`.
    pub fn new(about: Simulation, seed: u64) -> Self {
        Self { about, state: Mutex::new(State { random: seed, held: 0, peak: 0, foreign: 0 }) }
    }

    /// Another process takes so many bytes, in place of what it had.
    pub fn set_foreign(&self, bytes: u64) {
        self.state().foreign = bytes;
    }

    /// Puts a batch on the device. Gives what it takes there, in bytes, for [`Self::release`].
    ///
    /// # Errors
    /// No room.
    pub fn hold(&self, images: usize) -> Result<u64, DeviceError> {
        let mut state = self.state();
        let gaps = 1.0 + self.about.fragmentation * state.random();
        let bytes = scale(self.about.image.saturating_mul(images.next_power_of_two() as u64), gaps);
        let used = self.about.fixed.saturating_add(state.held).saturating_add(state.foreign);
        let left = self.about.capacity.saturating_sub(used);
        if bytes > left {
            return Err(DeviceError::OutOfMemory(format!("simulated: {bytes} bytes asked for, {left} left")));
        }
        state.held += bytes;
        state.peak = state.peak.max(state.held);
        Ok(bytes)
    }

    /// Takes a batch off the device.
    pub fn release(&self, bytes: u64) {
        let mut state = self.state();
        state.held = state.held.saturating_sub(bytes);
    }

    /// Seconds that a batch takes, without noise.
    pub fn seconds(&self, images: usize) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "batches are small")]
        let images = images.next_power_of_two() as f64;
        self.about.launch_seconds + self.about.image_seconds * images
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// From 0 to 1, evenly (SplitMix64; Steele, Lea and Flood 2014).
    fn random(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.random;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        #[allow(clippy::cast_precision_loss, reason = "53 bits")]
        let value = ((bits ^ (bits >> 31)) >> 11) as f64 / (1_u64 << 53) as f64;
        value
    }
}

fn scale(bytes: u64, factor: f64) -> u64 {
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a simulated number of bytes"
    )]
    let scaled = (bytes as f64 * factor) as u64;
    scaled
}

impl Probe for &Simulated {
    fn run(&mut self, images: usize) -> Result<Sample, DeviceError> {
        let bytes = self.hold(images)?;
        self.release(bytes);
        let noise = 1.0 + self.about.noise * (2.0 * self.state().random() - 1.0);
        Ok(Sample { bytes: self.about.fixed + bytes, seconds: self.seconds(images) * noise })
    }
}

impl DeviceMemory for Simulated {
    fn begin(&self) {
        let mut state = self.state();
        state.peak = state.held;
    }

    fn read(&self) -> Result<Reading, MemoryError> {
        let state = self.state();
        let process = self.about.fixed + state.held;
        let free = self.about.capacity.saturating_sub(process).saturating_sub(state.foreign);
        Ok(Reading { total: self.about.capacity, free, process, peak: self.about.fixed + state.peak })
    }

    fn limit(&self) -> &'static str {
        "the simulated device"
    }
}
