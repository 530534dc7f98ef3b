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

mod args;
mod cache;
mod check;
mod problems;
mod proxy;

pub use args::{BundleArgs, DeviceArgs, FetchArgs, FilterArgs, ImageArgs, LabelArgs, ModelArgs, RunArgs, ServiceArgs};
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
    /// Messages leased at a time; Pub/Sub stops sending at this many.
    pub max_outstanding: usize,
    /// How far ahead each lease is extended.
    pub lease_extension: Duration,
    /// A message held longer than this goes to another worker.
    pub max_lease: Duration,
    /// How objects are read.
    pub fetch: FetchConfig,
    /// Threads that decode.
    pub decode_threads: usize,
    /// Images in one batch, at most.
    pub max_batch: usize,
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
