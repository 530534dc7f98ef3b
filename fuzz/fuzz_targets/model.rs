//! Any bytes as each file of a model's bundle, and as a checkpoint: reading them ends, in a value or an error. No network is
//! loaded.
//!
//! The first byte says which file the rest is. The bundle's other files are right, and so are sizes and digests: nothing
//! behind them would be reached otherwise.
//!
//! `cargo fuzz run model` (nightly, or `RUSTC_BOOTSTRAP=1`).

#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use stoker::make::{Selection, convert};
use stoker::model::{Bundle, FileSpec, Manifest, Weights};

const MANIFEST: &str = r#"{
    "schema": 1, "name": "fuzz", "architecture": "efficientnet-lite0", "classes": 2, "activation": "softmax",
    "input": {"width": 8, "height": 8},
    "preprocess": {"resize": {"short_side": 9}, "filter": "bilinear", "mean": [0, 0, 0], "std": [1, 1, 1]},
    "golden": {"images": ["golden/a.png"], "tolerance": 0.001},
    "files": {FILES}
}"#;
const PATHS: [&str; 4] = ["model.safetensors", "labels.txt", "golden/logits.safetensors", "golden/a.png"];
/// Right ones: no tensor, two labels, two logits, 8 × 8 pixels.
const FILES: [&[u8]; 4] = [
    b"\x02\0\0\0\0\0\0\0{}",
    b"cat\ndog\n",
    b"\x40\0\0\0\0\0\0\0{\"logits\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]}}   \0\0\0\0\0\0\0\0",
    include_bytes!("../src/golden.png"),
];

fn bundle(at: usize, bytes: &[u8]) {
    let mut files = FILES;
    files[at] = bytes;
    let entry = |(path, bytes): (&str, &[u8])| {
        let FileSpec { size, sha256 } = FileSpec::of(bytes);
        format!("\"{path}\": {{\"size\": {size}, \"sha256\": \"{sha256}\"}}")
    };
    let entries: Vec<String> = PATHS.into_iter().zip(files).map(entry).collect();
    let manifest = MANIFEST.replace("{FILES}", &format!("{{{}}}", entries.join(",")));
    let owned = PATHS.into_iter().zip(files).map(|(path, bytes)| (path.to_owned(), bytes.to_vec().into()));
    if let Ok(bundle) = Bundle::from_files(manifest.as_bytes(), BTreeMap::from_iter(owned)) {
        assert_eq!((bundle.labels().len(), bundle.golden().len()), (2, 1));
        let golden = &bundle.golden()[0];
        assert_eq!((golden.pixels.rgb.len(), golden.logits.len()), (192, 2));
        assert!(golden.logits.iter().all(|logit| logit.is_finite()));
    } else {
        assert!(bytes != FILES[at], "the right files are a bundle");
    }
}

fn manifest(bytes: &[u8]) {
    if let Ok(manifest) = Manifest::parse(bytes) {
        let preprocess = manifest.preprocess();
        assert!(manifest.classes > 0 && preprocess.width > 0 && preprocess.height > 0);
        assert!(manifest.files.len() >= 4);
    }
}

fn weights(bytes: &[u8]) {
    let Ok(mut weights) = Weights::parse(bytes) else { return };
    for dims in [&[2, 2][..], &[4], &[], &[1, 0]] {
        if let Ok(values) = weights.take("w", dims) {
            assert_eq!(values.len(), dims.iter().product::<usize>());
            assert!(values.iter().all(|value| value.is_finite()));
        }
    }
    drop(weights.finish());
}

fn checkpoint(bytes: &[u8]) {
    if let Ok(file) = convert(bytes, &Selection { half: true, ..Selection::default() }) {
        assert!(Weights::parse(&file).is_ok());
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((file, bytes)) = bytes.split_first() else { return };
    match file {
        b'm' => manifest(bytes),
        b'w' => weights(bytes),
        b'c' => checkpoint(bytes),
        b'0'..=b'3' => bundle(usize::from(file - b'0'), bytes),
        _ => {}
    }
});
