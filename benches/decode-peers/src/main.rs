//! The decode bench next to other JPEG decoders, on the same bytes, in turns, on one thread.
//!
//!     cargo run --release --manifest-path benches/decode-peers/Cargo.toml --features libjpeg-turbo -- [NAMES or FILES]
//!
//! Names, files `--seconds` and `--write` as `cargo bench --bench decode` has them.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a bench prints its figures and may fail")]
#![allow(clippy::cast_possible_truncation, reason = "values known to be small")]

#[cfg(all(feature = "libjpeg-turbo", feature = "mozjpeg"))]
compile_error!("libjpeg-turbo and mozjpeg define the same symbols: the linker would take one for both");

#[path = "../../decode/alternatives.rs"]
mod alternatives;
#[path = "../../decode/arguments.rs"]
mod arguments;
#[path = "../../decode/huffman.rs"]
mod huffman;
#[path = "../../decode/inputs.rs"]
mod inputs;
#[path = "../../decode/jpeg.rs"]
mod jpeg;
#[path = "../../decode/measure.rs"]
mod measure;
mod peers;

use measure::{Contender, compare};

fn main() {
    let arguments = arguments::read();
    if let Some(folder) = arguments.folder {
        return inputs::write(&folder, &arguments.inputs);
    }
    for input in arguments.inputs {
        let mut contenders = vec![Contender::new("stoker", alternatives::stoker)];
        contenders.extend(alternatives::rust(&input.bytes));
        contenders.push(Contender::new("image, its own resize", peers::image_alone));
        if input.bytes.starts_with(b"\xFF\xD8") {
            contenders.extend(peers::scaled());
        }
        compare(&input.name, &input.bytes, &contenders, arguments.time);
    }
}
