//! `stoker demo`: the whole path on this machine, through Google's own clients.
//!
//! An in-process Cloud Storage takes the photos and sends its notifications to an in-process Pub/Sub; the same
//! pipeline as `stoker run` works through them; the results come back over a subscription like anybody's.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Args;
use google_cloud_storage::client::Storage;
use tokio::sync::mpsc::Receiver;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use stoker::app::{self, AppError};
use stoker::clients::Connector;
use stoker::config::{LabelArgs, RunArgs, RunConfig};
use stoker::download::ModelSource;
use stoker::event::LabelResult;
use stoker::local::{Payload, Services, Settings, SubscriptionSettings};
use stoker::metrics::{Counts, Metrics};

use super::output::{self, progress};
use super::source::{Listing, warn};
use super::table::{Results, Row};
use super::{Exit, runtime};
use photos::Photo;

mod photos;
mod results;

const BUCKET: &str = "uploads";
const UPLOADS_TOPIC: &str = "projects/demo/topics/uploads";
const UPLOADS: &str = "projects/demo/subscriptions/uploads";
const RESULTS_TOPIC: &str = "projects/demo/topics/results";
const RESULTS: &str = "projects/demo/subscriptions/results";

/// Photos in the bucket at a time, so that a large folder does not fill the memory.
const WINDOW: usize = 64;

/// Loopback takes a 64 MiB object in under a second.
const UPLOAD_DEADLINE: Duration = Duration::from_secs(20);

/// Without a result for this long, something is stuck.
const PATIENCE: Duration = Duration::from_secs(120);

/// See it work: everything on this machine, with sample photos or your own
#[derive(Args, Debug)]
pub(crate) struct Demo {
    /// Folder with photos, all files below it; without it, the sample photos
    dir: Option<PathBuf>,
    #[command(flatten)]
    settings: LabelArgs,
}

/// What came back.
struct Finished {
    /// By object name.
    results: BTreeMap<String, LabelResult>,
    /// Photos that could not be uploaded.
    left_out: usize,
    /// From the first upload to the last result.
    took: Duration,
}

impl Demo {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let in_bucket = matches!(self.settings.check()?.model.source, ModelSource::Bucket(_));
        ensure!(
            !in_bucket,
            "the demo's Cloud Storage is its own: copy the model to a directory and give that to --model"
        );
        let Listing { found: photos, left_out } = photos::find(self.dir.as_deref())?;
        left_out.iter().for_each(|problem| warn(problem));
        let complete = left_out.is_empty();
        runtime::block_on(|stop| async move {
            Ok(match self.demo(photos, stop).await? {
                Exit::Done if !complete => Exit::Failed,
                exit => exit,
            })
        })
    }

    async fn demo(self, photos: Vec<Photo>, stop: CancellationToken) -> anyhow::Result<Exit> {
        let services = start_services().await?;
        let (pubsub, storage) = (services.pubsub_endpoint(), services.storage_endpoint());
        let config = RunArgs::from_flags([
            ("--pubsub-endpoint", pubsub.as_str()),
            ("--storage-endpoint", storage.as_str()),
            ("--subscription", UPLOADS),
            ("--results-topic", RESULTS_TOPIC),
        ])?;
        let config = config.with_label(&self.settings).check()?;
        let connector = Connector::new(config.services.clone()).await.map_err(AppError::from)?;
        let bucket = connector.storage().await.map_err(AppError::from)?;
        let mut reading = JoinSet::new();
        let results = results::read(connector.subscriber().await.map_err(AppError::from)?, RESULTS, &mut reading);

        let metrics = Arc::new(Metrics::default());
        let finish = CancellationToken::new();
        let mut worker = start_worker(config, metrics.clone(), finish.clone());
        let finished = tokio::select! {
            finished = collect(&services, &bucket, photos, results) => finished?,
            () = stop.cancelled() => return Ok(Exit::Aborted),
            Some(ended) = worker.join_next() => {
                ended??;
                bail!("the worker ended before its work was done");
            }
        };
        finish.cancel();
        while let Some(ended) = worker.join_next().await {
            ended??;
        }
        services.shutdown().await;
        let failed = finished.results.values().filter(|result| result.error.is_some()).count() + finished.left_out;
        report(&finished, &metrics.snapshot())?;
        Ok(if failed == 0 { Exit::Done } else { Exit::Failed })
    }
}

