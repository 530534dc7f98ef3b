//! What CubeCL, which runs the GPUs, keeps for the whole process: its configuration and its caches.
//!
//! It reads both from the first `cubecl.toml` and `burn.toml` above the working directory, once, and keys compiled
//! kernels by the kernel alone: another GPU or driver would be given kernels that it cannot run. So they are set here
//! before its first use, the caches sit apart by GPU and driver, and a process uses one GPU.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::SystemTime;

use burn_std::config::BurnConfig;
use cubecl::Runtime;
use cubecl::config::cache::CacheConfig;
use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};

use super::{Bundle, GpuSettings, Hardware, ModelError};
use crate::model::Pool;
use crate::model::layers::Formulations;

/// Bytes of a directory's name that any file system takes.
const MAX_DIRECTORY: usize = 200;

/// Bytes of a file of formulations, at most: those of thousands of networks.
const MAX_FORMULATIONS_BYTES: u64 = 1 << 20;

/// What CubeCL has of a device's memory.
pub(super) fn pool<R: Runtime>(device: &R::Device) -> Option<Pool> {
    let usage = R::client(device).memory_usage().ok()?;
    Some(Pool { reserved: usage.bytes_reserved, in_use: usage.bytes_in_use })
}

/// Makes `gpu` this process's one GPU. Later calls for it change nothing. Gives its directory of kernels, if it has one.
///
/// # Errors
/// The process uses another one.
pub(super) fn claim(gpu: &Hardware, settings: &GpuSettings) -> Result<Option<&'static Path>, ModelError> {
    static CLAIMED: OnceLock<(String, Option<PathBuf>)> = OnceLock::new();
    let (claimed, cache) = CLAIMED.get_or_init(|| {
        let cache = settings.kernel_cache.as_deref().and_then(|cache| usable(&cache.join(directory(&gpu.identity))));
        configure(cache.clone());
        (gpu.identity.clone(), cache)
    });
    if *claimed == gpu.identity {
        Ok(cache.as_deref())
    } else {
        Err(ModelError::Unavailable(format!("this process uses another GPU already ({claimed})")))
    }
}

/// Loads a model with the formulations that were measured for the bundle's precision before, and keeps those that are
/// measured now.
pub(super) fn with_kept<T>(
    cache: Option<&Path>,
    bundle: &Bundle,
    settings: &GpuSettings,
    formulations: &mut Formulations,
    load: impl FnOnce(&mut Formulations) -> T,
) -> T {
    let Some(cache) = cache else { return load(formulations) };
    let fusion = if settings.fusion { "" } else { "-unfused" };
    let path = cache.join(format!("formulations-{:?}{fusion}.json", bundle.manifest().precision).to_lowercase());
    let mut kept = read(&path);
    kept.extend(std::mem::take(formulations));
    *formulations = kept.clone();
    let loaded = load(formulations);
    if *formulations != kept {
        let json = serde_json::to_vec(formulations).map_err(std::io::Error::from);
        if let Err(error) = json.and_then(|json| replace(&path, &json)) {
            tracing::warn!(file = %path.display(), %error, "formulations are not kept: the next start measures again");
        }
    }
    loaded
}

/// What another start kept; nothing, where that is not to be read.
fn read(path: &Path) -> Formulations {
    let mut json = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_FORMULATIONS_BYTES).read_to_end(&mut json));
    read.ok().and_then(|_| serde_json::from_slice(&json).ok()).unwrap_or_default()
}

/// A name that no other process has, in no other container either.
fn unique(name: &str) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("{name}-{}-{}", std::process::id(), now.as_nanos())
}

/// Whole or not at all: workers may share the directory.
fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let unfinished = path.with_extension(unique("unfinished"));
    fs::write(&unfinished, bytes).and_then(|()| fs::rename(&unfinished, path))
}

/// The cache's directory, when files can be made in it.
fn usable(cache: &Path) -> Option<PathBuf> {
    let probe = cache.join(unique("probe"));
    let tried = fs::create_dir_all(cache).and_then(|()| fs::write(&probe, [])).and_then(|()| fs::remove_file(&probe));
    match tried {
        Ok(()) => Some(cache.to_owned()),
        Err(error) => {
            let directory = cache.display().to_string();
            tracing::warn!(directory, %error, "kernels are not kept: each start compiles and tunes them again");
            None
        }
    }
}

/// `CUBECL_…` and `BURN_…` variables still count: they are the libraries' means to log and to tune less.
fn configure(cache: Option<PathBuf>) {
    let mut config = CubeClRuntimeConfig::default().override_from_env();
    // One thread drives the device, so one stream does: each has memory pools of its own.
    config.streaming.max_streams = 1;
    // Tuning keeps its results somewhere in any case; below this path there can be no file.
    config.autotune.cache = CacheConfig::File(cache.clone().unwrap_or_else(|| PathBuf::from("/dev/null/stoker")));
    config.compilation.cache = cache.map(CacheConfig::File);
    CubeClRuntimeConfig::set(config);
    BurnConfig::set(BurnConfig::default().override_from_env());
}

/// One directory name for this program's version and an identity.
fn directory(identity: &str) -> String {
    let identity: String = identity.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let mut directory = format!("{}-{identity}", env!("CARGO_PKG_VERSION"));
    directory.truncate(MAX_DIRECTORY);
    directory
}
