//! Objects read: the event's generation, whole, checked, within a deadline and a byte budget.
//!
//! The object's size is known before its body is read, and the body is read only once that many bytes of the budget
//! are free; the share travels with the body and comes back when it is decoded. The client retries and resumes calls
//! and verifies CRC32C; this hop adds the deadline, because a stalled body can outlast the client's own.

use std::io::Read as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use flate2::read::MultiGzDecoder;
use google_cloud_gax::retry_policy::RetryPolicyExt;
use google_cloud_storage::client::Storage;
use google_cloud_storage::model_ext::ObjectHighlights;
use google_cloud_storage::read_object::ReadObjectResponse;
use google_cloud_storage::retry_policy::RetryableErrors;
use tokio::sync::mpsc::{Receiver, Sender};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant as Clock, timeout_at};
use tokio_util::sync::CancellationToken;

use super::each::each_until;
use super::error::{Fatal, RetryReason};
use super::job::{Job, Outcome};
use crate::clients::Renewable;
use crate::config::FetchConfig;
use crate::event::{FailureCode, ObjectId};
use crate::metrics::Metrics;

/// The budget counts in units of this many bytes, since a semaphore counts at most `u32::MAX` at a time.
const UNIT_BYTES: u64 = 1024;

/// An object's bytes, with their share of the byte budget.
#[derive(Debug)]
pub(super) struct Body {
    pub(super) bytes: Bytes,
    /// Held until the bytes are decoded.
    pub(super) _share: OwnedSemaphorePermit,
}

/// Why an object could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// The object, or the generation of it that was asked for, is gone: deleted, or superseded without versioning.
    #[error("the object, or this generation of it, does not exist: it was deleted or replaced")]
    Gone,
    /// There is no such bucket: a mistake in the set-up rather than in the upload.
    #[error("the bucket does not exist, or --storage-endpoint leads elsewhere")]
    NoBucket,
    /// The object holds nothing.
    #[error("the object is empty")]
    Empty,
    /// The object is over the limit, as stored or once unzipped.
    #[error("the object has {bytes} bytes, over the limit of {limit} (--max-object-bytes)")]
    TooLarge {
        /// Bytes it has, or at least has.
        bytes: u64,
        /// Most it may have.
        limit: u64,
    },
    /// Declared as gzip, but is not.
    #[error("the object is declared as gzip but cannot be unzipped: {0}")]
    BadEncoding(std::io::Error),
    /// The identity may not read the bucket, or somebody must pay for it.
    #[error(
        "cloud storage denied the read ({0}); grant roles/storage.objectViewer, and for a requester-pays bucket set --quota-project"
    )]
    Denied(google_cloud_storage::Error),
    /// Cloud Storage failed, after the client's own retries.
    #[error("cloud storage failed: {0}")]
    Failed(google_cloud_storage::Error),
    /// The deadline passed.
    #[error("the object was not read within {0:?} (--fetch-timeout)")]
    TimedOut(Duration),
}

/// What follows from a [`FetchError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// A failed result and an ack.
    Reject(FailureCode),
    /// Back to Pub/Sub.
    Retry(RetryReason),
}

impl FetchError {
    /// The code of the failed result that this error makes; `None` for one that may pass.
    pub fn failure_code(&self) -> Option<FailureCode> {
        match self.verdict() {
            Verdict::Reject(code) => Some(code),
            Verdict::Retry(_) => None,
        }
    }

    pub(super) fn verdict(&self) -> Verdict {
        match self {
            Self::Gone => Verdict::Reject(FailureCode::ObjectGone),
            Self::Empty => Verdict::Reject(FailureCode::EmptyObject),
            Self::TooLarge { .. } => Verdict::Reject(FailureCode::ObjectTooLarge),
            Self::BadEncoding(_) => Verdict::Reject(FailureCode::BadContentEncoding),
            Self::NoBucket | Self::Denied(_) => Verdict::Retry(RetryReason::FetchDenied),
            Self::Failed(_) => Verdict::Retry(RetryReason::FetchFailed),
            Self::TimedOut(_) => Verdict::Retry(RetryReason::FetchTimeout),
        }
    }

