//! `stoker label`: labels files, folders and objects, without events.
//!
//! The same decoding and the same engine as the worker's. While one batch runs, the next is read and decoded.

use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use serde::Serialize;
use tokio::task::JoinSet;

use stoker::app::{self, Loaded};
use stoker::config::{LabelArgs, LabelConfig};
use stoker::event::{Failure, ImageInfo, Label as Named};
use stoker::image::{Pixels, prepare};
use stoker::model::labels;
use stoker::pipeline::Engine;

use super::source::{Reader, Source};
use super::table::{Results, Row};
use super::{Exit, output, runtime};

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
    error: Option<Failure>,
}

/// A source read and decoded, or why that failed.
struct Input {
    source: String,
    decoded: Result<(Pixels, ImageInfo), Failure>,
}

impl Label {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let config = self.settings.check()?;
        runtime::block_on(|stop| async move {
            tokio::select! {
                exit = self.label(&config) => exit,
                () = stop.cancelled() => Ok(Exit::Aborted),
            }
        })
    }

    async fn label(&self, config: &LabelConfig) -> anyhow::Result<Exit> {
        let sources = Source::expand(&self.sources)?;
        let Loaded { bundle, classifier } = app::load(&config.model).await.map_err(app::AppError::from)?;
        let reader = Arc::new(Reader::new(&sources, config).await?);
        let engine = Engine::start(classifier)?;
        let preprocess = bundle.manifest().preprocess();
        let decode = |batch: &[Source]| {
            let batch = batch.to_vec();
            let (reader, limits, preprocess) = (reader.clone(), config.limits, preprocess);
            async move { inputs(batch, reader, move |bytes| prepare(bytes, &limits, &preprocess)).await }
        };

        let mut results = Results::new(false);
        let mut failed = 0;
        let mut batches = sources.chunks(config.max_batch);
        let mut ready = decode(batches.next().unwrap_or_default()).await?;
        while !ready.is_empty() {
            let (batch, pixels) = take_pixels(ready);
            let run = async { if pixels.is_empty() { Ok(Vec::new()) } else { engine.run(pixels).await } };
            let (logits, next) = tokio::join!(run, decode(batches.next().unwrap_or_default()));
            let mut logits = logits.map_err(app::AppError::from)?.into_iter();
            for (source, decoded) in batch {
                let mut line = Labeled { source, status: "failed", image: None, labels: Vec::new(), error: None };
                match decoded {
                    Ok(image) => {
                        let logits = logits.next().context("the engine answered too few images")?;
                        let (names, activation) = (bundle.labels(), bundle.manifest().activation);
                        let best = labels::top(&logits, names, activation, config.model.top_k, config.model.min_score)?;
                        line.status = "labeled";
                        line.image = Some(image);
                        line.labels = best.into_iter().map(Into::into).collect();
                    }
                    Err(failure) => {
                        failed += 1;
                        line.error = Some(failure);
                    }
                }
                if self.json {
                    output::line(serde_json::to_string(&line)?)?;
                } else {
                    results.add(Row {
                        name: &line.source,
                        labels: &line.labels,
                        error: line.error.as_ref(),
                        timing: None,
                    });
                }
            }
            ready = next?;
        }
        if !self.json {
            output::line(results)?;
        }
        Ok(if failed == 0 { Exit::Done } else { Exit::Failed })
    }
}

/// Takes the pixels of what was decoded out of a batch, in order.
#[expect(clippy::type_complexity, reason = "one pair of lists, used once")]
fn take_pixels(batch: Vec<Input>) -> (Vec<(String, Result<ImageInfo, Failure>)>, Vec<Pixels>) {
    let mut pixels = Vec::new();
    let inputs = batch.into_iter().map(|Input { source, decoded }| {
        let image = decoded.map(|(image, info)| {
            pixels.push(image);
            info
        });
        (source, image)
    });
    (inputs.collect(), pixels)
}

/// Reads and decodes one batch of sources at a time, in parallel, keeping their order.
async fn inputs<Decode>(batch: Vec<Source>, reader: Arc<Reader>, decode: Decode) -> anyhow::Result<Vec<Input>>
where
    Decode: Fn(&[u8]) -> Result<stoker::image::Prepared, stoker::image::ImageError> + Clone + Send + 'static,
{
    let mut reading = JoinSet::new();
    let count = batch.len();
    for (index, source) in batch.into_iter().enumerate() {
        let (reader, decode) = (reader.clone(), decode.clone());
        reading.spawn(async move {
            let decoded = match reader.read(&source).await {
                Ok(bytes) => tokio::task::spawn_blocking(move || decode(&bytes))
                    .await?
                    .map(|prepared| (prepared.pixels, prepared.info.into()))
                    .map_err(|error| Failure::new(error.code(), error.to_string())),
                Err(failure) => Err(failure?),
            };
            anyhow::Ok((index, Input { source: source.to_string(), decoded }))
        });
    }
    let mut inputs: Vec<Option<Input>> = (0..count).map(|_| None).collect();
    while let Some(read) = reading.join_next().await {
        let (index, input) = read??;
        inputs[index] = Some(input);
    }
    Ok(inputs.into_iter().flatten().collect())
}
