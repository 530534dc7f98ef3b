//! Who knows the memory of which device.

use std::sync::Arc;

use super::memory::{DeviceMemory, HostMemory, MemoryError, Reading};
use crate::model::Device;

/// So much memory and no more, whatever the device has.
#[derive(Debug)]
struct Declared(u64);

impl DeviceMemory for Declared {
    fn begin(&self) {}

    fn read(&self) -> Result<Reading, MemoryError> {
        Ok(Reading { total: self.0, free: self.0, process: 0, peak: 0 })
    }

    fn limit(&self) -> &'static str {
        "--vram-limit"
    }
}

/// Who knows a device's memory; where nobody does, `limit` bytes are taken for granted. To be asked before a model is loaded: what is in use then is not this process's.
///
/// # Errors
/// Nobody does.
pub fn memory_of(device: Device, limit: Option<u64>) -> Result<Arc<dyn DeviceMemory>, MemoryError> {
    match device {
        Device::Cpu | Device::VulkanCpu => Ok(Arc::new(HostMemory::default())),
        #[cfg(feature = "cuda")]
        Device::Cuda(index) => Ok(Arc::new(super::nvidia::NvidiaMemory::new(index)?)),
        #[cfg(not(feature = "cuda"))]
        Device::Cuda(_) => Err(MemoryError("this program was built without the feature `cuda`".to_owned())),
        Device::Vulkan(_) => match limit {
            Some(limit) => Ok(Arc::new(Declared(limit))),
            None => Err(MemoryError("Vulkan drivers do not tell; give --vram-limit".to_owned())),
        },
    }
}
