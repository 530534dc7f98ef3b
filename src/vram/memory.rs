//! What memory a device has.
//!
//! On the processor it is the host's: of the container where that has a limit (cgroup v2, then v1), else of the machine.

use std::fs;
use std::path::{Path, PathBuf};

/// A device's memory at one moment, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// All that there is.
    pub total: u64,
    /// What nobody has.
    pub free: u64,
    /// What this process has.
    pub process: u64,
    /// The most that this process had since [`DeviceMemory::begin`].
    pub peak: u64,
}

impl Reading {
    /// What this process could have if it took all that others leave.
    pub fn available(&self) -> u64 {
        self.free.saturating_add(self.process).min(self.total)
    }
}

/// Somebody who knows a device's memory.
pub trait DeviceMemory: Send + Sync {
    /// Forgets the peak.
    fn begin(&self);

    /// What there is now.
    ///
    /// # Errors
    /// The system or the driver does not tell.
    fn read(&self) -> Result<Reading, MemoryError>;

    /// What sets the total, as shown to people: `the container's limit`.
    fn limit(&self) -> &'static str;
}

/// Nobody tells how much memory there is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("how much memory the device has is not known: {0}")]
pub struct MemoryError(pub(crate) String);

/// The memory of the container, or of the machine where that is less.
#[derive(Clone, Debug)]
pub struct HostMemory {
    root: PathBuf,
}

impl Default for HostMemory {
    fn default() -> Self {
        Self::under(Path::new("/"))
    }
}

/// A limit and what is left of it, in bytes, ordered by what is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Left {
    left: u64,
    total: u64,
    limit: &'static str,
}

impl HostMemory {
    /// With `/proc` and `/sys` below `root`.
    pub(crate) fn under(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// The least of what is known: what is left, of which limit. `None` on a system that does not tell.
    pub(crate) fn left(&self) -> Option<(u64, &'static str)> {
        self.narrowest().map(|it| (it.left, it.limit))
    }

    fn narrowest(&self) -> Option<Left> {
        [self.version_2(), self.version_1(), self.available()].into_iter().flatten().min()
    }

    /// cgroup v2: the least over this process's group and those above it.
    fn version_2(&self) -> Option<Left> {
        let files = ["memory.max", "memory.current"];
        self.least("sys/fs/cgroup", |line| line.strip_prefix("0::/"), files, "inactive_file")
    }

    /// The same of cgroup v1, where a line of `/proc/self/cgroup` is `4:memory,hugetlb:/group`.
    fn version_1(&self) -> Option<Left> {
        fn group(line: &str) -> Option<&str> {
            let (controllers, group) = line.split_once(':')?.1.split_once(":/")?;
            controllers.split(',').any(|controller| controller == "memory").then_some(group)
        }
        let files = ["memory.limit_in_bytes", "memory.usage_in_bytes"];
        self.least("sys/fs/cgroup/memory", group, files, "total_inactive_file")
    }

    fn least(&self, mount: &str, group: fn(&str) -> Option<&str>, files: [&str; 2], cache: &str) -> Option<Left> {
        let groups = fs::read_to_string(self.root.join("proc/self/cgroup")).unwrap_or_default();
        let group = groups.lines().find_map(group).unwrap_or_default();
        let mount = self.root.join(mount);
        // In a namespace of its own a container's group is the mount itself, whatever the path says.
        let groups = Path::new(group).ancestors().map(|group| mount.join(group));
        groups.filter_map(|group| left_in(&group, files, cache)).min()
    }

    fn available(&self) -> Option<Left> {
        let table = fs::read_to_string(self.root.join("proc/meminfo")).ok()?;
        let [left, total] = ["MemAvailable:", "MemTotal:"].map(|key| kilobytes(&table, key));
        Some(Left { left: left?, total: total?, limit: "the machine's memory" })
    }
}

impl DeviceMemory for HostMemory {
    fn begin(&self) {
        // Where this is not allowed the peak is that of the process's life, which is no less.
        drop(fs::write(self.root.join("proc/self/clear_refs"), "5"));
    }

    fn read(&self) -> Result<Reading, MemoryError> {
        let unknown = |what: &str| MemoryError(format!("this system does not tell {what}"));
        let Left { left, total, .. } = self.narrowest().ok_or_else(|| unknown("its limits (/proc, /sys/fs/cgroup)"))?;
        let status = fs::read_to_string(self.root.join("proc/self/status")).unwrap_or_default();
        let process = kilobytes(&status, "VmRSS:").ok_or_else(|| unknown("what a process has (/proc/self/status)"))?;
        let peak = kilobytes(&status, "VmHWM:").unwrap_or(process).max(process);
        Ok(Reading { total, free: left, process, peak })
    }

