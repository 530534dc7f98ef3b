//! Device memory: what there is of it, what a batch takes, and how many images may be on the device at a time.
//!
//! [`climb`] runs the model at growing batch sizes and measures; [`Plan`] decides from that; a [`Ceiling`] holds the
//! worker to it, and lowers itself when the device or another process says so.
//!
//! `DeviceMemory → climb (over a Probe) → Plan → Ceiling`. Everything but the readings is pure.

mod ceiling;
mod devices;
mod ladder;
mod measure;
mod memory;
#[cfg(feature = "cuda")]
mod nvidia;
mod plan;
mod simulated;
mod sizing;

pub use ceiling::{Ceiling, Limit, Share};
pub use devices::memory_of;
pub use ladder::{Bounds, Climb, MIN_GAIN, Probe, Sample, Step, Stop, climb};
pub use measure::{Asked, MeasureError, measure};
pub use memory::{DeviceMemory, HostMemory, MemoryError, Reading};
pub use plan::{Budget, Decision, Key, MAX_PLAN_BYTES, Measured, Plan, PlanError, Refused, Wanted};
pub use simulated::{Simulated, Simulation};
pub use sizing::{HostTooSmall, HostWork, Ladder, Planner, Sizing, Threads, UNMEASURED_BATCH, Watched};
