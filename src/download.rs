//! A bundle in Cloud Storage, read into memory through a cache on disk.
//!
//! `model.json` comes first and says what the other files must be. Each of them comes from the cache or else in parts, a
//! few at a time over all files, all of one generation; it is checked as a whole before it is cached and used. A part that
//! is cut or stalls is asked for again from where it ended. Memory: the files once, and the parts that are on their way.

mod cache;
mod error;
mod progress;
mod read;
mod source;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use google_cloud_storage::client::Storage;
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, spawn_blocking};

pub use self::cache::Cache;
pub use self::error::DownloadError;
use self::progress::Progress;
use self::read::{Object, Reader};
pub use self::source::{Location, ModelSource, UnknownSource};
use crate::config::FetchConfig;
use crate::model::{Bundle, BundleError, FileSpec, Manifest};

/// Parts that are read at a time.
const PARTS: usize = 8;

/// Reads bundles from Cloud Storage.
#[derive(Clone, Debug)]
pub struct Downloader {
    storage: Storage,
    cache: Cache,
    quota_project: Option<String>,
    /// A part that gives no byte for this long is asked for again.
    patience: Duration,
}

impl Downloader {
    /// A downloader with the time limit and the billed project of `config`.
    #[must_use]
    pub fn new(storage: Storage, cache: Cache, config: &FetchConfig) -> Self {
        Self { storage, cache, quota_project: config.quota_project.clone(), patience: config.timeout }
    }

    /// Reads the bundle at a place, verified.
    ///
    /// # Errors
    /// [`DownloadError`]: what cannot be read, or [`DownloadError::Bundle`] for what is not as it must be.
    pub async fn download(&self, location: &Location) -> Result<Bundle, DownloadError> {
        let started = Instant::now();
        let reader = Reader {
            storage: self.storage.clone(),
            quota_project: self.quota_project.clone(),
            patience: self.patience,
            turns: Arc::new(Semaphore::new(PARTS)),
        };
        let manifest_bytes = reader.small(&Object::of(location, Manifest::NAME), Manifest::MAX_BYTES).await?;
        let manifest = Manifest::parse(&manifest_bytes).map_err(BundleError::from)?;
        let progress = Arc::new(Progress::new(location, manifest.files.values().map(|file| file.size).sum()));
        let mut reading = JoinSet::new();
        for (path, spec) in manifest.files.clone() {
            let object = Object::of(location, &path);
            let file = FileRead { reader: reader.clone(), cache: self.cache.clone(), progress: progress.clone() };
            reading.spawn(async move { (path.clone(), file.read(&object, &path, &spec).await) });
        }
        let mut files = BTreeMap::new();
        // The first failure drops the other reads.
        while let Some(read) = reading.join_next().await {
            let (path, bytes) = read?;
            files.insert(path, bytes?);
        }
        let bundle = spawn_blocking(move || Bundle::from_verified(&manifest_bytes, manifest, files)).await??;
        progress.finished(bundle.digest(), started.elapsed());
        Ok(bundle)
    }
}

/// One file on its way.
struct FileRead {
    reader: Reader,
    cache: Cache,
    progress: Arc<Progress>,
}

impl FileRead {
    async fn read(&self, object: &Object, path: &str, spec: &FileSpec) -> Result<Bytes, DownloadError> {
        let (cache, wanted) = (self.cache.clone(), spec.clone());
        if let Some(bytes) = spawn_blocking(move || cache.get(&wanted)).await? {
            self.progress.cached(spec.size);
            return Ok(bytes.into());
        }
        let bytes = match self.reader.whole(object, path, spec, &self.progress).await {
            // What comes in parts has no checksum of its own on the way.
            Err(DownloadError::Bundle(error @ BundleError::Digest { .. })) => {
                tracing::warn!(%object, %error, "model file came with another digest; reading it again");
                self.reader.whole(object, path, spec, &self.progress).await?
            }
            read => read?,
        };
        let (cache, wanted, kept) = (self.cache.clone(), spec.clone(), bytes.clone());
        spawn_blocking(move || cache.put(&wanted, &kept)).await?;
        Ok(bytes)
    }
}
