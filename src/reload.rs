//! Follows a pointer object that names the model to run.
//!
//! In: `gs://BUCKET/NAME`, a small JSON object (see [`Pointer`]), read again and again; while it does not change, a read
//! is one request that brings nothing. Out: the model that it names, read, verified and loaded beside the one that runs,
//! or a [`Refusal`]. What follows from either is the pipeline's matter: it proves the model on the device and puts it in
//! the old one's place, or goes on with the old one. `docs/reload.md` is the story for people.

mod memory;
mod pointer;
mod refusal;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use backoff::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use google_cloud_storage::client::Storage;
use tokio::task::spawn_blocking;

pub use pointer::{Pointer, PointerError};
pub use refusal::{Reason, Refusal};

use crate::config::{FetchConfig, ModelConfig, RefreshConfig};
use crate::download::{Cache, Downloader};
use crate::model::{self, Bundle, Classifier, Device, Formulations, GpuSettings};
use memory::Memory;
use pointer::Reader;

/// Longest pause between two attempts, unless the interval itself is longer.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// The pointer object, what it said last, and the means to load what it says.
#[derive(Debug)]
pub struct Follower {
    reader: Reader,
    downloader: Downloader,
    device: Device,
    gpu: GpuSettings,
    interval: Duration,
    /// After attempts that failed and may yet succeed: how long until the next ones.
    pauses: Option<ExponentialBackoff>,
    /// When the next attempt is due; `None` is at once.
    due: Option<Instant>,
    /// What the pointer says, until it is done or refused for good.
    pending: Option<Pointer>,
    /// What has been said of this version of the pointer.
    told: Vec<Reason>,
}

/// A model loaded beside the one that runs; its golden images have not been run.
pub(crate) struct Candidate {
    pub(crate) bundle: Arc<Bundle>,
    pub(crate) classifier: Box<dyn Classifier>,
    /// When its loading began.
    pub(crate) started: Instant,
}

impl Follower {
    /// Follows the pointer of `config`, not yet read.
    #[must_use]
    pub fn new(storage: Storage, config: &RefreshConfig, model: &ModelConfig, fetch: &FetchConfig) -> Self {
        Self {
            reader: Reader::new(storage.clone(), config.pointer.clone(), fetch.quota_project.clone()),
            downloader: Downloader::new(storage, Cache::new(model.cache.clone(), model.cache_bytes), fetch),
            device: model.device,
            gpu: model.gpu.clone(),
            interval: config.interval,
            pauses: None,
            due: None,
            pending: None,
            told: Vec::new(),
        }
    }

    /// The model that the pointer names at the start, verified. Nothing runs yet, so it need not fit beside another.
    ///
    /// # Errors
    /// [`Refusal`]: there is no model to begin with.
    pub async fn first(&mut self) -> Result<Bundle, Refusal> {
        let pointer = self.reader.first().await?;
        tracing::info!(pointer = %self.reader.object(), model = %pointer.model, digest = pointer.digest, "model chosen");
        self.bundle(&pointer, None).await
    }

    /// Waits for the next look at the pointer.
    pub(crate) async fn pause(&self) {
        tokio::time::sleep(self.interval).await;
    }

    /// Loads the model that the pointer names, unless it is the one that runs, of this digest, was refused for good, or
    /// was refused for now and its next attempt is not due. Another pointer is followed at once.
    ///
    /// # Errors
    /// [`Refusal`], to be given to [`Follower::refused`].
    pub(crate) async fn look(
        &mut self,
        running: &str,
        suspicion: Arc<AtomicBool>,
    ) -> Result<Option<Candidate>, Refusal> {
        match self.reader.changed().await {
            Ok(changed) => {
                self.told.retain(|told| *told != Reason::PointerUnreadable);
                if let Some(pointer) = changed {
                    self.told.clear();
                    self.done();
                    self.pending = Some(pointer);
                }
            }
            Err(error) => {
                if error.is_about_content() {
                    self.told.clear();
                    self.done();
                }
                return Err(error.into());
            }
        }
        let waits = self.due.is_some_and(|due| Instant::now() < due);
        let Some(pointer) = self.pending.clone().filter(|_| !waits) else { return Ok(None) };
        if pointer.digest == running {
            tracing::info!(pointer = %self.reader.object(), digest = running, "the pointer names the model that runs");
            self.done();
            return Ok(None);
        }
        let started = Instant::now();
        tracing::info!(model = %pointer.model, digest = pointer.digest, "loading another model");
        let bundle = self.bundle(&pointer, Some(Memory::of_this_process())).await?;
        let (device, gpu) = (self.device, self.gpu.clone());
        // Set on the loading thread: nobody may be here any more when it fails.
        let (bundle, classifier) = spawn_blocking(move || {
            let failing = Failing(Some(suspicion));
            load(bundle, device, &gpu).inspect(|_| failing.not())
        })
        .await??;
        Ok(Some(Candidate { bundle, classifier, started }))
    }

