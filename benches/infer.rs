//! Images a second of the built-in model on the processor, by batch size, and each relative to single images.
//!
//! `cargo bench --bench infer`
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a bench prints its figures and may fail")]

use std::time::{Duration, Instant};

use stoker::image::Pixels;
use stoker::model::{Bundle, Device, load};

const BATCHES: [usize; 5] = [1, 2, 4, 8, 16];
const MEASURE: Duration = Duration::from_secs(3);

fn main() {
    let bundle = Bundle::builtin().unwrap();
    let mut model = load(&bundle, Device::Cpu).unwrap();
    let pixels: Vec<&Pixels> = bundle.golden().iter().map(|golden| &golden.pixels).collect();
    let mut single = None;
    for batch in BATCHES {
        let images: Vec<&Pixels> = pixels.iter().copied().cycle().take(batch).collect();
        model.classify(&images).unwrap();
        let (start, mut done) = (Instant::now(), 0u32);
        while start.elapsed() < MEASURE {
            done += u32::try_from(model.classify(&images).unwrap().len()).unwrap();
        }
        let rate = f64::from(done) / start.elapsed().as_secs_f64();
        let ratio = rate / *single.get_or_insert(rate);
        println!("batch {batch:>2}: {rate:6.1} images/s, {ratio:.2} × single");
    }
}
