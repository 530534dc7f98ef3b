//! Times contenders on one file in turns, so that what else the machine does meets all of them.

use std::time::{Duration, Instant};

type Way = dyn Fn(&[u8]) -> Vec<u8>;

/// One way from a file's bytes to the model's input.
pub(super) struct Contender {
    pub(super) name: &'static str,
    pub(super) run: Box<Way>,
}

impl Contender {
    pub(super) fn new(name: &'static str, run: impl Fn(&[u8]) -> Vec<u8> + 'static) -> Self {
        Contender { name, run: Box::new(run) }
    }
}

const LEAST_ROUNDS: usize = 7;

/// Prints a line a contender, in milliseconds; its ratio is its least time over the first contender's. On a busy machine
/// the least time is what the work itself takes.
pub(super) fn compare(name: &str, bytes: &[u8], contenders: &[Contender], time: Duration) {
    let outputs: Vec<Vec<u8>> = contenders.iter().map(|contender| (contender.run)(bytes)).collect();
    let mut times = vec![Vec::new(); contenders.len()];
    let start = Instant::now();
    while start.elapsed() < time || times.iter().any(|times| times.len() < LEAST_ROUNDS) {
        for (contender, times) in contenders.iter().zip(&mut times) {
            let start = Instant::now();
            std::hint::black_box((contender.run)(std::hint::black_box(bytes)));
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    times.iter_mut().for_each(|times| times.sort_by(f64::total_cmp));
    println!("{name}: {} bytes, {} rounds", bytes.len(), times[0].len());
    println!("  {:<34} {:>8} {:>8} {:>8}  {:>6}  {:>6}  levels apart", "", "median", "least", "90 %", "MB/s", "ratio");
    for ((contender, taken), output) in contenders.iter().zip(&times).zip(&outputs) {
        println!(
            "  {:<34} {:8.2} {:8.2} {:8.2}  {:6.0}  {:6.2}  {:.2}",
            contender.name,
            part(taken, 0.5),
            part(taken, 0.0),
            part(taken, 0.9),
            bytes.len() as f64 / part(taken, 0.0) / 1e3,
            part(taken, 0.0) / part(&times[0], 0.0),
            difference(output, &outputs[0]),
        );
    }
    let against_best =
        |share| part(&times[0], share) / times[1..].iter().map(|taken| part(taken, share)).fold(f64::MAX, f64::min);
    println!("  of the best alternative: {:.2} by least, {:.2} by median", against_best(0.0), against_best(0.5));
}

/// The time in milliseconds that this share of the rounds did not exceed.
fn part(sorted: &[f64], share: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * share).round() as usize]
}

/// Mean absolute difference in levels of a channel.
fn difference(one: &[u8], other: &[u8]) -> f64 {
    let sum: u64 = one.iter().zip(other).map(|(one, other)| u64::from(one.abs_diff(*other))).sum();
    sum as f64 / one.len() as f64
}
