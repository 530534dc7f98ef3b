//! CUDA on a machine without a GPU: NVRTC compiles the kernels for the GPUs that Cloud Run has, and a stand-in for
//! NVIDIA's driver (`tests/cuda/driver.c`), which computes nothing, runs out of memory and fails where it is told to.
//!
//! Needs both libraries and the headers: `.ci/cuda` fetches, builds and names them.

use std::process::{Command, Stdio};
use std::{env, fs};

use serde::Deserialize;
use serde_json::json;
use stoker::image::Pixels;
use stoker::model::{Device, Formulations, GpuSettings, load_with};
use stoker::vram::{Asked, Measured, Stop, measure, memory_of};

use super::{Job, MOBILE, NETWORKS, OUTCOME, Outcome};
use crate::bundle::Scratch;

/// What the driver counted.
#[derive(Debug, Deserialize)]
struct Report {
    modules: usize,
    launches: usize,
    most_bytes: u64,
}

fn run(job: &Job, variables: &[(&str, &str)]) -> (Outcome, Report) {
    let scratch = Scratch::new();
    let path = scratch.path().join("report.json");
    let mut variables = variables.to_vec();
    let (place, device) = (path.to_str().unwrap(), [("STOKER_TEST_DEVICE", "cuda")]);
    variables.extend([("STAND_IN_REPORT", place)].into_iter().chain(device));
    let outcome = job.run_with(&variables);
    let report = fs::read(&path).unwrap_or_else(|_| panic!("the stand-in is not there: {outcome:?}"));
    (outcome, serde_json::from_slice(&report).unwrap())
}

#[test]
#[ignore = "needs NVRTC and the stand-in for CUDA's driver: .ci/cuda"]
fn nvrtc_compiles_the_kernels_of_every_network() {
    let mut cases: Vec<(&str, &str, &str, bool)> = NETWORKS.iter().map(|name| (*name, "f32", "89", true)).collect();
    // An L4, an RTX PRO 6000.
    cases.extend([(MOBILE, "f16", "89", false), ("vit-s-16-timm", "bf16", "120", true)]);
    for (network, precision, arch, fusion) in cases {
        let job = Job { batches: vec![2], fusion, ..Job::new(network) }.edit("precision", json!(precision));
        let (outcome, report) = run(&job, &[("STAND_IN_ARCH", arch)]);
        println!("{network} in {precision} for {arch}: {report:?} in {:.0} s", outcome.seconds);
        assert_eq!(outcome.failure, None, "{network} in {precision} for {arch}");
        assert_eq!(outcome.device, format!("stand-in {arch}"));
        assert_eq!(outcome.batches.iter().map(|batch| batch.images).collect::<Vec<_>>(), [2]);
        // The canary sees a device that computes nothing.
        assert!(matches!(outcome.golden, Some(Err(_))), "{outcome:?}");
        assert!(report.modules > 10 && report.launches > report.modules, "{report:?}");
    }
}

/// A lack of memory panics in CubeCL's thread. Single kernels go on after it; the queue of fused ones is left broken, and
/// then nothing more runs.
#[test]
#[ignore = "needs NVRTC and the stand-in for CUDA's driver: .ci/cuda"]
fn cuda_running_out_of_memory_is_told_from_a_failure() {
    let (bytes, images) = (256 << 20, 512);
    for fusion in [false, true] {
        let job = Job { batches: vec![1, images, 1], fusion, ..Job::new(MOBILE) };
        let (outcome, report) = run(&job, &[("STAND_IN_MEMORY", &bytes.to_string())]);
        let too_large: Vec<usize> = outcome.too_large.iter().map(|(images, _)| *images).collect();
        assert_eq!(too_large, [images], "{outcome:?}");
        assert!(report.most_bytes <= bytes, "{report:?}");
        match &outcome.failure {
            None => assert_eq!(outcome.batches.iter().map(|batch| batch.images).collect::<Vec<_>>(), [1, 1]),
            Some((kind, text)) => assert!(fusion && kind == "failed", "{kind}: {text}"),
        }
    }
}

#[test]
#[ignore = "needs NVRTC and the stand-in for CUDA's driver: .ci/cuda"]
fn after_a_fault_of_the_driver_nothing_more_runs() {
    let job = Job { batches: vec![1, 2, 1], ..Job::new(MOBILE) };
    let input = &job.manifest()["input"];
    let pixels = 2 * 3 * input["width"].as_u64().unwrap() * input["height"].as_u64().unwrap();
    let (outcome, _) = run(&job, &[("STAND_IN_FAIL_UPLOAD", &pixels.to_string())]);
    let (kind, text) = outcome.failure.as_ref().unwrap_or_else(|| panic!("{outcome:?}"));
    assert_eq!(kind, "failed", "{text}");
    assert!(text.to_lowercase().contains("illegal"), "{text}");
    assert_eq!(outcome.batches.len(), 1);
}

const MEASURE: &str = "STOKER_TEST_MEASURE";

#[test]
#[ignore = "what the test below runs in a process of its own"]
fn measuring() {
    if env::var(MEASURE).is_err() {
        return;
    }
    let bundle = Job::new(MOBILE).bundle();
    let memory = memory_of(Device::Cuda(0), None).unwrap();
    let mut model = load_with(&bundle, Device::Cuda(0), &GpuSettings::default(), &mut Formulations::default()).unwrap();
    let images: Vec<&Pixels> = bundle.golden().iter().map(|golden| &golden.pixels).collect();
    let asked = Asked { fraction: 0.5, limit: None, set_aside: 0, max_batch: 2 };
    let measured = measure(&mut *model, &images, &*memory, asked, Formulations::default()).unwrap();
    let (reading, pool) = (memory.read().unwrap(), model.pool().unwrap());
    assert_eq!(reading.total, reading.free + reading.process);
    assert!(pool.in_use <= pool.reserved && pool.reserved <= reading.process, "{pool:?} {reading:?}");
    println!("{OUTCOME}{}", serde_json::to_string(&measured).unwrap());
}

#[test]
#[ignore = "needs NVRTC and the stand-in for CUDA's driver: .ci/cuda"]
fn a_gpu_is_measured_through_nvml() {
    let total = 1_u64 << 30;
    let child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "gpu::stand_in::measuring", "--ignored", "--nocapture"])
        .envs([(MEASURE, "1"), ("STAND_IN_MEMORY", &total.to_string())])
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&child.stdout);
    let line = output.lines().find_map(|line| line.split_once(OUTCOME));
    let measured: Measured = serde_json::from_str(line.unwrap_or_else(|| panic!("{output}")).1).unwrap();
    println!("{measured:?}");
    assert_eq!((measured.budget.total, measured.budget.available), (total, total));
    assert_eq!(measured.stop, Stop::MaxBatch);
    assert_eq!(measured.steps.iter().map(|step| step.batch).collect::<Vec<_>>(), [1, 2]);
    // A small network and its tensors, counted by the driver; pages are of some MiB.
    assert!(measured.base > 1 << 16 && measured.steps[0].bytes >= measured.base, "{measured:?}");
    assert!(measured.steps.iter().all(|step| step.bytes < total / 2 && step.seconds > 0.0), "{measured:?}");
}
