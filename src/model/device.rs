//! A bundle on a device: the only place where a backend of the tensor library is chosen.
//!
//! Never the library's default device: it would be another one on another machine. What a device needs before it can
//! run is checked here, so that a machine without it gets a plain error.
//!
//! `Device → cpu, cuda or vulkan → engine` (one, generic over the backend); `failure` says what went wrong in it.

mod engine;
pub(in crate::model) mod failure;
#[cfg(any(feature = "cuda", feature = "vulkan"))]
mod gpu;

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "vulkan")]
mod vulkan;

use std::path::PathBuf;
use std::str::FromStr;

use burn::backend::flex::{Flex, FlexDevice};

use self::engine::{Batching, Engine};
use super::layers::Formulations;
use super::weights::WeightsError;
use super::{Bundle, Classifier};

/// Where a model runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// This machine's processor.
    Cpu,
    /// An NVIDIA GPU, by its index; usable with the feature `cuda`.
    Cuda(usize),
    /// A GPU with a Vulkan driver, by its index: discrete ones first, then integrated and virtual ones. Usable with the
    /// feature `vulkan`.
    Vulkan(usize),
    /// A Vulkan driver that computes on the processor, such as Mesa's: for tests, as it is slow.
    VulkanCpu,
}

impl FromStr for Device {
    type Err = UnknownDevice;

    /// `cpu`, `cuda` and `vulkan` (the first GPU), `cuda:INDEX`, `vulkan:INDEX`, `vulkan:cpu`.
    fn from_str(text: &str) -> Result<Self, UnknownDevice> {
        let (kind, index) = text.split_once(':').unwrap_or((text, "0"));
        let numbered = |device: fn(usize) -> Self| index.parse().ok().map(device);
        match kind {
            "cpu" if kind == text => Some(Self::Cpu),
            "cuda" => numbered(Self::Cuda),
            "vulkan" if index == "cpu" => Some(Self::VulkanCpu),
            "vulkan" => numbered(Self::Vulkan),
            _ => None,
        }
        .ok_or_else(|| UnknownDevice(text.to_owned()))
    }
}

/// No name of a device.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no device: there are cpu, cuda, cuda:INDEX, vulkan, vulkan:INDEX and vulkan:cpu")]
pub struct UnknownDevice(String);

/// How a GPU's kernels are made. The first GPU that a process uses settles the cache for its lifetime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuSettings {
    /// Directory that keeps compiled kernels and what tuning found, each GPU and driver apart; `None` starts anew each
    /// time. One that cannot be written to is a warning.
    pub kernel_cache: Option<PathBuf>,
    /// Whether neighbouring operations become one kernel: faster, unless a GPU gets it wrong.
    pub fusion: bool,
}

impl Default for GpuSettings {
    /// No cache, fused kernels.
    fn default() -> Self {
        GpuSettings { kernel_cache: None, fusion: true }
    }
}

/// A device that is there.
#[derive(Clone, Debug)]
struct Hardware {
    /// As shown to people: `NVIDIA L4`.
    name: String,
    /// What compiled kernels and plans depend on: interface, device and driver.
    identity: String,
}

impl Hardware {
    /// The processor, with the threads that it is used with.
    fn processor() -> Self {
        let about = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = about.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let model = model.map_or(std::env::consts::ARCH, |(_, model)| model.trim());
        let identity = format!("cpu {model}, {} threads", rayon::current_num_threads());
        Self { name: "CPU".to_owned(), identity }
    }
}

/// A model that could not be put on a device.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The weights do not fit the network.
    #[error("model.safetensors does not fit the network")]
    Weights(#[from] WeightsError),
    /// There is no such device, or it does not work.
    #[error("no usable device: {0}")]
    Unavailable(String),
}

/// Puts a bundle's model on a device, with the default [`GpuSettings`].
///
/// # Errors
/// [`ModelError`]: weights that do not fit, or a device that does not work.
pub fn load(bundle: &Bundle, device: Device) -> Result<Box<dyn Classifier>, ModelError> {
    load_with(bundle, device, &GpuSettings::default(), &mut Formulations::default())
}

/// Puts a bundle's model on a device, with the formulations of its convolutions. Those that are missing are measured and
/// added, so that the next load need not. A process may use the processor and one GPU.
///
/// # Errors
/// [`ModelError`]: weights that do not fit, or a device that does not work.
pub fn load_with(
    bundle: &Bundle,
    device: Device,
    settings: &GpuSettings,
    formulations: &mut Formulations,
) -> Result<Box<dyn Classifier>, ModelError> {
    match device {
        Device::Cpu => Engine::<Flex>::load(bundle, FlexDevice, Hardware::processor(), Batching::Spread, formulations),
        #[cfg(feature = "cuda")]
        Device::Cuda(index) => cuda::load(bundle, index, settings, formulations),
        #[cfg(feature = "vulkan")]
        Device::Vulkan(index) => vulkan::load(bundle, Some(index), settings, formulations),
        #[cfg(feature = "vulkan")]
        Device::VulkanCpu => vulkan::load(bundle, None, settings, formulations),
        #[allow(unreachable_patterns, reason = "which devices are left depends on the features")]
        left_out => {
            let _ = settings;
            let feature = if matches!(left_out, Device::Cuda(_)) { "cuda" } else { "vulkan" };
            Err(ModelError::Unavailable(format!("this program was built without the feature `{feature}`")))
        }
    }
}
