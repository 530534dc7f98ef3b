//! Arguments as typed in, settings that hold together out.
//!
//! The `…Args` types are what people type, flags and `STOKER_…` variables alike; their `check` methods turn them into
//! the `…Config` types or into one [`ConfigError`] that lists everything wrong at once. Nothing else in the crate
//! reads the environment.

use std::path::PathBuf;
use std::time::Duration;

use crate::download::ModelSource;
use crate::event::{Filters, ObjectId};
use crate::image::Limits;
use crate::model::{Device, GpuSettings};
use crate::vram::Threads;

mod args;
mod cache;
mod check;
mod problems;
mod proxy;

pub use args::{
    BundleArgs, DeviceArgs, FetchArgs, FilterArgs, ImageArgs, LabelArgs, ModelArgs, PlanArgs, RunArgs, ServiceArgs,
    VramArgs,
};
pub use problems::ConfigError;

/// Everything `stoker run` needs, checked.
#[derive(Clone, Debug)]
pub struct RunConfig {
    /// Where Google's services are.
    pub services: ServiceConfig,
    /// Full name, `projects/P/subscriptions/S`.
    pub subscription: String,
    /// Full name, `projects/P/topics/T`.
    pub results_topic: String,
    /// Which uploads are labelled.
    pub filters: Filters,
    /// The model and its device.
    pub model: ModelConfig,
    /// How much of the device is used, and how that is found out.
    pub vram: VramConfig,
    /// Pause between two runs of the golden images; `None` runs them at the start and after device errors alone.
    pub canary_interval: Option<Duration>,
    /// The pointer object that names the model, where one is followed.
    pub refresh: Option<RefreshConfig>,
    /// Sizes and deadlines of the hops.
    pub pipeline: PipelineConfig,
    /// What an image may cost.
    pub limits: Limits,
    /// Name of this worker in results.
    pub instance: String,
}

/// Where Google's services are.
#[derive(Clone, Debug, Default)]
pub struct ServiceConfig {
    /// Pub/Sub endpoint instead of Google's.
    pub pubsub_endpoint: Option<String>,
    /// Cloud Storage endpoint instead of Google's.
    pub storage_endpoint: Option<String>,
}

/// Which model runs where, and what is kept of its answer.
#[derive(Clone, Debug)]
pub struct ModelConfig {
    /// Where the model's bundle is.
    pub source: ModelSource,
    /// Directory that keeps bundles from Cloud Storage; `None` keeps none.
    pub cache: Option<PathBuf>,
    /// Most bytes that it keeps.
    pub cache_bytes: u64,
    /// Device to run on.
    pub device: Device,
    /// How a GPU's kernels are made.
    pub gpu: GpuSettings,
    /// Labels kept an image, at most.
    pub top_k: usize,
    /// Labels below this score are left out.
    pub min_score: f32,
}

/// How much of the device is used.
#[derive(Clone, Debug, PartialEq)]
pub struct VramConfig {
    /// Where the plan comes from.
    pub plan: PlanSource,
    /// Share of the memory that others leave.
    pub fraction: f64,
    /// Most bytes, where less than that share.
    pub limit: Option<u64>,
}

/// Where the plan comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanSource {
    /// Measured at the start.
    Measure,
    /// Nowhere: batches are of `--max-batch` and split where they do not fit.
    Off,
    /// A file that `stoker plan` wrote.
    File(PathBuf),
}

/// Everything `stoker plan` needs, checked.
#[derive(Clone, Debug)]
pub struct PlanConfig {
    /// Where Google's services are, for a model in Cloud Storage.
    pub services: ServiceConfig,
    /// The model and its device.
    pub model: ModelConfig,
    /// How much of the device may be used.
    pub vram: VramConfig,
    /// What the worker does beside the device.
    pub host: HostConfig,
}

/// What a worker takes of the host, and how much of everything it may have at a time.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// How objects are read.
    pub fetch: FetchConfig,
    /// What an image may cost.
    pub limits: Limits,
    /// Threads that decode.
    pub decode_threads: Threads,
    /// Messages leased at a time; `None` leaves it to the plan.
    pub max_outstanding: Option<usize>,
    /// Images in one batch, at most; `None` leaves it to the plan.
    pub max_batch: Option<usize>,
}

impl RunConfig {
    /// What this worker takes of the host.
    pub fn host(&self) -> HostConfig {
        let PipelineConfig { fetch, decode_threads, max_outstanding, max_batch, .. } = self.pipeline.clone();
        HostConfig { fetch, limits: self.limits, decode_threads, max_outstanding, max_batch }
    }
}

/// How a pointer object is followed.
#[derive(Clone, Debug)]
pub struct RefreshConfig {
    /// The object, of no particular generation.
    pub pointer: ObjectId,
    /// Pause between two looks at it.
    pub interval: Duration,
}

/// Sizes and deadlines of the hops. Each number bounds memory or time.
#[derive(Clone, Debug)]
pub struct PipelineConfig {
    /// Messages leased at a time, at which Pub/Sub stops sending; `None` leaves it to the plan.
    pub max_outstanding: Option<usize>,
    /// How far ahead each lease is extended.
    pub lease_extension: Duration,
    /// A message held longer than this goes to another worker.
    pub max_lease: Duration,
    /// A stream on which nothing comes for so long is replaced; zero: never.
    pub stream_silence: Duration,
    /// An object whose result was confirmed within this time makes no work again; zero: it does.
    pub repeat_window: Duration,
    /// How objects are read.
    pub fetch: FetchConfig,
    /// Threads that decode.
    pub decode_threads: Threads,
    /// Images in one batch, at most; `None` leaves it to the plan.
    pub max_batch: Option<usize>,
    /// Deadline of one result's publish, retries included.
    pub publish_timeout: Duration,
    /// How long a stop may take to finish what is held.
    pub grace: Duration,
}

/// How objects are read.
#[derive(Clone, Debug)]
pub struct FetchConfig {
    /// Objects read at a time.
    pub concurrency: usize,
    /// Deadline of one object's read, retries included.
    pub timeout: Duration,
    /// Largest object that is read, stored or unzipped.
    pub max_object_bytes: u64,
    /// Object bytes held at a time, over all reads.
    pub budget_bytes: u64,
    /// Project billed for reads, which requester-pays buckets ask for.
    pub quota_project: Option<String>,
}

/// Everything `stoker label` needs, checked.
#[derive(Clone, Debug)]
pub struct LabelConfig {
    /// Where Google's services are.
    pub services: ServiceConfig,
    /// The model and its device.
    pub model: ModelConfig,
    /// How `gs://` objects are read.
    pub fetch: FetchConfig,
    /// What an image may cost.
    pub limits: Limits,
    /// Images in one batch, at most.
    pub max_batch: usize,
}