    fn from_client(error: google_cloud_storage::Error) -> Self {
        // `status().code` is often Unknown; the HTTP status is what Cloud Storage answered.
        let says = |words| error.to_string().to_lowercase().contains(words);
        match error.http_status_code() {
            Some(404) if says("bucket does not exist") => Self::NoBucket,
            Some(404) => Self::Gone,
            Some(401 | 403) => Self::Denied(error),
            Some(400) if says("requester pays") => Self::Denied(error),
            _ => Self::Failed(error),
        }
    }
}

/// Reads objects within a deadline and a byte budget. Clones share the budget.
#[derive(Clone, Debug)]
pub struct Fetcher {
    storage: Renewable<Storage>,
    config: FetchConfig,
    budget: Arc<Semaphore>,
    /// All of the budget, in units.
    budget_units: u32,
}

/// A whole object.
#[derive(Debug)]
pub struct Fetched {
    /// The bytes, unzipped where they were stored with gzip encoding.
    pub bytes: Bytes,
    /// Generation that was read.
    pub generation: i64,
    /// Size as stored, in bytes.
    pub size: u64,
    /// Declared content type; empty when there is none.
    pub content_type: String,
    share: OwnedSemaphorePermit,
}

impl Fetcher {
    /// A fetcher with the sizes and deadlines of `config`.
    pub fn new(storage: impl Into<Renewable<Storage>>, config: &FetchConfig) -> Self {
        let storage = storage.into();
        let budget_units = u32::try_from(units(config.budget_bytes)).unwrap_or(u32::MAX);
        let permits = usize::try_from(budget_units).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Self { storage, config: config.clone(), budget: Arc::new(Semaphore::new(permits)), budget_units }
    }

    /// Reads one object, at its generation if it names one.
    ///
    /// # Errors
    /// [`FetchError`] tells a permanent failure from one that may pass.
    pub async fn fetch(&self, object: &ObjectId) -> Result<Fetched, FetchError> {
        let fetched = self.attempt(object).await;
        if let Err(FetchError::TimedOut(_)) = fetched {
            self.storage.renew("a read timed out").await;
        }
        fetched
    }

    async fn attempt(&self, object: &ObjectId) -> Result<Fetched, FetchError> {
        let late = |_| FetchError::TimedOut(self.config.timeout);
        let asked = Clock::now();
        let response = timeout_at(asked + self.config.timeout, self.request(object)).await.map_err(late)??;
        let about = response.object();
        let limit = self.config.max_object_bytes;
        let declared = self.declared_size(&about)?;
        let zipped = about.content_encoding == "gzip";
        // Unzipped it may take up to the limit on top of what is stored.
        let waiting = Clock::now();
        let share = self.reserve(declared.unwrap_or(limit) + if zipped { limit } else { 0 }).await;
        // Waiting for the budget is this worker's doing and does not count.
        let deadline = asked + self.config.timeout + waiting.elapsed();
        let stored = timeout_at(deadline, self.body(response, declared)).await.map_err(late)??;
        let size = stored.len() as u64;
        let bytes = match size {
            0 => return Err(FetchError::Empty),
            _ if zipped => unzip(stored, limit).await?,
            _ => stored,
        };
        Ok(Fetched { bytes, generation: about.generation, size, content_type: about.content_type, share })
    }

    async fn request(&self, object: &ObjectId) -> Result<ReadObjectResponse, FetchError> {
        let mut read = self
            .storage
            .get()
            .read_object(format!("projects/_/buckets/{}", object.bucket), &object.name)
            .with_retry_policy(RetryableErrors.with_time_limit(self.config.timeout));
        if let Some(generation) = object.generation {
            read = read.set_generation(generation);
        }
        if let Some(project) = &self.config.quota_project {
            read = read.with_quota_project(project);
        }
        read.send().await.map_err(FetchError::from_client)
    }

    /// The size that the answer's head declares. fake-gcs-server declares none, which the client gives as 0.
    fn declared_size(&self, about: &ObjectHighlights) -> Result<Option<u64>, FetchError> {
        let limit = self.config.max_object_bytes;
        match u64::try_from(about.size) {
            Ok(bytes) if bytes > limit => Err(FetchError::TooLarge { bytes, limit }),
            Ok(bytes) if bytes > 0 => Ok(Some(bytes)),
            _ => Ok(None),
        }
    }

