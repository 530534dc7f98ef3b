//! How far the reading of a bundle is, in the log.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Location;

/// Time between two lines of the log.
const PAUSE: Duration = Duration::from_secs(5);

/// Bytes of a bundle, counted.
#[derive(Debug)]
pub(super) struct Progress {
    location: String,
    bytes: u64,
    read: AtomicU64,
    cached: AtomicU64,
    told: Mutex<Instant>,
}

impl Progress {
    pub(super) fn new(location: &Location, bytes: u64) -> Self {
        let told = Mutex::new(Instant::now());
        Self { location: location.to_string(), bytes, read: AtomicU64::new(0), cached: AtomicU64::new(0), told }
    }

    /// So many bytes were on disk.
    pub(super) fn cached(&self, bytes: u64) {
        self.cached.fetch_add(bytes, Ordering::Relaxed);
    }

    /// So many more bytes came.
    pub(super) fn came(&self, bytes: u64) {
        let read = self.read.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.elapsed() >= PAUSE {
            *told = Instant::now();
            let done = read + self.cached.load(Ordering::Relaxed);
            tracing::info!(model = self.location, done, bytes = self.bytes, "reading the model");
        }
    }

    pub(super) fn finished(&self, digest: &str, took: Duration) {
        let ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let (read, cached) = (self.read.load(Ordering::Relaxed), self.cached.load(Ordering::Relaxed));
        tracing::info!(model = self.location, digest, read_bytes = read, cached_bytes = cached, ms, "model read");
    }
}
