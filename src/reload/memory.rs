//! Whether there is memory for another model beside the one that runs, on the host.
//!
//! A worker that loads more than its container may have is killed, and with it the model that worked. Nothing here knows
//! a GPU's memory: an out-of-memory error while the model is loaded refuses it as well.

use std::fs;
use std::path::{Path, PathBuf};

use bytesize::ByteSize;

use crate::model::Manifest;

/// Memory that loading takes at its peak, in times the bundle's files. Measured: see `docs/reload.md`.
const TIMES_FILES: u64 = 5;

/// Bytes that a thread's layers take for each pixel of the input, at most: three of the largest, of up to 128 values a
/// pixel of a quarter of the size (ConvNeXt's and MobileNet's second stage). Attention takes more at large inputs.
const ACTIVATION_BYTES: u64 = 3 * 128 / 4 * 4;

/// The least that a batch of the new model takes beside, and what was not measured, in bytes.
const MARGIN_BYTES: u64 = 64 << 20;

/// No room for two models.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no memory for it beside the model that runs: its files have {}, loading them takes about {}, and {} are left of {limit}",
    ByteSize(*files), ByteSize(*needed), ByteSize(*left)
)]
pub struct DoesNotFit {
    /// Bytes of the bundle's files.
    pub files: u64,
    /// Bytes that loading takes at its peak.
    pub needed: u64,
    /// Bytes that this process may still take.
    pub left: u64,
    /// What sets that limit.
    pub limit: &'static str,
}

/// Memory that this process may still take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Memory {
    /// The least of what is known, with what sets it; `None` on a system that does not tell.
    left: Option<(u64, &'static str)>,
}

impl Memory {
    /// Of the container, or of the machine where that is less.
    pub(super) fn of_this_process() -> Self {
        Self::under(Path::new("/"))
    }

    /// The same with `/proc` and `/sys` below `root`.
    fn under(root: &Path) -> Self {
        let left = [
            version_2(root).map(|left| (left, "the container's limit")),
            version_1(root).map(|left| (left, "the container's limit")),
            available(root).map(|left| (left, "the machine's memory")),
        ];
        Self { left: left.into_iter().flatten().min() }
    }
}

/// Compares what loading the bundle takes with the memory that is left.
pub(super) fn fits(manifest: &Manifest, memory: Memory) -> Result<(), DoesNotFit> {
    let Some((left, limit)) = memory.left else {
        tracing::debug!("this system does not tell how much memory is left");
        return Ok(());
    };
    let files = manifest.files.values().map(|file| file.size).fold(0, u64::saturating_add);
    let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let pixels = u64::from(manifest.input.width) * u64::from(manifest.input.height);
    let activations = pixels.saturating_mul(ACTIVATION_BYTES).saturating_mul(threads);
    let needed = files.saturating_mul(TIMES_FILES).saturating_add(MARGIN_BYTES.max(activations));
    if needed <= left { Ok(()) } else { Err(DoesNotFit { files, needed, left, limit }) }
}

/// cgroup v2: the least over this process's group and those above it.
fn version_2(root: &Path) -> Option<u64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    let mount = root.join("sys/fs/cgroup");
    // In a namespace of its own a container's group is the mount itself, whatever the path says.
    let groups = Path::new(group).ancestors().map(|group| mount.join(group));
    groups.filter_map(|group| left_in(&group, ["memory.max", "memory.current"], "inactive_file")).min()
}

fn version_1(root: &Path) -> Option<u64> {
    let mount: PathBuf = root.join("sys/fs/cgroup/memory");
    left_in(&mount, ["memory.limit_in_bytes", "memory.usage_in_bytes"], "total_inactive_file")
}

/// The limit less what is used; pages of files that nobody used for a while are given back before the limit is felt.
fn left_in(group: &Path, [limit, used]: [&str; 2], cache: &str) -> Option<u64> {
    let number = |file: &str| fs::read_to_string(group.join(file)).ok()?.trim().parse::<u64>().ok();
    // `max` is no number: no limit here.
    let limit = number(limit)?;
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let cache = stat.lines().find_map(|line| line.strip_prefix(cache)?.strip_prefix(' ')?.parse().ok());
    Some(limit.saturating_sub(number(used)?.saturating_sub(cache.unwrap_or(0))))
}

fn available(root: &Path) -> Option<u64> {
    let table = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = table.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Bundle;

    const MIB: u64 = 1 << 20;

    /// A directory that holds these files, as the system would show them; removed at the end of `test`.
    fn with_system(name: &str, files: &[(&str, &str)], test: impl FnOnce(&Path)) {
        let root = std::env::temp_dir().join(format!("stoker-memory-{}-{name}", std::process::id()));
        for (path, content) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        test(&root);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn the_narrowest_limit_counts_without_the_page_cache() {
        let meminfo = ("proc/meminfo", "MemTotal: 9000000 kB\nMemAvailable:    4096000 kB\n");
        let files = [
            meminfo,
            ("proc/self/cgroup", "0::/pod/container\n"),
            ("sys/fs/cgroup/pod/memory.max", "1073741824\n"),
            ("sys/fs/cgroup/pod/memory.current", "536870912\n"),
            ("sys/fs/cgroup/pod/memory.stat", "anon 1\ninactive_file 104857600\n"),
            ("sys/fs/cgroup/pod/container/memory.max", "max\n"),
            ("sys/fs/cgroup/pod/container/memory.current", "1\n"),
        ];
        with_system("v2", &files, |root| {
            assert_eq!(Memory::under(root).left, Some((612 * MIB, "the container's limit")));
        });
        let v1 = [
            meminfo,
            ("proc/self/cgroup", "4:memory:/x\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "1\n"),
        ];
        with_system("v1", &v1, |root| {
            assert_eq!(Memory::under(root).left, Some((4_000 * MIB, "the machine's memory")), "v1 knows no `max`");
        });
        with_system("none", &[("proc/other", "")], |root| assert_eq!(Memory::under(root).left, None));
    }

    #[test]
    fn a_model_that_does_not_fit_is_refused_with_the_numbers() {
        let bundle = Bundle::builtin().unwrap();
        let left = |bytes| Memory { left: Some((bytes, "the container's limit")) };
        assert_eq!(fits(bundle.manifest(), left(1024 * MIB)), Ok(()));
        assert_eq!(fits(bundle.manifest(), Memory { left: None }), Ok(()));
        let error = fits(bundle.manifest(), left(40 * MIB)).unwrap_err().to_string();
        assert!(error.contains("40.0 MiB are left of the container's limit"), "{error}");
        assert!(error.contains("files have 9.6 MiB"), "{error}");
    }
}