async fn start_services() -> anyhow::Result<Services> {
    let services = Services::start(Settings::default()).await.context("cannot listen on loopback")?;
    services.create_topic(UPLOADS_TOPIC)?;
    services.create_topic(RESULTS_TOPIC)?;
    services.create_subscription(SubscriptionSettings::new(UPLOADS, UPLOADS_TOPIC))?;
    services.create_subscription(SubscriptionSettings::new(RESULTS, RESULTS_TOPIC))?;
    services.create_bucket(BUCKET)?;
    services.notify(BUCKET, UPLOADS_TOPIC, Payload::JsonApiV1)?;
    Ok(services)
}

fn start_worker(
    config: RunConfig,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
) -> JoinSet<Result<stoker::pipeline::Ended, AppError>> {
    let mut worker = JoinSet::new();
    worker.spawn(async move { app::run(&config, metrics, stop).await });
    worker
}

/// Uploads the photos, a window at a time, and gathers a result for each that could be uploaded.
async fn collect(
    services: &Services,
    bucket: &Storage,
    photos: Vec<Photo>,
    mut results: Receiver<LabelResult>,
) -> anyhow::Result<Finished> {
    let bar = progress(photos.len());
    let started = Instant::now();
    let mut photos = photos.into_iter();
    let (mut waiting, mut left_out) = (0, 0);
    let mut finished = BTreeMap::new();
    loop {
        while waiting < WINDOW
            && let Some(photo) = photos.next()
        {
            match upload(bucket, &photo).await {
                Ok(()) => waiting += 1,
                Err(error) => {
                    left_out += 1;
                    bar.inc(1);
                    bar.suspend(|| warn(&format!("{error:#}")));
                }
            }
        }
        if waiting == 0 {
            break;
        }
        let result = timeout(PATIENCE, results.recv()).await;
        let result = result.with_context(|| format!("no result for {PATIENCE:?}"))?.context("the results ended")?;
        let object = result.object.as_ref().context("a result without an object")?;
        let name = object.name.clone();
        if finished.insert(name.clone(), result).is_none() {
            waiting -= 1;
            bar.inc(1);
            services.delete_object(BUCKET, &name)?;
        }
    }
    Ok(Finished { results: finished, left_out, took: started.elapsed() })
}

async fn upload(bucket: &Storage, photo: &Photo) -> anyhow::Result<()> {
    let limit = Settings::default().max_object_bytes;
    let write = bucket
        .write_object(format!("projects/_/buckets/{BUCKET}"), &photo.name, photo.read(limit).await?)
        .set_content_type(photo.content_type())
        // The in-process service takes an object in one piece.
        .with_resumable_upload_threshold(limit)
        .send_buffered();
    timeout(UPLOAD_DEADLINE, write)
        .await
        .with_context(|| format!("{}: the upload took over {UPLOAD_DEADLINE:?}", photo.name))?
        .with_context(|| format!("{}: cannot be uploaded", photo.name))?;
    Ok(())
}

fn report(finished: &Finished, counts: &Counts) -> anyhow::Result<()> {
    let mut table = Results::new(true);
    for (name, result) in &finished.results {
        let (labels, error) = (&result.labels[..], result.error.as_ref());
        table.add(Row { name, labels, error, timing: Some(&result.timing_ms) });
    }
    output::line(table)?;
    let photos = finished.results.len();
    let seconds = finished.took.as_secs_f64();
    let sizes = counts.batch_sizes.iter().map(|(size, count)| format!("{count} of {size}"));
    output::line(format!(
        "{photos} photos in {seconds:.1} s ({:.1}/s, start-up included): {} labeled, {} failed.",
        photos as f64 / seconds,
        counts.labeled,
        counts.failed_total(),
    ))?;
    if let Some(result) = finished.results.values().next() {
        let model = &result.model;
        output::line(format!(
            "Model {} on {}. Batches: {}.",
            model.name,
            model.device,
            sizes.collect::<Vec<_>>().join(", ")
        ))?;
    }
    Ok(())
}
