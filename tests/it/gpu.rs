//! Models on a GPU: the answers of the processor at every batch size, however its kernels come about, and what is left
//! of the device after a failure.
//!
//! Needs `STOKER_TEST_DEVICE=cuda` or `vulkan`, or `vulkan:cpu` for Mesa's software driver, and the device's feature;
//! `docs/devices.md` has the commands. The libraries under a GPU are set up once in a process, so each job runs in a
//! process of its own: [`job`], in this program.
#![allow(clippy::print_stdout, reason = "figures are worth a look")]

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stoker::image::Pixels;
use stoker::model::{Bundle, Classifier, Device, DeviceError, GpuSettings, golden, load, load_with};

const DEVICE: &str = "STOKER_TEST_DEVICE";
const JOB: &str = "STOKER_TEST_JOB";
/// What begins the line with a job's outcome.
const OUTCOME: &str = "outcome: ";
/// Small, with depthwise convolutions: what GPUs get wrong most easily.
const MOBILE: &str = "efficientnet-lite1-timm";
/// The batch sizes that are compiled and tuned for.
const LADDER: [usize; 4] = [1, 2, 4, 8];

/// What a process is to do with a device.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Job {
    /// Name of a directory under `fixtures/networks`, or `builtin`.
    network: String,
    /// `model.json`'s fields that are replaced, and their values.
    edit: BTreeMap<String, Value>,
    batches: Vec<usize>,
    cache: Option<PathBuf>,
    fusion: bool,
}

/// What became of it.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Outcome {
    device: String,
    /// Largest error of the golden images' logits, or why they do not pass.
    golden: Option<Result<f32, String>>,
    batches: Vec<Batch>,
    /// A failure's kind and text.
    failure: Option<(String, String)>,
    seconds: f64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Batch {
    images: usize,
    /// Largest error of a logit or feature against the processor, relative to the largest of its image.
    error: f32,
    /// For the first time, and again.
    seconds: [f64; 2],
}

impl Job {
    fn new(network: &str) -> Self {
        let batches = LADDER.to_vec();
        Job { network: network.to_owned(), edit: BTreeMap::new(), batches, cache: None, fusion: true }
    }

    fn cache(self, cache: &Path) -> Self {
        Job { cache: Some(cache.to_owned()), ..self }
    }

    fn edit(mut self, field: &str, value: Value) -> Self {
        self.edit.insert(field.to_owned(), value);
        self
    }

    fn bundle(&self) -> Bundle {
        if self.network == "builtin" {
            return Bundle::builtin().unwrap();
        }
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/networks").join(&self.network);
        let mut manifest: Value = serde_json::from_slice(&fs::read(directory.join("model.json")).unwrap()).unwrap();
        let paths: Vec<String> = manifest["files"].as_object().unwrap().keys().cloned().collect();
        let files = paths.into_iter().map(|path| (path.clone(), fs::read(directory.join(path)).unwrap().into()));
        let files = files.collect();
        for (field, value) in &self.edit {
            manifest[field] = value.clone();
        }
        Bundle::from_files(&serde_json::to_vec(&manifest).unwrap(), files).unwrap()
    }

    /// In a process of its own.
    fn run(&self) -> Outcome {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "gpu::job", "--ignored", "--nocapture"])
            .env(JOB, serde_json::to_string(self).unwrap())
            .stderr(Stdio::inherit())
            .output()
            .unwrap();
        let output = String::from_utf8_lossy(&child.stdout);
        let line = output.lines().find_map(|line| line.split_once(OUTCOME));
        let outcome = serde_json::from_str(line.unwrap_or_else(|| panic!("no outcome: {output}")).1).unwrap();
        println!("{self:?}\n  {outcome:?}");
        outcome
    }
}

#[test]
#[ignore = "what the other tests here run in a process of its own"]
fn job() {
    // Nothing, when somebody runs every ignored test.
    let Ok(job) = env::var(JOB) else { return };
    let job: Job = serde_json::from_str(&job).unwrap();
    let device: Device = env::var(DEVICE).unwrap_or_else(|_| panic!("{DEVICE} is not set")).parse().unwrap();
    let started = Instant::now();
    let mut outcome = Outcome::default();
    if let Err(failure) = work(&job, device, &mut outcome) {
        outcome.failure = Some(failure);
    }
    outcome.seconds = started.elapsed().as_secs_f64();
    println!("{OUTCOME}{}", serde_json::to_string(&outcome).unwrap());
}

fn work(job: &Job, device: Device, outcome: &mut Outcome) -> Result<(), (String, String)> {
    let bundle = job.bundle();
    let settings = GpuSettings { kernel_cache: job.cache.clone(), fusion: job.fusion };
    let mut model = load_with(&bundle, device, &settings).map_err(|error| ("load".to_owned(), error.to_string()))?;
    outcome.device = model.device().to_owned();
    let mut processor = load(&bundle, Device::Cpu).unwrap();
    for &images in &job.batches {
        let pixels: Vec<&Pixels> = bundle.golden().iter().map(|golden| &golden.pixels).cycle().take(images).collect();
        let expected = answers(processor.as_mut(), &pixels)?;
        let mut batch = Batch { images, error: 0.0, seconds: [0.0; 2] };
        for seconds in &mut batch.seconds {
            let started = Instant::now();
            let found = answers(model.as_mut(), &pixels)?;
            *seconds = started.elapsed().as_secs_f64();
            let errors = found.iter().zip(&expected).map(|(found, expected)| relative_error(found, expected));
            // `max` would pass over one that is no number.
            batch.error = errors.fold(batch.error, |a, b| if a >= b { a } else { b });
            assert_eq!(found.len(), expected.len());
        }
        outcome.batches.push(batch);
    }
    outcome.golden =
        Some(golden::check(model.as_mut(), &bundle).map(|report| report.max_error).map_err(|error| error.to_string()));
    Ok(())
}

/// Logits and features, one vector an image and kind.
fn answers(model: &mut dyn Classifier, pixels: &[&Pixels]) -> Result<Vec<Vec<f32>>, (String, String)> {
    let answers = model.classify(pixels).map_err(|error| match error {
        DeviceError::OutOfMemory(text) => ("out of memory".to_owned(), text),
        DeviceError::Failed(text) => ("failed".to_owned(), text),
    })?;
    Ok(answers.into_iter().flat_map(|answer| [answer.logits, answer.embedding.unwrap_or_default()]).collect())
}

fn relative_error(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(f32::MIN_POSITIVE, |largest, value| largest.max(value.abs()));
    let errors = found.iter().zip(expected).map(|(a, b)| (a - b).abs() / largest);
    errors.fold(0.0, |a, b| if a >= b { a } else { b })
}

#[test]
#[ignore = "needs a device: STOKER_TEST_DEVICE"]
fn try_it() {
    let network = env::var("NETWORK").unwrap_or_else(|_| MOBILE.to_owned());
    let mut job = Job::new(&network);
    if let Ok(cache) = env::var("CACHE") {
        job = job.cache(Path::new(&cache));
    }
    if let Ok(batches) = env::var("BATCHES") {
        job.batches = batches.split(',').map(|text| text.parse().unwrap()).collect();
    }
    if let Ok(precision) = env::var("PRECISION") {
        job = job.edit("precision", json!(precision));
    }
    job.fusion = env::var("UNFUSED").is_err();
    job.run();
}
