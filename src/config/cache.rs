//! Where models from Cloud Storage and a GPU's kernels are kept.

use std::path::PathBuf;

/// Variables that Cloud Run sets in services, jobs and worker pools. Its file system is memory: a file there would hold
/// the model a second time, and be gone at the next start.
const CLOUD_RUN: [&str; 3] = ["K_SERVICE", "CLOUD_RUN_JOB", "CLOUD_RUN_WORKER_POOL"];

/// The directory of a `--…-cache` setting: `auto`, `none` or a path. `kind` is what it keeps.
pub(super) fn directory(setting: &str, kind: &str) -> Option<PathBuf> {
    match setting.trim() {
        "auto" | "" => default_directory(kind),
        "none" => None,
        path => Some(PathBuf::from(path)),
    }
}

/// In the user's cache directory, else in the one for temporary files; none on Cloud Run.
fn default_directory(kind: &str) -> Option<PathBuf> {
    if CLOUD_RUN.into_iter().any(|variable| set(variable).is_some()) {
        return None;
    }
    let cache = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    Some(cache.unwrap_or_else(std::env::temp_dir).join("stoker").join(kind))
}

#[expect(clippy::disallowed_methods, reason = "part of the configuration")]
fn set(variable: &str) -> Option<PathBuf> {
    std::env::var(variable).ok().filter(|value| !value.trim().is_empty()).map(PathBuf::from)
}
