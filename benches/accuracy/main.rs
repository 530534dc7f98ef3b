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

use std::io::Cursor;
use std::path::{Path, PathBuf};

use compare::{Answer, Pair};
use image::ImageFormat;
use stoker::image::{Filter, Limits, Pixels, Preprocess, decode, prepare};
use stoker::model::{Bundle, Classifier, Device, load};

const PREPROCESS: Preprocess = Preprocess { width: 224, height: 224, crop_fraction: 0.875, filter: Filter::Bicubic };

fn main() {
    // `cargo bench` adds --bench.
    let Some(folder) = std::env::args().skip(1).find(|argument| argument != "--bench") else {
        println!("no folder of JPEGs given: see the head of benches/accuracy/main.rs");
        return;
    };
    let bundle = Bundle::builtin().unwrap();
    let mut model = load(&bundle, Device::Cpu).unwrap();
    let mut pairs: [(&str, Vec<Pair>); 4] =
        ["scaled, full here", "scaled, full by Pillow", "full here, full by Pillow", "Pillow's draft, its full"]
            .map(|name| (name, Vec::new()));
    for path in jpegs(Path::new(&folder)) {
        let bytes = std::fs::read(&path).unwrap();
        let prepared = prepare(&bytes, &Limits::default(), &PREPROCESS).unwrap();
        let scale = scale(prepared.info.width.min(prepared.info.height));
        let [scaled, full] = answers(&mut *model, [prepared.pixels, in_full(&bytes)]);
        pairs[0].1.push(Pair::of(scale, &path, &scaled, &full));
        if let [Some(by_pillow), Some(draft)] = ["full", "draft"].map(|kind| by_pillow(&path, kind)) {
            let [by_pillow, draft] = answers(&mut *model, [by_pillow, draft]);
            pairs[1].1.push(Pair::of(scale, &path, &scaled, &by_pillow));
            pairs[2].1.push(Pair::of(scale, &path, &full, &by_pillow));
            pairs[3].1.push(Pair::of(scale, &path, &draft, &by_pillow));
        }
    }
    for (name, pairs) in &pairs {
        compare::report(name, pairs);
    }
}

fn jpegs(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = entries.filter(|path| path.extension().is_some_and(|end| end == "jpg")).collect();
    paths.sort();
    paths
}

/// How many of a block's eight pixels a side the model's input needs of a picture with this short side.
fn scale(short: u32) -> u32 {
    let side = f64::from(short) * PREPROCESS.crop_fraction;
    [1, 2, 4].into_iter().find(|eighths| side * f64::from(*eighths) >= 8.0 * f64::from(PREPROCESS.width)).unwrap_or(8)
}

/// The model's input from all pixels of the picture: they take the way of a format that has no scales.
fn in_full(bytes: &[u8]) -> Pixels {
    let Pixels { height, width, rgb } = decode(bytes, &Limits::default()).unwrap();
    let (width, height) = (u32::try_from(width).unwrap(), u32::try_from(height).unwrap());
    let mut bitmap = Cursor::new(Vec::new());
    image::RgbImage::from_raw(width, height, rgb).unwrap().write_to(&mut bitmap, ImageFormat::Bmp).unwrap();
    prepare(&bitmap.into_inner(), &Limits::default(), &PREPROCESS).unwrap().pixels
}

fn by_pillow(jpeg: &Path, kind: &str) -> Option<Pixels> {
    let path = jpeg.parent()?.join(kind).join(jpeg.with_extension("png").file_name()?);
    Some(decode(&std::fs::read(path).ok()?, &Limits::default()).unwrap())
}

fn answers(model: &mut dyn Classifier, pixels: [Pixels; 2]) -> [Answer; 2] {
    let logits = model.classify(&[&pixels[0], &pixels[1]]).unwrap();
    let [first, second] = pixels;
    let [of_first, of_second] = logits.try_into().unwrap();
    [Answer { pixels: first, logits: of_first }, Answer { pixels: second, logits: of_second }]
}