    fn limit(&self) -> &'static str {
        self.narrowest().map_or("this system", |it| it.limit)
    }
}

/// The limit less what is used; pages of files that nobody used for a while are given back before the limit is felt.
fn left_in(group: &Path, [limit, used]: [&str; 2], cache: &str) -> Option<Left> {
    let number = |file: &str| fs::read_to_string(group.join(file)).ok()?.trim().parse::<u64>().ok();
    // `max` is no number: no limit here.
    let total = number(limit)?;
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let cache = stat.lines().find_map(|line| line.strip_prefix(cache)?.strip_prefix(' ')?.parse().ok());
    let left = total.saturating_sub(number(used)?.saturating_sub(cache.unwrap_or(0)));
    Some(Left { left, total, limit: "the container's limit" })
}

fn kilobytes(table: &str, key: &str) -> Option<u64> {
    let line = table.lines().find_map(|line| line.strip_prefix(key))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A directory that holds these files, as the system would show them; removed at the end of `test`.
    fn with_system(name: &str, files: &[(&str, &str)], test: impl FnOnce(HostMemory)) {
        let root = std::env::temp_dir().join(format!("stoker-memory-{}-{name}", std::process::id()));
        for (path, content) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        test(HostMemory::under(&root));
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn the_narrowest_limit_counts_without_the_page_cache() {
        let meminfo = ("proc/meminfo", "MemTotal: 9000000 kB\nMemAvailable:    4096000 kB\n");
        let status = ("proc/self/status", "Name: x\nVmHWM:\t  204800 kB\nVmRSS:\t  102400 kB\n");
        let files = [
            meminfo,
            status,
            ("proc/self/cgroup", "0::/pod/container\n"),
            ("sys/fs/cgroup/pod/memory.max", "1073741824\n"),
            ("sys/fs/cgroup/pod/memory.current", "536870912\n"),
            ("sys/fs/cgroup/pod/memory.stat", "anon 1\ninactive_file 104857600\n"),
            ("sys/fs/cgroup/pod/container/memory.max", "max\n"),
            ("sys/fs/cgroup/pod/container/memory.current", "1\n"),
        ];
        with_system("v2", &files, |host| {
            let expected = Reading { total: 1024 * MIB, free: 612 * MIB, process: 100 * MIB, peak: 200 * MIB };
            assert_eq!(host.read(), Ok(expected));
            assert_eq!((host.limit(), expected.available()), ("the container's limit", 712 * MIB));
        });
        let v1 = [
            meminfo,
            status,
            ("proc/self/cgroup", "4:memory:/x\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "1\n"),
        ];
        with_system("v1", &v1, |host| {
            assert_eq!(host.left(), Some((4_000 * MIB, "the machine's memory")), "v1 knows no `max`");
            assert_eq!(host.read().unwrap().total, 9_000_000 * 1024);
        });
        let limited = [
            meminfo,
            status,
            ("proc/self/cgroup", "5:cpu,cpuacct:/y\n4:hugetlb,memory:/x\n0::/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "1\n"),
            ("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "536870912\n"),
            ("sys/fs/cgroup/memory/x/memory.usage_in_bytes", "268435456\n"),
            ("sys/fs/cgroup/memory/x/memory.stat", "inactive_file 1\ntotal_inactive_file 104857600\n"),
        ];
        with_system("v1-group", &limited, |host| {
            assert_eq!(host.left(), Some((356 * MIB, "the container's limit")));
            assert_eq!(host.read().unwrap().total, 512 * MIB);
        });
        with_system("none", &[("proc/other", "")], |host| {
            assert_eq!(host.left(), None);
            assert!(host.read().unwrap_err().to_string().contains("does not tell its limits"));
        });
    }

    #[test]
    fn this_process_has_memory_and_its_peak_begins_anew() {
        let host = HostMemory::default();
        let grown = vec![1_u8; 64 << 20];
        let high = host.read().unwrap();
        assert!(high.peak >= 64 * MIB && grown.iter().all(|byte| *byte == 1));
        drop(grown);
        host.begin();
        let low = host.read().unwrap();
        assert!(low.peak + 32 * MIB < high.peak, "{low:?} {high:?}");
        assert!(low.process > MIB && low.total > low.process && low.available() >= low.free);
    }
}
