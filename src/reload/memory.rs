//! Whether there is memory for another model beside the one that runs, on the host.
//!
//! A worker that loads more than its container may have is killed, and with it the model that worked. Nothing here knows
//! a GPU's memory: an out-of-memory error while the model is loaded refuses it as well.

use bytesize::ByteSize;

use crate::model::Manifest;
use crate::vram::HostMemory;

/// Memory that loading takes at its peak, in times the bundle's files. Measured: see `docs/reload.md`.
const TIMES_FILES: u64 = 5;

/// Bytes that a thread's layers take for each pixel of the input, at most: three of the largest, of up to 128 values a
/// pixel of a quarter of the size (ConvNeXt's and MobileNet's second stage). Attention takes more at large inputs.
const ACTIVATION_BYTES: u64 = 3 * 128 / 4 * 4;

/// The least that a batch of the new model takes beside, and what was not measured, in bytes.
const MARGIN_BYTES: u64 = 64 << 20;

/// No room for two models.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no memory for it beside the model that runs: its files have {}, loading them takes about {}, and {} are left of {limit}",
    ByteSize(*files), ByteSize(*needed), ByteSize(*left)
)]
pub struct DoesNotFit {
    /// Bytes of the bundle's files.
    pub files: u64,
    /// Bytes that loading takes at its peak.
    pub needed: u64,
    /// Bytes that this process may still take.
    pub left: u64,
    /// What sets that limit.
    pub limit: &'static str,
}

/// Memory that this process may still take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Memory {
    /// The least of what is known, with what sets it; `None` on a system that does not tell.
    left: Option<(u64, &'static str)>,
}

impl Memory {
    /// Of the container, or of the machine where that is less.
    pub(super) fn of_this_process() -> Self {
        Self { left: HostMemory::default().left() }
    }
}

/// Compares what loading the bundle takes with the memory that is left.
pub(super) fn fits(manifest: &Manifest, memory: Memory) -> Result<(), DoesNotFit> {
    let Some((left, limit)) = memory.left else {
        tracing::debug!("this system does not tell how much memory is left");
        return Ok(());
    };
    let files = manifest.files.values().map(|file| file.size).fold(0, u64::saturating_add);
    let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let pixels = u64::from(manifest.input.width) * u64::from(manifest.input.height);
    let activations = pixels.saturating_mul(ACTIVATION_BYTES).saturating_mul(threads);
    let needed = files.saturating_mul(TIMES_FILES).saturating_add(MARGIN_BYTES.max(activations));
    if needed <= left { Ok(()) } else { Err(DoesNotFit { files, needed, left, limit }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Bundle;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_model_that_does_not_fit_is_refused_with_the_numbers() {
        let bundle = Bundle::builtin().unwrap();
        let left = |bytes| Memory { left: Some((bytes, "the container's limit")) };
        assert_eq!(fits(bundle.manifest(), left(1024 * MIB)), Ok(()));
        assert_eq!(fits(bundle.manifest(), Memory { left: None }), Ok(()));
        let error = fits(bundle.manifest(), left(40 * MIB)).unwrap_err().to_string();
        assert!(error.contains("40.0 MiB are left of the container's limit"), "{error}");
        assert!(error.contains("files have 9.6 MiB"), "{error}");
    }
}