    /// Nothing is left to do for what the pointer says.
    pub(crate) fn done(&mut self) {
        self.pending = None;
        self.pauses = None;
        self.due = None;
    }

    /// Logs the refusal once for each version of the pointer, and decides whether to try again. Returns the reason to
    /// count, the first time.
    pub(crate) fn refused(&mut self, refusal: &Refusal) -> Option<Reason> {
        let reason = refusal.reason();
        if !reason.may_pass() {
            self.done();
        } else if reason != Reason::PointerUnreadable {
            let longest = self.interval.max(LONGEST_PAUSE);
            let pauses = || {
                ExponentialBuilder::default()
                    .with_min_delay(self.interval)
                    .with_max_delay(longest)
                    .with_factor(2.0)
                    .with_jitter()
                    .without_max_times()
                    .build()
            };
            let pause = self.pauses.get_or_insert_with(pauses).next().unwrap_or(longest);
            self.due = Some(Instant::now() + pause);
        }
        if self.told.contains(&reason) {
            return None;
        }
        self.told.push(reason);
        let (pointer, code, again) = (self.reader.object(), reason.as_str(), reason.may_pass());
        tracing::error!(%pointer, reason = code, error = refusal.chain(), again, "model refused; the old one goes on");
        Some(reason)
    }

    async fn bundle(&self, pointer: &Pointer, beside: Option<Memory>) -> Result<Bundle, Refusal> {
        let (manifest, digest) = self.downloader.manifest(&pointer.model).await?;
        pointer.check(&digest)?;
        if let Some(memory) = beside {
            memory::fits(&manifest, memory)?;
        }
        let bundle = self.downloader.download(&pointer.model).await?;
        // It may have been replaced in between.
        pointer.check(bundle.digest())?;
        Ok(bundle)
    }
}

/// Says that something went wrong, by an error or a panic, unless it is told that nothing did.
struct Failing(Option<Arc<AtomicBool>>);

impl Failing {
    fn not(mut self) {
        self.0 = None;
    }
}

impl Drop for Failing {
    fn drop(&mut self) {
        if let Some(suspicion) = &self.0 {
            suspicion.store(true, Ordering::SeqCst);
        }
    }
}

fn load(mut bundle: Bundle, device: Device, gpu: &GpuSettings) -> Result<(Arc<Bundle>, Box<dyn Classifier>), Refusal> {
    let classifier = model::load_with(&bundle, device, gpu, &mut Formulations::default())?;
    bundle.drop_weights();
    Ok((Arc::new(bundle), classifier))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RunArgs;
    use google_cloud_auth::credentials::anonymous;

    #[tokio::test]
    async fn what_may_pass_is_told_once_and_tried_with_growing_pauses() {
        let flags = [
            ("--subscription", "projects/p/subscriptions/s"),
            ("--results-topic", "projects/p/topics/t"),
            ("--model-refresh", "gs://models/current.json"),
        ];
        let config = RunArgs::from_flags(flags).unwrap().check().unwrap();
        let storage = Storage::builder().with_credentials(anonymous::Builder::new().build()).build().await.unwrap();
        let refresh = config.refresh.unwrap();
        let mut follower = Follower::new(storage, &refresh, &config.model, &config.pipeline.fetch);
        let pointer = format!(r#"{{"model": "gs://models/v3", "digest": "sha256:{}"}}"#, "0".repeat(64));
        follower.pending = Some(Pointer::parse(pointer.as_bytes()).unwrap());

        let begun = Instant::now();
        let no_room = Refusal::DoesNotFit(memory::DoesNotFit { files: 3, needed: 2, left: 1, limit: "a limit" });
        for (least, counted) in [(60, Some(Reason::DoesNotFit)), (120, None), (240, None), (480, None), (600, None)] {
            assert_eq!(follower.refused(&no_room), counted, "told once");
            assert!(follower.due.unwrap() >= begun + Duration::from_secs(least));
        }
        // Looks at the pointer go on, and whether they succeed changes nothing about the model.
        let due = follower.due;
        let unread = || PointerError::TimedOut { object: refresh.pointer.clone() }.into();
        assert_eq!([follower.refused(&unread()), follower.refused(&unread())], [Some(Reason::PointerUnreadable), None]);
        assert!(follower.due == due && follower.pending.is_some());
        // What will not pass is not tried again.
        let other = Refusal::Digest { place: String::new(), expected: String::new(), found: String::new() };
        assert_eq!(follower.refused(&other), Some(Reason::BundleInvalid));
        assert!(follower.due.is_none() && follower.pending.is_none());
    }
}
