//! Any GPU with a Vulkan driver. The loader and the drivers are looked for when the program runs.

use burn::backend::Vulkan;
use burn::backend::wgpu::{CubeBackend, WgpuDevice, WgpuRuntime};
use cubecl::future::block_on;
use wgpu::{AdapterInfo, Backends, DeviceType, Instance, InstanceDescriptor};

use super::engine::{Batching, Engine};
use super::gpu::{claim, pool, with_kept};
use super::{Bundle, Classifier, GpuSettings, Hardware, ModelError};
use crate::model::Pool;
use crate::model::layers::{Formulations, Kernels};

/// One operation, one kernel.
type Unfused = CubeBackend<WgpuRuntime, f32, i32, u8>;

impl Kernels for Vulkan {
    fn pool(device: &Self::Device) -> Option<Pool> {
        pool::<WgpuRuntime>(device)
    }
}

impl Kernels for Unfused {
    fn pool(device: &Self::Device) -> Option<Pool> {
        pool::<WgpuRuntime>(device)
    }
}

/// Puts a bundle's model on the GPU `index`, or on the processor's own driver without one.
///
/// # Errors
/// There is no such device, or the model cannot be put on it.
pub(super) fn load(
    bundle: &Bundle,
    index: Option<usize>,
    settings: &GpuSettings,
    formulations: &mut Formulations,
) -> Result<Box<dyn Classifier>, ModelError> {
    let (device, gpu) = choose(adapters(), index).map_err(ModelError::Unavailable)?;
    let cache = claim(&gpu, settings)?;
    with_kept(cache, bundle, settings, formulations, |formulations| {
        if settings.fusion {
            Engine::<Vulkan>::load(bundle, device, gpu, Batching::Ladder, formulations)
        } else {
            Engine::<Unfused>::load(bundle, device, gpu, Batching::Ladder, formulations)
        }
    })
}

/// Every Vulkan device of this machine, in the driver's order; none without a loader.
fn adapters() -> Vec<AdapterInfo> {
    let backends = Backends::VULKAN;
    let instance = Instance::new(InstanceDescriptor { backends, ..InstanceDescriptor::new_without_display_handle() });
    block_on(instance.enumerate_adapters(backends)).iter().map(wgpu::Adapter::get_info).collect()
}

/// The device as CubeCL counts it, each kind apart, and as people see it.
fn choose(adapters: Vec<AdapterInfo>, index: Option<usize>) -> Result<(WgpuDevice, Hardware), String> {
    type Numbered = fn(usize) -> WgpuDevice;
    let gpus: [(DeviceType, Numbered); 3] = [
        (DeviceType::DiscreteGpu, WgpuDevice::DiscreteGpu),
        (DeviceType::IntegratedGpu, WgpuDevice::IntegratedGpu),
        (DeviceType::VirtualGpu, WgpuDevice::VirtualGpu),
    ];
    let processor: [(DeviceType, Numbered); 1] = [(DeviceType::Cpu, |_| WgpuDevice::Cpu)];
    let of_kind = |(kind, numbered): &(DeviceType, Numbered)| {
        let same = adapters.iter().filter(|adapter| adapter.device_type == *kind);
        same.enumerate().map(|(nth, adapter)| (numbered(nth), adapter.clone())).collect::<Vec<_>>()
    };
    let kinds = if index.is_some() { &gpus[..] } else { &processor[..] };
    let found: Vec<_> = kinds.iter().flat_map(of_kind).collect();
    let Some((device, adapter)) = found.get(index.unwrap_or(0)) else {
        return Err(match (index, adapters.len()) {
            (_, 0) => {
                "no Vulkan device on this machine, or no Vulkan loader (libvulkan.so.1) and driver for it".to_owned()
            }
            (Some(index), _) => format!(
                "no Vulkan GPU {index} on this machine; there are {} (vulkan:cpu is a driver that computes on the processor)",
                listed(found.iter().map(|(_, adapter)| adapter)),
            ),
            (None, _) => format!("no Vulkan driver that computes on the processor; there are {}", listed(&adapters)),
        });
    };
    let AdapterInfo { name, driver, driver_info, .. } = adapter;
    let identity = format!("vulkan {name} {driver} {driver_info}");
    Ok((device.clone(), Hardware { name: name.clone(), identity }))
}

fn listed<'a>(adapters: impl IntoIterator<Item = &'a AdapterInfo>) -> String {
    let names: Vec<_> = adapters.into_iter().map(|adapter| adapter.name.as_str()).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