    /// Waits for a share of the budget: at most all of it, so that one object always gets through.
    async fn reserve(&self, bytes: u64) -> OwnedSemaphorePermit {
        let wanted = u32::try_from(units(bytes)).unwrap_or(u32::MAX).min(self.budget_units);
        let budget = self.budget.clone();
        budget.acquire_many_owned(wanted).await.expect("the budget is never closed")
    }

    async fn body(&self, mut response: ReadObjectResponse, size: Option<u64>) -> Result<Bytes, FetchError> {
        let mut body = BytesMut::with_capacity(size.and_then(|size| usize::try_from(size).ok()).unwrap_or(0));
        while let Some(chunk) = response.next().await.transpose().map_err(FetchError::from_client)? {
            let bytes = u64::try_from(body.len() + chunk.len()).unwrap_or(u64::MAX);
            if bytes > self.config.max_object_bytes {
                return Err(FetchError::TooLarge { bytes, limit: self.config.max_object_bytes });
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body.freeze())
    }
}

/// The plain bytes of a gzip-encoded object, off the async runtime; never more than `limit` and one.
async fn unzip(zipped: Bytes, limit: u64) -> Result<Bytes, FetchError> {
    let unzipping = tokio::task::spawn_blocking(move || {
        let mut plain = Vec::new();
        let mut limited = MultiGzDecoder::new(&zipped[..]).take(limit.saturating_add(1));
        let bytes = limited.read_to_end(&mut plain).map_err(FetchError::BadEncoding)? as u64;
        match bytes {
            0 => Err(FetchError::Empty),
            _ if bytes > limit => Err(FetchError::TooLarge { bytes, limit }),
            _ => Ok(plain.into()),
        }
    });
    unzipping.await.map_err(|error| FetchError::BadEncoding(error.into()))?
}

fn units(bytes: u64) -> u64 {
    bytes.div_ceil(UNIT_BYTES)
}

/// The uploads that wait to be read, until a stop returns them.
pub(super) struct Uploads {
    pub(super) waiting: Receiver<Job<()>>,
    pub(super) stop: CancellationToken,
}

/// Reads each upload's object; what cannot be read becomes a failed result or goes back to Pub/Sub.
pub(super) async fn run(
    Uploads { waiting, stop }: Uploads,
    fetcher: Fetcher,
    metrics: Arc<Metrics>,
    bodies: Sender<Job<Body>>,
    outcomes: Sender<Job<Outcome>>,
) -> Result<(), Fatal> {
    each_until(stop.cancelled_owned(), waiting, fetcher.config.concurrency, |job| {
        let (fetcher, metrics, bodies, outcomes) = (fetcher.clone(), metrics.clone(), bodies.clone(), outcomes.clone());
        async move {
            match read(job, &fetcher).await {
                Read::Body(job) => drop(bodies.send(job).await),
                Read::Failed(job, error) => match error.verdict() {
                    Verdict::Reject(code) => drop(outcomes.send(job.reject(code, error.to_string())).await),
                    Verdict::Retry(reason) => job.retry(reason, &error, &metrics),
                },
            }
            Ok(())
        }
    })
    .await
}

enum Read {
    Body(Job<Body>),
    Failed(Job<()>, FetchError),
}

async fn read(mut job: Job<()>, fetcher: &Fetcher) -> Read {
    let Some(object) = job.facts.object.clone() else {
        return Read::Failed(job, FetchError::Gone);
    };
    let started = Instant::now();
    let fetched = fetcher.fetch(&object).await;
    job.facts.spent.fetch = Some(started.elapsed());
    match fetched {
        Ok(Fetched { bytes, generation, size, content_type, share }) => {
            job.facts.object = Some(ObjectId { generation: Some(generation), ..object });
            job.facts.size = Some(size);
            if !content_type.is_empty() {
                job.facts.content_type = Some(content_type);
            }
            Read::Body(job.with(Body { bytes, _share: share }))
        }
        Err(error) => Read::Failed(job, error),
    }
}
