//! What scaled decoding costs in accuracy: the built-in model's answers to JPEGs decoded at the scale that the model's
//! input needs, against the same files decoded in full.
//!
//!     python benches/accuracy/crops.py PACKAGES FOLDER
//!     cargo bench --bench accuracy -- FOLDER
//!
//! FOLDER/NAME.jpg are the files; FOLDER/full/NAME.png and FOLDER/draft/NAME.png are the model's inputs by Pillow, the
//! second with its own scaled decoding, as a yardstick.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a bench prints its figures and may fail")]

mod compare;

use std::path::{Path, PathBuf};

use compare::{Answer, Pair};
use stoker::image::{Filter, Limits, Pixels, Prepared, Preprocess, Resize, decode, prepare};
use stoker::model::{Bundle, Classifier, Device, load};

const CROP_FRACTION: f64 = 0.875;
const PREPROCESS: Preprocess =
    Preprocess { width: 224, height: 224, resize: Resize::CropFraction(CROP_FRACTION), filter: Filter::Bicubic };

fn main() {
    // `cargo bench` adds --bench.
    let Some(folder) = std::env::args().skip(1).find(|argument| argument != "--bench") else {
        println!("no folder of JPEGs given: see the head of benches/accuracy/main.rs");
        return;
    };
    let bundle = Bundle::builtin().unwrap();
    let mut model = load(&bundle, Device::Cpu).unwrap();
    let usual = Limits::default().jpeg_oversampling;
    let oversampling = [1.0, usual, 2.0];
    let mut against_full = oversampling.map(|_| Vec::new());
    let [mut against_pillow, mut full_against_pillow, mut draft_against_pillow] = [const { Vec::new() }; 3];
    for path in jpegs(Path::new(&folder)) {
        let bytes = std::fs::read(&path).unwrap();
        let mut answered = |pixels| answer(&mut *model, pixels);
        let Prepared { pixels, info } = input(&bytes, f64::INFINITY);
        let short = info.width.min(info.height);
        let full = answered(pixels);
        let scaled = oversampling.map(|oversampling| answered(input(&bytes, oversampling).pixels));
        for ((scaled, oversampling), pairs) in scaled.iter().zip(oversampling).zip(&mut against_full) {
            pairs.push(Pair::of(eighths(short, oversampling), &path, scaled, &full));
        }
        let [Some(by_pillow), Some(draft)] = ["full", "draft"].map(|kind| by_pillow(&path, kind).map(&mut answered))
        else {
            continue;
        };
        against_pillow.push(Pair::of(eighths(short, usual), &path, &scaled[1], &by_pillow));
        full_against_pillow.push(Pair::of(8, &path, &full, &by_pillow));
        draft_against_pillow.push(Pair::of(eighths(short, 1.0), &path, &draft, &by_pillow));
    }
    for (oversampling, pairs) in oversampling.iter().zip(&against_full) {
        compare::report(&format!("jpeg_oversampling {oversampling}, against decoding in full"), pairs);
    }
    compare::report(&format!("jpeg_oversampling {usual}, against Pillow decoding in full"), &against_pillow);
    compare::report("decoding in full, against Pillow decoding in full", &full_against_pillow);
    compare::report("Pillow's draft mode, against Pillow decoding in full", &draft_against_pillow);
}

fn jpegs(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = entries.filter(|path| path.extension().is_some_and(|end| end == "jpg")).collect();
    paths.sort();
    paths
}

fn input(bytes: &[u8], jpeg_oversampling: f64) -> Prepared {
    prepare(bytes, &Limits { jpeg_oversampling, ..Limits::default() }, &PREPROCESS).unwrap()
}

/// The scale, in eighths, that a picture with this short side is decoded at.
fn eighths(short: u32, oversampling: f64) -> u32 {
    let side = f64::from(short) * CROP_FRACTION;
    let covers = |eighths: &u32| side * f64::from(*eighths) >= oversampling * 8.0 * f64::from(PREPROCESS.width);
    [1, 2, 3, 4].into_iter().find(covers).unwrap_or(8)
}

fn by_pillow(jpeg: &Path, kind: &str) -> Option<Pixels> {
    let path = jpeg.parent()?.join(kind).join(jpeg.with_extension("png").file_name()?);
    Some(decode(&std::fs::read(path).ok()?, &Limits::default()).unwrap())
}

fn answer(model: &mut dyn Classifier, pixels: Pixels) -> Answer {
    let logits = model.classify(&[&pixels]).unwrap().remove(0).logits;
    Answer { pixels, logits }
}
