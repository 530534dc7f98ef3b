//! Objects read whole, in parts.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use backoff::{BackoffBuilder, ExponentialBuilder};
use bytes::Bytes;
use google_cloud_gax::retry_policy::RetryPolicyExt;
use google_cloud_storage::client::Storage;
use google_cloud_storage::model_ext::ReadRange;
use google_cloud_storage::read_resume_policy::NeverResume;
use google_cloud_storage::retry_policy::RetryableErrors;
use sha2::{Digest, Sha256};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::timeout;

use super::error::DownloadError;
use super::progress::Progress;
use super::{FileSpec, Location};

/// Bytes of a part. Cloud Storage gives a stream tens of MB/s, and its first byte after tens of milliseconds.
const PART_BYTES: u64 = 8 << 20;
/// Attempts in a row that bring no byte.
const ATTEMPTS: usize = 6;

/// Pause after the first of them; each is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// An object's address.
#[derive(Clone, Debug)]
pub(super) struct Object {
    bucket: String,
    name: String,
}

impl Object {
    pub(super) fn of(location: &Location, path: &str) -> Self {
        Self { bucket: format!("projects/_/buckets/{}", location.bucket()), name: location.object(path) }
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bucket = self.bucket.trim_start_matches("projects/_/buckets/");
        write!(f, "gs://{bucket}/{}", crate::event::printable(&self.name))
    }
}

/// Reads objects; clones share the turns.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    pub(super) storage: Storage,
    pub(super) quota_project: Option<String>,
    pub(super) patience: Duration,
    /// One for each part in memory that is not yet in its file.
    pub(super) turns: Arc<Semaphore>,
}

/// Bytes of an object from some point on.
#[derive(Debug, Default)]
struct Part {
    bytes: Vec<u8>,
    /// Generation that they are of, once known.
    generation: Option<i64>,
    /// Size of the whole object, where the service tells it.
    size: Option<u64>,
}

/// A file that grows by parts, and its digest so far.
struct Growing {
    bytes: Vec<u8>,
    digest: Sha256,
}

impl Growing {
    fn add(mut self, part: &[u8]) -> Self {
        self.digest.update(part);
        self.bytes.extend_from_slice(part);
        self
    }
}

impl Reader {
    /// An object of at most `limit` bytes, in one piece.
    pub(super) async fn small(&self, object: &Object, limit: u64) -> Result<Bytes, DownloadError> {
        let part = self.part(object, 0..limit + 1, None).await?;
        if part.bytes.len() as u64 > limit || part.size.is_some_and(|size| size > limit) {
            return Err(DownloadError::TooLarge { object: object.to_string(), limit });
        }
        Ok(part.bytes.into())
    }

    /// A file of a bundle, verified.
    pub(super) async fn whole(
        &self,
        object: &Object,
        path: &str,
        spec: &FileSpec,
        progress: &Progress,
    ) -> Result<Bytes, DownloadError> {
        let first_turn = self.turn().await;
        let first = self.part(object, 0..spec.size.min(PART_BYTES), None).await?;
        spec.check_size(path, first.size.unwrap_or(spec.size))?;
        let mut bytes = Vec::new();
        let no_memory = || DownloadError::NoMemory { object: object.to_string(), bytes: spec.size };
        bytes.try_reserve_exact(usize::try_from(spec.size).map_err(|_| no_memory())?).map_err(|_| no_memory())?;
        let mut file = Growing { bytes, digest: Sha256::new() };

        let generation = first.generation;
        let mut reading: JoinSet<Result<(u64, Part, OwnedSemaphorePermit), DownloadError>> = JoinSet::new();
        // Parts that came before their turn in the file; as many as there are turns, at most.
        let mut early = BTreeMap::from([(0, (first, first_turn))]);
        let mut asked = PART_BYTES.min(spec.size);
        while (file.bytes.len() as u64) < spec.size {
            if let Some((part, turn)) = early.remove(&(file.bytes.len() as u64)) {
                progress.came(part.bytes.len() as u64);
                file = spawn_blocking(move || file.add(&part.bytes)).await?;
                drop(turn);
                continue;
            }
            tokio::select! {
                turn = self.turn(), if asked < spec.size => {
                    let range = asked..(asked + PART_BYTES).min(spec.size);
                    asked = range.end;
                    let (reader, object) = (self.clone(), object.clone());
                    reading.spawn(async move {
                        let start = range.start;
                        reader.part(&object, range, generation).await.map(|part| (start, part, turn))
                    });
                }
                Some(read) = reading.join_next() => {
                    let (start, part, turn) = read??;
                    early.insert(start, (part, turn));
                }
                else => break,
            }
        }
        spec.check_size(path, file.bytes.len() as u64)?;
        let found = file.digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        spec.check_digest(path, found)?;
        Ok(file.bytes.into())
    }

    async fn turn(&self) -> OwnedSemaphorePermit {
        self.turns.clone().acquire_owned().await.expect("the semaphore is never closed")
    }

    /// Some bytes of an object, fewer only where it ends. What is cut or stalls is asked for again from there.
    async fn part(&self, object: &Object, range: Range<u64>, generation: Option<i64>) -> Result<Part, DownloadError> {
        let mut part = Part { generation, ..Part::default() };
        let pauses = || {
            ExponentialBuilder::default().with_min_delay(FIRST_PAUSE).with_jitter().with_max_times(ATTEMPTS - 1).build()
        };
        let mut left = pauses();
        loop {
            let had = part.bytes.len();
            let read = self.read(object, range.start + had as u64..range.end, &mut part).await;
            match read {
                Ok(()) => return Ok(part),
                Err(error) if !error.may_pass() => return Err(error),
                Err(error) => {
                    if part.bytes.len() > had {
                        left = pauses();
                    }
                    let Some(pause) = left.next() else { return Err(error) };
                    tracing::warn!(%object, %error, at = range.start + part.bytes.len() as u64, "reading on");
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    /// One request; what comes is added to `part` even where it ends in an error.
    async fn read(&self, object: &Object, range: Range<u64>, part: &mut Part) -> Result<(), DownloadError> {
        let stalled = |_| DownloadError::Stalled { object: object.to_string(), patience: self.patience };
        let failed = |error| DownloadError::of_client(object.to_string(), error);
        let mut request = self
            .storage
            .read_object(&object.bucket, &object.name)
            .set_read_range(ReadRange::segment(range.start, range.end - range.start))
            .with_retry_policy(RetryableErrors.with_time_limit(self.patience / 2))
            // Resuming is up to `part`, with pauses and an end.
            .with_read_resume_policy(NeverResume);
        if let Some(generation) = part.generation {
            request = request.set_generation(generation);
        }
        if let Some(project) = &self.quota_project {
            request = request.with_quota_project(project);
        }
        let mut response = timeout(self.patience, request.send()).await.map_err(stalled)?.map_err(failed)?;
        let about = response.object();
        part.generation = Some(about.generation);
        part.size = u64::try_from(about.size).ok().filter(|size| *size > 0);
        let most = range.end - range.start;
        let mut came = 0;
        while let Some(chunk) = timeout(self.patience, response.next()).await.map_err(stalled)? {
            let chunk = chunk.map_err(failed)?;
            came += chunk.len() as u64;
            if came > most {
                return Err(DownloadError::TooLarge { object: object.to_string(), limit: range.end });
            }
            part.bytes.extend_from_slice(&chunk);
        }
        Ok(())
    }
}
