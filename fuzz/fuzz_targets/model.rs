//! Any bytes as a model's manifest and as its weights: reading them ends, in a value or an error.
//!
//! `cargo fuzz run model` (nightly, or `RUSTC_BOOTSTRAP=1`).

#![no_main]

use libfuzzer_sys::fuzz_target;
use stoker::model::{Manifest, Weights};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(manifest) = Manifest::parse(bytes) {
        assert!(manifest.classes > 0 && manifest.input.width > 0 && manifest.input.height > 0);
    }
    if let Ok(mut weights) = Weights::parse(bytes) {
        if let Ok(values) = weights.take("w", &[2, 2]) {
            assert_eq!(values.len(), 4);
            assert!(values.iter().all(|value| value.is_finite()));
        }
        drop(weights.finish());
    }
});
