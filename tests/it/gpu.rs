//! Models on a GPU: the answers of the processor at every batch size, however its kernels come about, and what is left
//! of the device after a failure.
//!
//! Needs `STOKER_TEST_DEVICE=cuda` or `vulkan`, or `vulkan:cpu` for Mesa's software driver, and the device's feature;
//! `docs/devices.md` has the commands. The libraries under a GPU are set up once in a process, so each job runs in a
//! process of its own: [`job`], in this program.
#![allow(clippy::print_stdout, reason = "figures are worth a look")]
#![allow(clippy::disallowed_methods, reason = "which device there is, is the machine's matter")]

mod stand_in;

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stoker::image::Pixels;
use stoker::model::{
    Answer, Bundle, Classifier, Device, DeviceError, Formulations, GpuSettings, golden, load, load_with,
};

use crate::bundle::Scratch;

const DEVICE: &str = "STOKER_TEST_DEVICE";
const JOB: &str = "STOKER_TEST_JOB";
/// What begins the line with a job's outcome.
const OUTCOME: &str = "outcome: ";
/// One of each family, small: depthwise convolutions, bottlenecks, large kernels with layer norms, attention.
const NETWORKS: [&str; 4] = [MOBILE, "resnet-50-torchvision", "convnext-tiny-torchvision", "vit-s-16-timm"];
const MOBILE: &str = "efficientnet-lite1-timm";
/// Largest error of a logit or feature in `f32`, relative to the largest of its image: what another order of the same
/// sums costs, and the units of a GPU that multiply in fewer bits.
const TOLERANCE: f32 = 1e-3;
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
    /// Another network, which is put on the device beside it and runs in turn with it.
    beside: Option<String>,
}

/// What became of it.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Outcome {
    device: String,
    /// Largest error of the golden images' logits, or why they do not pass.
    golden: Option<Result<f32, String>>,
    batches: Vec<Batch>,
    /// Batches for which the device had no room, and what it said.
    too_large: Vec<(usize, String)>,
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
        Job { network: network.to_owned(), edit: BTreeMap::new(), batches, cache: None, fusion: true, beside: None }
    }

    fn cache(self, cache: &Path) -> Self {
        Job { cache: Some(cache.to_owned()), ..self }
    }

    fn edit(mut self, field: &str, value: Value) -> Self {
        self.edit.insert(field.to_owned(), value);
        self
    }

    fn directory(&self) -> PathBuf {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
        match self.network.as_str() {
            "builtin" => fixtures.join("models/efficientnet-lite0"),
            network => fixtures.join("networks").join(network),
        }
    }

    /// With its edits.
    fn manifest(&self) -> Value {
        let bytes = fs::read(self.directory().join("model.json")).unwrap();
        let mut manifest: Value = serde_json::from_slice(&bytes).unwrap();
        for (field, value) in &self.edit {
            manifest[field] = value.clone();
        }
        manifest
    }

    fn bundle(&self) -> Bundle {
        let (directory, manifest) = (self.directory(), self.manifest());
        let paths: Vec<String> = manifest["files"].as_object().unwrap().keys().cloned().collect();
        let files = paths.into_iter().map(|path| (path.clone(), fs::read(directory.join(path)).unwrap().into()));
        Bundle::from_files(&serde_json::to_vec(&manifest).unwrap(), files.collect()).unwrap()
    }

    /// In a process of its own.
    fn run(&self) -> Outcome {
        self.run_with(&[])
    }

    /// In a process of its own, with more variables in its environment.
    fn run_with(&self, variables: &[(&str, &str)]) -> Outcome {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "gpu::job", "--ignored", "--nocapture"])
            .env(JOB, serde_json::to_string(self).unwrap())
            .envs(variables.iter().copied())
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
    let put = |bundle: &Bundle| {
        load_with(bundle, device, &settings, &mut Formulations::default())
            .map_err(|error| ("load".to_owned(), error.to_string()))
    };
    let mut model = put(&bundle)?;
    outcome.device = model.device().to_owned();
    let mut beside = None;
    if let Some(network) = &job.beside {
        let bundle = Job::new(network).bundle();
        beside = Some((put(&bundle)?, bundle));
    }
    let mut processor = load(&bundle, Device::Cpu).unwrap();
    for &images in &job.batches {
        if let Some((other, bundle)) = &mut beside {
            golden::check(other.as_mut(), bundle).map_err(|error| ("beside".to_owned(), error.to_string()))?;
        }
        let pixels: Vec<&Pixels> = bundle.golden().iter().map(|golden| &golden.pixels).cycle().take(images).collect();
        let mut batch = Batch { images, error: 0.0, seconds: [0.0; 2] };
        match compare(model.as_mut(), processor.as_mut(), &pixels, &mut batch) {
            Ok(()) => outcome.batches.push(batch),
            Err(DeviceError::OutOfMemory(text)) => outcome.too_large.push((images, text)),
            Err(DeviceError::Failed(text)) => return Err(("failed".to_owned(), text)),
        }
    }
    outcome.golden =
        Some(golden::check(model.as_mut(), &bundle).map(|report| report.max_error).map_err(|error| error.to_string()));
    Ok(())
}

