//! What the benches are told on the command line.

use std::path::PathBuf;
use std::time::Duration;

use super::inputs::{self, Input};

pub(super) struct Arguments {
    pub(super) inputs: Vec<Input>,
    /// How long to measure each picture.
    pub(super) time: Duration,
    /// Where to write the pictures to, instead of measuring.
    pub(super) folder: Option<PathBuf>,
}

/// `[--seconds N] [--write FOLDER] [NAMES or FILES]`
pub(super) fn read() -> Arguments {
    // `cargo bench` adds --bench.
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let (mut names, mut seconds, mut folder) = (Vec::new(), 3.0, None);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--seconds" => seconds = arguments.next().unwrap().parse().unwrap(),
            "--write" => folder = arguments.next().map(PathBuf::from),
            _ => names.push(argument),
        }
    }
    Arguments { inputs: inputs::chosen(&names), time: Duration::from_secs_f64(seconds), folder }
}
