//! Where models from Cloud Storage are kept when nobody says where.

use std::path::PathBuf;

/// Variables that Cloud Run sets in services, jobs and worker pools. Its file system is memory: a file there would hold
/// the model a second time, and be gone at the next start.
const CLOUD_RUN: [&str; 3] = ["K_SERVICE", "CLOUD_RUN_JOB", "CLOUD_RUN_WORKER_POOL"];

/// The user's cache directory, else the one for temporary files; none on Cloud Run.
pub(super) fn default_directory() -> Option<PathBuf> {
    if CLOUD_RUN.into_iter().any(|variable| set(variable).is_some()) {
        return None;
    }
    let cache = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    Some(cache.unwrap_or_else(std::env::temp_dir).join("stoker").join("models"))
}

#[expect(clippy::disallowed_methods, reason = "part of the configuration")]
fn set(variable: &str) -> Option<PathBuf> {
    std::env::var(variable).ok().filter(|value| !value.trim().is_empty()).map(PathBuf::from)
}