/// Runs a batch twice, and once on the processor; the second time backwards, with its pixels put on the device while the
/// first one runs.
fn compare(
    model: &mut dyn Classifier,
    processor: &mut dyn Classifier,
    pixels: &[&Pixels],
    batch: &mut Batch,
) -> Result<(), DeviceError> {
    let mut expected: Option<Vectors> = None;
    let forwards: Arc<[Pixels]> = pixels.iter().map(|pixels| (*pixels).clone()).collect();
    let backwards: Arc<[Pixels]> = forwards.iter().rev().cloned().collect();
    let mut ahead = Some(backwards.clone());
    for (images, seconds) in [forwards, backwards].iter().zip(&mut batch.seconds) {
        let started = Instant::now();
        let found = vectors(model.classify_ahead(images, &mut || ahead.take())?);
        *seconds = started.elapsed().as_secs_f64();
        let expected = match &mut expected {
            Some(expected) => {
                expected.reverse();
                expected
            }
            None => expected.insert(answers(processor, pixels)?),
        };
        assert_eq!((found.len(), ahead.is_none()), (expected.len(), true));
        let errors = found.iter().zip(&*expected).map(|(found, expected)| relative_error(found, expected));
        // `max` would pass over one that is no number.
        batch.error = errors.fold(batch.error, |a, b| if a >= b { a } else { b });
    }
    Ok(())
}

/// Logits and features of each image.
type Vectors = Vec<[Vec<f32>; 2]>;

fn answers(model: &mut dyn Classifier, pixels: &[&Pixels]) -> Result<Vectors, DeviceError> {
    model.classify(pixels).map(vectors)
}

fn vectors(answers: Vec<Answer>) -> Vectors {
    answers.into_iter().map(|answer| [answer.logits, answer.embedding.unwrap_or_default()]).collect()
}

fn relative_error(found: &[Vec<f32>; 2], expected: &[Vec<f32>; 2]) -> f32 {
    let errors = found.iter().zip(expected).map(|(found, expected)| relative_error_of(found, expected));
    errors.fold(0.0, |a, b| if a >= b { a } else { b })
}

fn relative_error_of(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(f32::MIN_POSITIVE, |largest, value| largest.max(value.abs()));
    let errors = found.iter().zip(expected).map(|(a, b)| (a - b).abs() / largest);
    errors.fold(0.0, |a, b| if a >= b { a } else { b })
}

impl Outcome {
    /// Every batch ran, and everything is as the processor has it.
    fn check(&self, job: &Job, tolerance: f32) {
        assert_eq!(self.failure, None, "{job:?}");
        assert_eq!(self.too_large, [], "{job:?}");
        assert_eq!(self.batches.iter().map(|batch| batch.images).collect::<Vec<_>>(), job.batches);
        for batch in &self.batches {
            assert!(batch.error <= tolerance, "{job:?}: {batch:?}");
        }
        self.golden.as_ref().unwrap().as_ref().unwrap_or_else(|error| panic!("{job:?}: {error}"));
    }
}

/// Golden logits are held to 1e-4, which is less than another order of sums may cost on a GPU.
fn loose(network: &str) -> Job {
    let bundle = Job::new(network);
    let mut golden = bundle.manifest()["golden"].clone();
    golden["tolerance"] = json!(TOLERANCE);
    bundle.edit("golden", golden)
}

#[test]
#[ignore = "needs a device: STOKER_TEST_DEVICE"]
fn every_network_answers_as_on_the_processor_at_every_batch_size() {
    for network in NETWORKS {
        let job = loose(network).edit("embedding", json!({"normalize": false}));
        job.run().check(&job, TOLERANCE);
    }
}

/// Compiled kernels by their path and size.
fn kernels(directory: &Path) -> BTreeMap<PathBuf, u64> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
        match entry.metadata().unwrap() {
            about if about.is_dir() => found.extend(kernels(&entry.path())),
            about => drop(found.insert(entry.path(), about.len())),
        }
    }
    found
}

