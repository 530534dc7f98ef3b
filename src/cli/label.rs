//! `stoker label`: labels files, folders and objects, without events.
//!
//! The same decoding and the same engine as the worker's. While one batch runs, the next is read and decoded.

use std::sync::Arc;
use std::thread::available_parallelism;

use anyhow::Context;
use clap::Args;
use indicatif::ProgressBar;
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use stoker::app;
use stoker::config::{LabelArgs, LabelConfig};
use stoker::event::{Failure, ImageInfo, Label as Named};
use stoker::image::{Limits, Pixels, Preprocess, prepare};
use stoker::metrics::Metrics;
use stoker::model::{Answer, labels};
use stoker::pipeline::{Admission, Engine};
use stoker::vram::Ceiling;

use super::output::{self, progress};
use super::source::{Listing, Reader, Source, Unread, warn};
use super::table::{Results, Row};
use super::{Exit, runtime};

/// Label files, folders and gs:// objects, without events
#[derive(Args, Debug)]
pub(crate) struct Label {
    /// Files, folders (all files below them) and objects as gs://BUCKET/NAME
    #[arg(required = true, value_name = "FILE|DIR|gs://…")]
    sources: Vec<String>,
    /// Print JSON, one line an image
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    settings: LabelArgs,
}

/// One line of `--json`.
#[derive(Debug, Serialize)]
struct Labeled {
    source: String,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<ImageInfo>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    labels: Vec<Named>,
    #[serde(skip_serializing_if = "Option::is_none")]
    embedding: Option<Vec<f32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Failure>,
}

/// A source read and decoded, or why that failed.
struct Input<T = (Pixels, ImageInfo)> {
    source: String,
    decoded: Result<T, Unread>,
}

/// Decodes on threads of the runtime, as many at a time as there are cores: each holds a whole picture.
#[derive(Clone)]
struct Decoder {
    reader: Arc<Reader>,
    limits: Limits,
    preprocess: Preprocess,
    turns: Arc<Semaphore>,
}

impl Label {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let config = self.settings.check()?;
        runtime::block_on(|stop| async move { self.label(&config, stop).await })
    }

    async fn label(&self, config: &LabelConfig, stop: CancellationToken) -> anyhow::Result<Exit> {
        let Listing { found: sources, left_out } = Listing::of(&self.sources)?;
        left_out.iter().for_each(|problem| warn(problem));
        let mut failed = left_out.len();
        let model = app::load(&config.model, &config.services, &config.fetch).await?;
        let bundle = model.bundle.clone();
        let decoder = Decoder {
            reader: Arc::new(Reader::new(&sources, config).await?),
            limits: config.limits,
            preprocess: bundle.manifest().preprocess(),
            turns: Arc::new(Semaphore::new(available_parallelism().map_or(1, usize::from))),
        };
        let metrics = Arc::new(Metrics::default());
        let admission = Admission::new(Ceiling::unmeasured(config.max_batch, 1), metrics.clone());
        let engine = Engine::start(model, admission, None, metrics)?;
        let bar = if self.json { ProgressBar::hidden() } else { progress(sources.len()) };

        let mut results = Results::new(false);
        let mut batches = sources.chunks(config.max_batch);
        let mut ready = decoder.inputs(batches.next().unwrap_or_default()).await?;
        while !ready.is_empty() && !stop.is_cancelled() {
            bar.inc(ready.len() as u64);
            let (batch, pixels) = take_pixels(ready);
            let run = async { if pixels.is_empty() { Ok(Vec::new()) } else { engine.run(pixels).await } };
            let (answers, next) = tokio::join!(run, decoder.inputs(batches.next().unwrap_or_default()));
            let mut answers = answers.map_err(app::AppError::from)?.into_iter();
            for Input { source, decoded } in batch {
                let mut line =
                    Labeled { source, status: "failed", image: None, labels: Vec::new(), embedding: None, error: None };
                match decoded {
                    Ok(image) => {
                        let Answer { logits, embedding } =
                            answers.next().context("the engine answered too few images")?;
                        let (names, activation) = (bundle.labels(), bundle.manifest().activation);
                        let best = labels::top(&logits, names, activation, config.model.top_k, config.model.min_score)?;
                        line.status = "labeled";
                        line.image = Some(image);
                        labels::check_finite(embedding.as_deref().unwrap_or_default())?;
                        line.embedding = embedding;
                        line.labels = best.into_iter().map(Into::into).collect();
                    }
                    Err(Unread::Failed(failure)) => {
                        failed += 1;
                        line.error = Some(failure);
                    }
                    Err(Unread::Unreadable(error)) => {
                        failed += 1;
                        bar.suspend(|| warn(&format!("{error:#}")));
                        continue;
                    }
                }
                if self.json {
                    output::line(serde_json::to_string(&line)?)?;
                } else {
                    let (labels, error) = (&line.labels[..], line.error.as_ref());
                    results.add(Row { name: &line.source, labels, error, timing: None });
                }
            }
            ready = next?;
        }
        drop(bar);
        if !self.json {
            output::line(results)?;
        }
        Ok(match failed {
            _ if stop.is_cancelled() => Exit::Aborted,
            0 => Exit::Done,
            _ => Exit::Failed,
        })
    }
}

impl Decoder {
    /// Reads and decodes sources side by side, keeping their order.
    async fn inputs(&self, batch: &[Source]) -> anyhow::Result<Vec<Input>> {
        let mut decoding = JoinSet::new();
        for (index, source) in batch.iter().cloned().enumerate() {
            let decoder = self.clone();
            decoding.spawn(async move { (index, decoder.input(source).await) });
        }
        let mut inputs = Vec::with_capacity(batch.len());
        while let Some(decoded) = decoding.join_next().await {
            let (index, input) = decoded?;
            inputs.push((index, input?));
        }
        inputs.sort_by_key(|(index, _)| *index);
        Ok(inputs.into_iter().map(|(_, input)| input).collect())
    }

    async fn input(self, source: Source) -> anyhow::Result<Input> {
        let _turn = self.turns.acquire().await?;
        let (limits, preprocess) = (self.limits, self.preprocess);
        let decoded = match self.reader.read(&source).await {
            Ok(bytes) => tokio::task::spawn_blocking(move || prepare(&bytes, &limits, &preprocess))
                .await?
                .map(|prepared| (prepared.pixels, prepared.info.into()))
                .map_err(|error| Unread::Failed(Failure::new(error.code(), error.to_string()))),
            Err(unread) => Err(unread),
        };
        Ok(Input { source: source.to_string(), decoded })
    }
}

/// Takes the pixels of what was decoded out of a batch, in order.
fn take_pixels(batch: Vec<Input>) -> (Vec<Input<ImageInfo>>, Vec<Pixels>) {
    let mut pixels = Vec::new();
    let inputs = batch.into_iter().map(|Input { source, decoded }| {
        let decoded = decoded.map(|(image, info)| {
            pixels.push(image);
            info
        });
        Input { source, decoded }
    });
    (inputs.collect(), pixels)
}
