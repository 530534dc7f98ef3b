//! NVIDIA GPUs. The driver and NVRTC, which compiles the kernels, are loaded when the program runs: a machine without
//! them gets a plain error here, where CubeCL would panic in a thread of its own.

use std::fs::File;
use std::io::Read as _;

use burn::backend::Cuda;
use burn::backend::cuda::CudaDevice;
use burn_cubecl::CubeBackend;
use cubecl::cuda::CudaRuntime;
use cubecl::cuda::install::{cccl_include_path, cuda_path, include_path};
use cudarc::driver::result::{self, device};
use cudarc::nvrtc::{CompileError, CompileOptions, compile_ptx_with_opts};

use super::engine::{Batching, Engine};
use super::failure::probe;
use super::gpu::{claim, pool, with_kept};
use super::{Bundle, Classifier, GpuSettings, Hardware, ModelError};
use crate::model::Pool;
use crate::model::layers::{Formulations, Kernels};

/// One operation, one kernel.
type Unfused = CubeBackend<CudaRuntime, f32, i32, u8>;

/// Where Linux tells the version of the driver.
const DRIVER_VERSION: &str = "/sys/module/nvidia/version";
/// The smallest kernel that needs the headers.
const PROBE: &str = "#include <cuda_fp16.h>\nextern \"C\" __global__ void probe(__half *x) { *x = __half(); }";

impl Kernels for Cuda {
    fn pool(device: &Self::Device) -> Option<Pool> {
        pool::<CudaRuntime>(device)
    }
}

impl Kernels for Unfused {
    fn pool(device: &Self::Device) -> Option<Pool> {
        pool::<CudaRuntime>(device)
    }
}

/// Puts a bundle's model on the GPU `index`.
///
/// # Errors
/// No driver, no such GPU, or the model cannot be put on it.
pub(super) fn load(
    bundle: &Bundle,
    index: usize,
    settings: &GpuSettings,
    formulations: &mut Formulations,
) -> Result<Box<dyn Classifier>, ModelError> {
    let gpu = find(index).map_err(ModelError::Unavailable)?;
    let cache = claim(&gpu, settings)?;
    let device = CudaDevice { index };
    with_kept(cache, bundle, settings, formulations, |formulations| {
        if settings.fusion {
            Engine::<Cuda>::load(bundle, device, gpu, Batching::Ladder, formulations)
        } else {
            Engine::<Unfused>::load(bundle, device, gpu, Batching::Ladder, formulations)
        }
    })
}

fn find(index: usize) -> Result<Hardware, String> {
    // cudarc panics when it finds no library.
    probe(result::init)
        .ok_or_else(|| "no NVIDIA driver on this machine: its library (libcuda.so.1) cannot be loaded".to_owned())?
        .map_err(|error| format!("the NVIDIA driver does not start: {error}"))?;
    if cuda_path().is_none() {
        return Err("no CUDA headers: neither CUDA_PATH nor /usr/local/cuda is there".to_owned());
    }
    probe(compile_probe)
        .ok_or_else(|| "NVRTC's library (libnvrtc.so.13), which compiles the kernels, cannot be loaded".to_owned())?
        .map_err(compiler_says)?;
    let count = device::get_count().map_err(|error| error.to_string())?;
    let ordinal = i32::try_from(index).ok().filter(|ordinal| *ordinal < count);
    let ordinal = ordinal.ok_or_else(|| format!("no GPU {index}: the NVIDIA driver knows {count}"))?;
    let name = device::get(ordinal).and_then(device::get_name).map_err(|error| error.to_string())?;
    // Compiled kernels are for what the driver reads.
    let mut driver = String::new();
    let read = File::open(DRIVER_VERSION).and_then(|file| file.take(64).read_to_string(&mut driver));
    if let Err(error) = read {
        tracing::debug!(%error, file = DRIVER_VERSION, "the driver's version is not known");
    }
    Ok(Hardware { identity: format!("cuda {name} {}", driver.trim()), name })
}

/// With the options that CubeCL gives, but for the architecture.
fn compile_probe() -> Result<(), CompileError> {
    let paths = [include_path(), cccl_include_path()];
    let include_paths = paths.iter().map(|path| path.display().to_string()).collect();
    compile_ptx_with_opts(PROBE, CompileOptions { include_paths, ..CompileOptions::default() }).map(|_| ())
}

fn compiler_says(error: CompileError) -> String {
    let headers = include_path().display().to_string();
    match error {
        CompileError::CompileError { log, .. } => {
            let log = log.to_string_lossy().into_owned();
            let line = log.lines().find(|line| line.contains("error")).unwrap_or_default();
            format!("NVRTC does not compile with the CUDA headers under {headers}: {line}")
        }
        error => format!("NVRTC does not compile: {error}"),
    }
}
