//! Images a second on the processor, by batch size, and each relative to the first; what loading and measuring
//! formulations cost, and the peak of memory so far.
//!
//! `cargo bench --bench infer -- [--seconds S] [--batches N,N] [BUNDLE ...]`: the built-in model, or bundles in folders.
//! `RAYON_NUM_THREADS` sets the threads. `infer-peers/peers.py` compares with ONNX Runtime and PyTorch.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a bench prints its figures and may fail")]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Parser;
use stoker::image::Pixels;
use stoker::model::{Bundle, Device, Formulation, Formulations, GpuSettings, load_with};

#[derive(Parser)]
struct Arguments {
    /// Folders with bundles; without any, the built-in model.
    bundles: Vec<PathBuf>,
    /// Images in a batch.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16")]
    batches: Vec<usize>,
    /// Time for each figure.
    #[arg(long, default_value = "3")]
    seconds: f64,
    /// What `cargo bench` adds.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let arguments = Arguments::parse();
    let mut bundles: Vec<Bundle> = arguments.bundles.iter().map(|path| Bundle::open(path).unwrap()).collect();
    if bundles.is_empty() {
        bundles.push(Bundle::builtin().unwrap());
    }
    for bundle in bundles {
        measure(&bundle, &arguments);
    }
}

fn measure(bundle: &Bundle, arguments: &Arguments) {
    let mut formulations = Formulations::default();
    let mut load = || {
        let start = Instant::now();
        let model = load_with(bundle, Device::Cpu, &GpuSettings::default(), &mut formulations).unwrap();
        (model, start.elapsed())
    };
    let (mut model, measured) = load();
    let known = load().1;
    println!("{}: loaded in {measured:.0?}, or {known:.0?} with known formulations", bundle.manifest().name);
    for (shape, formulation) in formulations.iter().filter(|(_, formulation)| *formulation != Formulation::Own) {
        println!("{formulation:?} for {shape}");
    }
    let pixels: Vec<&Pixels> = bundle.golden().iter().map(|golden| &golden.pixels).collect();
    let mut single = None;
    for batch in &arguments.batches {
        let images: Vec<&Pixels> = pixels.iter().copied().cycle().take(*batch).collect();
        model.classify(&images).unwrap();
        let (start, mut done) = (Instant::now(), 0u32);
        while start.elapsed() < Duration::from_secs_f64(arguments.seconds) {
            done += u32::try_from(model.classify(&images).unwrap().len()).unwrap();
        }
        let rate = f64::from(done) / start.elapsed().as_secs_f64();
        let ratio = rate / *single.get_or_insert(rate);
        println!("batch {batch:>2}: {rate:6.1} images/s, {ratio:.2} × the first, peak {}", peak_memory());
    }
}

/// The peak of resident memory, where the system tells.
fn peak_memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    peak.map_or_else(|| "unknown".to_owned(), |peak| peak.trim().to_owned())
}
