//! How far two answers to the same picture are apart.

use std::path::Path;

use stoker::image::Pixels;

/// A model's input and its logits.
pub(super) struct Answer {
    pub(super) pixels: Pixels,
    pub(super) logits: Vec<f32>,
}

/// Two answers to one file.
pub(super) struct Pair {
    /// The scale that it was decoded at.
    eighths: u32,
    file: String,
    same_top: bool,
    /// How many of the first five classes both have.
    top_five: usize,
    /// Between the reference's first class and its second, in logits.
    margin: f64,
    /// Largest difference of a logit, relative to the largest logit.
    largest: f64,
    /// Root mean square of the differences, relative to that of the logits.
    rms: f64,
    /// Mean absolute difference of the input's channels, in levels.
    pixels: f64,
}

impl Pair {
    /// Compares an answer with the reference.
    pub(super) fn of(eighths: u32, path: &Path, answer: &Answer, reference: &Answer) -> Self {
        let (first, second) = (ranked(&answer.logits), ranked(&reference.logits));
        let differences: Vec<f64> =
            answer.logits.iter().zip(&reference.logits).map(|(one, other)| f64::from(one - other)).collect();
        let expected: Vec<f64> = reference.logits.iter().copied().map(f64::from).collect();
        Pair {
            eighths,
            file: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            same_top: first[0] == second[0],
            top_five: first[..5].iter().filter(|class| second[..5].contains(class)).count(),
            margin: expected[second[0]] - expected[second[1]],
            largest: largest(&differences) / largest(&expected),
            rms: rms(&differences) / rms(&expected),
            pixels: mean(
                answer.pixels.rgb.iter().zip(&reference.pixels.rgb).map(|(one, other)| f64::from(one.abs_diff(*other))),
            ),
        }
    }
}

/// A lead from which on a class counts as clear, in logits.
const CLEAR: f64 = 0.5;

/// Prints a line a scale, and every file whose first class changed.
pub(super) fn report(name: &str, pairs: &[Pair]) {
    println!(
        "{name}: files, top-1 agreement (of clear ones), top-5 overlap, logits apart (rms; largest: median, 90 %, most), levels apart"
    );
    for (scale, of) in [("1/8", 1), ("1/4", 2), ("3/8", 3), ("1/2", 4), ("1/1", 8), ("all", 0)] {
        let chosen: Vec<&Pair> = pairs.iter().filter(|pair| of == 0 || pair.eighths == of).collect();
        if chosen.is_empty() {
            continue;
        }
        let mut largest: Vec<f64> = chosen.iter().map(|pair| pair.largest).collect();
        largest.sort_by(f64::total_cmp);
        let clear: Vec<&&Pair> = chosen.iter().filter(|pair| pair.margin >= CLEAR).collect();
        let same = chosen.iter().filter(|pair| pair.same_top).count();
        println!(
            "  {scale}  {:4}  {same:4} = {:5.1} % ({} of {})  {:.2} of 5  {:.4}; {:.4}, {:.4}, {:.4}  {:.2}",
            chosen.len(),
            100.0 * same as f64 / chosen.len() as f64,
            clear.iter().filter(|pair| pair.same_top).count(),
            clear.len(),
            mean(chosen.iter().map(|pair| pair.top_five as f64)),
            mean(chosen.iter().map(|pair| pair.rms)),
            largest[largest.len() / 2],
            largest[largest.len() * 9 / 10],
            largest[largest.len() - 1],
            mean(chosen.iter().map(|pair| pair.pixels)),
        );
    }
    for pair in pairs.iter().filter(|pair| !pair.same_top) {
        println!(
            "    {} at {}/8: another first class, the reference's led by {:.2} logits",
            pair.file, pair.eighths, pair.margin
        );
    }
}

/// Classes, the likeliest first.
fn ranked(logits: &[f32]) -> Vec<usize> {
    let mut classes: Vec<usize> = (0..logits.len()).collect();
    classes.sort_by(|one, other| logits[*other].total_cmp(&logits[*one]));
    classes
}

fn largest(values: &[f64]) -> f64 {
    values.iter().fold(0.0, |most, value| most.max(value.abs()))
}

fn rms(values: &[f64]) -> f64 {
    mean(values.iter().map(|value| value * value)).sqrt()
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    values.sum::<f64>() / count
}