#[test]
#[ignore = "needs a device: STOKER_TEST_DEVICE"]
fn kernels_are_fused_or_not_and_tuned_anew_or_not_with_the_same_answers() {
    for (fusion, batches) in [(true, LADDER.to_vec()), (false, vec![1, 4])] {
        let scratch = Scratch::new();
        let job = Job { fusion, batches, ..loose(MOBILE).cache(scratch.path()) };
        let cold = job.run();
        cold.check(&job, TOLERANCE);
        let kept = kernels(scratch.path());
        assert!(!kept.is_empty(), "nothing is kept in --kernel-cache");
        let warm = job.run();
        warm.check(&job, TOLERANCE);
        // Nothing is lost. What is added is of formulations: each start measures some more of them.
        let after = kernels(scratch.path());
        let lost = kept.iter().find(|(path, bytes)| after.get(*path).is_none_or(|found| found < bytes));
        assert!(lost.is_none(), "{lost:?}");
        println!("fusion {fusion}: cold {:.1} s, warm {:.1} s", cold.seconds, warm.seconds);
        // Tuning names the crate whose kernels it is about.
        let tuned = kept.keys().filter(|path| path.to_string_lossy().contains("autotune")).count();
        let fused = kept.keys().filter(|path| path.to_string_lossy().contains("burn_cubecl_fusion")).count();
        let untuned = !cfg!(feature = "autotune");
        assert_eq!((fused > 0, tuned > 0), (fusion && !untuned, !untuned), "fusion {fusion}: {kept:?}");
    }
}

#[test]
#[ignore = "needs a device: STOKER_TEST_DEVICE"]
fn half_precision_is_held_to_the_golden_tolerance() {
    for precision in ["f16", "bf16"] {
        let job = Job { batches: vec![1, 4], ..Job::new("vit-s-16-timm") };
        let mut golden = job.manifest()["golden"].clone();
        golden["tolerance"] = json!(0.01);
        let job = job.edit("golden", golden).edit("precision", json!(precision));
        let outcome = job.run();
        match &outcome.failure {
            // Then a bundle that asks for it is refused at start.
            Some((kind, text)) => {
                assert_eq!(kind, "load", "{text}");
                assert!(text.contains(&format!("does not compute in {}", precision.to_uppercase())), "{text}");
            }
            None => {
                outcome.check(&job, 0.01);
                let error = outcome.golden.as_ref().unwrap().as_ref().unwrap();
                assert!(*error > 2e-5, "{precision}: {error} is the error of f32");
            }
        }
        // A tolerance that half precision cannot meet is not met.
        let mut golden = job.manifest()["golden"].clone();
        golden["tolerance"] = json!(1e-6);
        let strict = job.edit("golden", golden).run();
        assert!(strict.failure.is_some() || strict.golden.as_ref().unwrap().is_err(), "{strict:?}");
    }
}

#[test]
#[ignore = "needs a device: STOKER_TEST_DEVICE"]
fn two_models_run_in_turn_on_one_device() {
    let beside = Some("resnet-18-torchvision".to_owned());
    let job = Job { beside, batches: vec![1, 4], ..loose(MOBILE) };
    job.run().check(&job, TOLERANCE);
}

#[test]
#[ignore = "needs a device: STOKER_TEST_DEVICE"]
fn a_batch_that_is_too_large_leaves_the_device_as_it_was() {
    let job = loose(MOBILE);
    // Their pixels alone, as numbers, are larger than any buffer that Mesa's driver gives.
    let images = 1 << 16;
    let job = Job { batches: vec![1, images, 2], ..job };
    let outcome = job.run();
    assert_eq!(outcome.failure, None);
    assert_eq!(outcome.too_large.iter().map(|(images, _)| *images).collect::<Vec<_>>(), [images], "{outcome:?}");
    let rest = Job { batches: vec![1, 2], ..job };
    Outcome { too_large: Vec::new(), ..outcome }.check(&rest, TOLERANCE);
}

#[test]
fn a_gpu_that_is_missing_is_named_and_ends_with_code_4() {
    let mut asked =
        vec![("vulkan:99", if cfg!(feature = "vulkan") { "no Vulkan" } else { "without the feature `vulkan`" })];
    if !cfg!(feature = "cuda") {
        asked.push(("cuda", "built without the feature `cuda`"));
    } else if !Path::new("/dev/nvidiactl").exists() {
        asked.push(("cuda", "no NVIDIA driver on this machine"));
    }
    for (device, expected) in asked {
        let photo = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/photos/coffee.jpg");
        let output = Command::new(env!("CARGO_BIN_EXE_stoker"))
            .args(["label", "--device", device, "--kernel-cache", "none"])
            .arg(photo)
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(4), "{device}: {error}");
        assert!(error.contains(expected) && !error.contains("panicked"), "{device}: {error}");
    }
}

/// For figures: `NETWORK` (`builtin` is EfficientNet-Lite0), `BATCHES`, `PRECISION`, `UNFUSED`, `CACHE`.
#[test]
#[ignore = "needs a device: STOKER_TEST_DEVICE"]
fn figures() {
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
    let outcome = job.run();
    println!("{network} on {}, {:?}", outcome.device, outcome.golden);
    for Batch { images, error, seconds: [first, again] } in &outcome.batches {
        let rate = f64::from(u32::try_from(*images).unwrap()) / again;
        println!("batch {images}: {rate:.1} images/s, error {error:.1e}, first run {first:.2} s");
    }
}
