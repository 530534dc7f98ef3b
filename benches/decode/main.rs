//! Milliseconds from an image's bytes to the model's input, on one thread, next to decoding in full.
//!
//!     cargo bench --bench decode                          # the pictures of inputs.rs
//!     cargo bench --bench decode -- 12mp --seconds 10     # those with 12mp in their name, longer
//!     cargo bench --bench decode -- photo.jpg             # files of your own
//!     cargo bench --bench decode -- --write FOLDER        # writes the pictures, for other programs
//!
//! `benches/decode-peers` measures the same next to other JPEG decoders.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a bench prints its figures and may fail")]
#![allow(clippy::cast_possible_truncation, reason = "values known to be small")]

mod alternatives;
mod arguments;
mod huffman;
mod inputs;
mod jpeg;
mod measure;

use measure::{Contender, compare};

fn main() {
    let arguments = arguments::read();
    if let Some(folder) = arguments.folder {
        return inputs::write(&folder, &arguments.inputs);
    }
    for input in arguments.inputs {
        let mut contenders = vec![Contender::new("stoker", alternatives::stoker)];
        contenders.extend(alternatives::rust(&input.bytes));
        compare(&input.name, &input.bytes, &contenders, arguments.time);
    }
}
