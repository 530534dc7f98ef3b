//! The worker, put together: model loaded and proven, clients built, pipeline run until told to stop.

use std::sync::Arc;
use std::time::Instant;

use tokio_util::sync::CancellationToken;

use crate::clients::{ConnectError, Connector};
use crate::config::{FetchConfig, ModelConfig, PlanConfig, RunConfig, ServiceConfig};
use crate::download::{Cache, DownloadError, Downloader, ModelSource};
use crate::metrics::Metrics;
use crate::model::golden::{self, GoldenError, GoldenReport};
use crate::model::{self, Bundle, BundleError, Classifier, Device, Formulations, GpuSettings, ModelError};
use crate::pipeline::{self, Ended, Fatal, Parts};
use crate::planning::{self, PlanningError};
use crate::reload::{Follower, Refusal};
use crate::vram::Plan;

/// Why the worker could not start, or why it gave up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AppError {
    /// No credentials, or an unusable endpoint.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The model could not be loaded, or computes wrong on this device.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The device's memory does not do, or the plan is not for it.
    #[error(transparent)]
    Planning(#[from] PlanningError),
    /// The pipeline gave up.
    #[error(transparent)]
    Fatal(#[from] Fatal),
}

/// Why there is no model to work with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The bundle is not usable.
    #[error("the model bundle {name} is not usable")]
    Bundle {
        /// Its directory, or `builtin`.
        name: String,
        /// What is wrong with it.
        source: BundleError,
    },
    /// The bundle cannot be read from Cloud Storage, or is not usable.
    #[error("the model bundle {name} is not usable")]
    Download {
        /// Its place.
        name: String,
        /// Why.
        source: DownloadError,
    },
    /// The pointer object leads to no model.
    #[error("no model to begin with (--model-refresh)")]
    Pointer(#[from] Refusal),
    /// The device does not take the model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The device computes something else than the bundle's golden logits.
    #[error(transparent)]
    Golden(#[from] GoldenError),
    /// The loading thread panicked.
    #[error("loading the model panicked")]
    Panicked(#[from] tokio::task::JoinError),
}

/// A model on its device, golden images passed.
pub struct Loaded {
    /// What the model is and how its input and output are read.
    pub bundle: Arc<Bundle>,
    /// The model.
    pub classifier: Box<dyn Classifier>,
    /// How far its golden images were off.
    pub golden: GoldenReport,
    /// How its convolutions are computed there.
    pub formulations: Formulations,
}

/// Runs the worker until `stop` is cancelled and what it holds is finished or returned.
///
/// # Errors
/// It could not start, or something made further work wrong or pointless. Every message is back with Pub/Sub.
pub async fn run(config: &RunConfig, metrics: Arc<Metrics>, stop: CancellationToken) -> Result<Ended, AppError> {
    let parts = tokio::select! {
        parts = prepare(config) => parts?,
        () = stop.cancelled() => return Ok(Ended::Drained),
    };
    tracing::info!(subscription = config.subscription, results_topic = config.results_topic, "pulling");
    let ended = pipeline::run(parts, config, metrics.clone(), stop).await;
    let counts = metrics.snapshot();
    let (labeled, failed, acked) = (counts.labeled, counts.failed_total(), counts.acked);
    match &ended {
        Ok(Ended::Drained) => tracing::info!(labeled, failed, acked, "drained"),
        Ok(Ended::Returned) => {
            tracing::warn!(labeled, failed, acked, "the grace ran out; the rest is back with Pub/Sub")
        }
        Err(_) => tracing::error!(labeled, failed, acked, "gave up; what was held goes back to Pub/Sub"),
    }
    Ok(ended?)
}

async fn prepare(config: &RunConfig) -> Result<Parts, AppError> {
    let connector = Connector::new(config.services.clone()).await?;
    let start = planning::Start::new(&config.vram, config.model.device)?;
    let (mut model, follower) = match &config.refresh {
        Some(refresh) => {
            let storage = connector.storage().await?;
            let mut follower = Follower::new(storage, refresh, &config.model, &config.pipeline.fetch);
            (load_pointed(&mut follower, config, start.formulations()).await?, Some(follower))
        }
        None => {
            let (services, fetch) = (&config.services, &config.pipeline.fetch);
            (load_with(&config.model, services, fetch, start.formulations()).await?, None)
        }
    };
    let (vram, host, gpu) = (config.vram.clone(), config.host(), config.model.gpu.clone());
    let sizing = tokio::task::spawn_blocking(move || {
        let sizing = start.size(&mut model, &vram, &host, &gpu);
        (model, sizing)
    });
    let (model, sizing) = sizing.await.map_err(LoadError::from)?;
    let sizing = sizing?;
    Ok(Parts {
        sizing,
        clients: connector.worker(&config.results_topic, config.pipeline.publish_timeout).await?,
        model,
        follower,
    })
}

/// Loads the model and runs its golden images, off the async runtime.
///
/// # Errors
/// The bundle cannot be read or used, the device does not take it, or it computes something else than the golden logits.
pub async fn load(config: &ModelConfig, services: &ServiceConfig, fetch: &FetchConfig) -> Result<Loaded, AppError> {
    load_with(config, services, fetch, Formulations::default()).await
}

async fn load_with(
    config: &ModelConfig,
    services: &ServiceConfig,
    fetch: &FetchConfig,
    known: Formulations,
) -> Result<Loaded, AppError> {
    let started = Instant::now();
    let bundle = read(config, services, fetch).await?;
    let (device, gpu) = (config.device, config.gpu.clone());
    let loading = tokio::task::spawn_blocking(move || load_bundle(bundle, device, &gpu, known, started));
    Ok(loading.await.map_err(LoadError::from)??)
}

/// Measures a plan for the model and the device, and decides. Nothing is pulled.
///
/// # Errors
/// As [`load`]; or the device's memory is not known, does not do, or is not what `--plan` is for.
pub async fn plan(config: &PlanConfig) -> Result<Plan, AppError> {
    let PlanConfig { services, model: about, vram, host } = config.clone();
    let start = planning::Start::new(&vram, about.device)?;
    let mut model = load_with(&about, &services, &host.fetch, start.formulations()).await?;
    let planning = tokio::task::spawn_blocking(move || start.plan(&mut model, &vram, &host, &about.gpu));
    Ok(planning.await.map_err(LoadError::from)??)
}

/// The same with the model that the pointer object names.
async fn load_pointed(follower: &mut Follower, config: &RunConfig, known: Formulations) -> Result<Loaded, LoadError> {
    let (started, device, gpu) = (Instant::now(), config.model.device, config.model.gpu.clone());
    let bundle = follower.first().await?;
    tokio::task::spawn_blocking(move || load_bundle(bundle, device, &gpu, known, started)).await?
}

/// Reads the bundle from where it is.
async fn read(config: &ModelConfig, services: &ServiceConfig, fetch: &FetchConfig) -> Result<Bundle, AppError> {
    if let ModelSource::Bucket(location) = &config.source {
        let storage = Connector::for_storage(services.clone()).await?.storage().await?;
        let cache = Cache::new(config.cache.clone(), config.cache_bytes);
        let read = Downloader::new(storage, cache, fetch).download(location).await;
        return Ok(read.map_err(|source| LoadError::Download { name: location.to_string(), source })?);
    }
    let source = config.source.clone();
    let reading = tokio::task::spawn_blocking(move || match &source {
        ModelSource::Directory(directory) => Bundle::open(directory),
        ModelSource::Builtin | ModelSource::Bucket(_) => Bundle::builtin(),
    });
    let bundle = reading.await.map_err(LoadError::from)?;
    Ok(bundle.map_err(|source| LoadError::Bundle { name: config.source.to_string(), source })?)
}

fn load_bundle(
    mut bundle: Bundle,
    device: Device,
    gpu: &GpuSettings,
    mut formulations: Formulations,
    started: Instant,
) -> Result<Loaded, LoadError> {
    let mut classifier = model::load_with(&bundle, device, gpu, &mut formulations)?;
    bundle.drop_weights();
    let report = golden::check(&mut *classifier, &bundle)?;
    tracing::info!(
        model = bundle.manifest().name,
        digest = bundle.digest(),
        device = classifier.device(),
        golden_images = report.images,
        max_error = report.max_error,
        ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
        "model loaded"
    );
    Ok(Loaded { bundle: Arc::new(bundle), classifier, golden: report, formulations })
}
