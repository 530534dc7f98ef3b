//! NVIDIA GPUs' memory, from NVML, the driver's library for watching it. It is loaded when the program runs.

use cudarc::driver::result::{self, device};
use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;

use super::memory::{DeviceMemory, MemoryError, Reading};
use crate::model::probe;

/// NVML's library by the name that a driver without development files has.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// The memory of one GPU.
pub(super) struct NvidiaMemory {
    nvml: Nvml,
    uuid: String,
    /// What was in use before this process used the GPU, in bytes.
    before: u64,
}

impl NvidiaMemory {
    /// Of the GPU that CUDA counts as `index`.
    pub(super) fn new(index: usize) -> Result<Self, MemoryError> {
        let unknown = |what: String| MemoryError(what);
        let nvml = Nvml::builder().lib_path(LIBRARY.as_ref()).init();
        let nvml = nvml.map_err(|error| unknown(format!("NVML ({LIBRARY}): {error}")))?;
        // CUDA and NVML count differently; a GPU's UUID is the same for both.
        let uuid = probe(|| uuid(index)).ok_or_else(|| unknown("the NVIDIA driver cannot be loaded".to_owned()))?;
        let uuid = uuid.map_err(|error| unknown(format!("no GPU {index}: {error}")))?;
        let before = nvml.device_by_uuid(uuid.as_str()).and_then(|gpu| gpu.memory_info());
        let before = before.map_err(told)?.used;
        Ok(Self { nvml, uuid, before })
    }
}

impl DeviceMemory for NvidiaMemory {
    /// The runtime keeps the memory of what ran, so what a process has is the most that it had.
    fn begin(&self) {}

    fn read(&self) -> Result<Reading, MemoryError> {
        let gpu = self.nvml.device_by_uuid(self.uuid.as_str()).map_err(told)?;
        let memory = gpu.memory_info().map_err(told)?;
        let processes = gpu.running_compute_processes().unwrap_or_default();
        let this = processes.into_iter().find(|process| process.pid == std::process::id());
        let process = match this.map(|process| process.used_gpu_memory) {
            Some(UsedGpuMemory::Used(bytes)) => bytes,
            // In a container process numbers are others: then all that was added counts as this process's.
            Some(UsedGpuMemory::Unavailable) | None => memory.used.saturating_sub(self.before),
        };
        Ok(Reading { total: memory.total, free: memory.free, process, peak: process })
    }

    fn limit(&self) -> &'static str {
        "the GPU"
    }
}

fn told(error: NvmlError) -> MemoryError {
    MemoryError(format!("NVML: {error}"))
}

/// As NVML writes it.
fn uuid(index: usize) -> Result<String, String> {
    let said = |error: cudarc::driver::DriverError| error.to_string();
    result::init().map_err(said)?;
    let index = i32::try_from(index).map_err(|error| error.to_string())?;
    let bytes = device::get_uuid(device::get(index).map_err(said)?).map_err(said)?.bytes;
    let hex: Vec<String> = bytes.iter().map(|byte| format!("{:02x}", byte.cast_unsigned())).collect();
    let parts = [0..4, 4..6, 6..8, 8..10, 10..16].map(|range| hex[range].concat());
    Ok(format!("GPU-{}", parts.join("-")))
}
