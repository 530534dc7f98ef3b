//! What an image may cost: memory before it is allocated, time while it is spent.

use std::time::{Duration, Instant};

use super::ImageError;

/// Bounds on one image. A file of a few bytes can declare billions of pixels (image-rs/image#1748).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Largest width in pixels.
    pub width: u32,
    /// Largest height in pixels.
    pub height: u32,
    /// Largest width × height.
    pub pixels: u64,
    /// Most memory in bytes that a decoder may take for one image.
    pub decoder_bytes: u64,
    /// Most frames or pages that a file may hold, of which the first is decoded.
    pub frames: u32,
    /// Most chunks, segments or tags that are not pixels.
    pub metadata_chunks: u32,
    /// Most scans of a JPEG. Each is a pass over the whole picture, however few bytes it has.
    pub scans: u32,
    /// Most time that a decoder may take.
    pub time: Duration,
    /// Share of the rows, in `0..=1`, that a file which ends early must hold to be labelled.
    pub min_rows: f64,
    /// Of a JPEG's scales, the smallest is decoded whose crop has this many times the model's width and height, at least
    /// 1: more costs time and comes nearer to the full scale. Infinity is always the full scale.
    pub jpeg_oversampling: f64,
}

impl Default for Limits {
    /// 250 megapixels, which holds the 200 of the largest phones' sensors, 512 MiB of decoder memory and 10 seconds.
    fn default() -> Self {
        Limits {
            width: 65_535,
            height: 65_535,
            pixels: 250_000_000,
            decoder_bytes: 512 << 20,
            frames: 10_000,
            metadata_chunks: 10_000,
            scans: 100,
            time: Duration::from_secs(10),
            min_rows: 0.5,
            jpeg_oversampling: 1.4,
        }
    }
}

impl Limits {
    /// Refuses dimensions (pixels) or a decoder's need (bytes) above the limits.
    pub(super) fn check(&self, width: u32, height: u32, decoder_bytes: u64) -> Result<(), ImageError> {
        let pixels = u64::from(width) * u64::from(height);
        for (what, found, limit) in [
            ("width", u64::from(width), u64::from(self.width)),
            ("height", u64::from(height), u64::from(self.height)),
            ("pixels", pixels, self.pixels),
            ("decoder memory", decoder_bytes, self.decoder_bytes),
        ] {
            if found > limit {
                return Err(ImageError::TooManyPixels { what, found, limit });
            }
        }
        Ok(())
    }

    /// Refuses a structure with more frames or more metadata than the limits.
    pub(super) fn check_structure(&self, frames: u64, metadata: u64) -> Result<(), ImageError> {
        for (what, found, limit) in
            [("frames", frames, self.frames), ("metadata chunks", metadata, self.metadata_chunks)]
        {
            if found > u64::from(limit) {
                return Err(ImageError::TooComplex { what, found, limit: u64::from(limit) });
            }
        }
        Ok(())
    }

    /// Refuses a picture of which too few rows, or too small a share of its pixels, came.
    pub(super) fn check_rows(&self, came: u64, all: u64) -> Result<(), ImageError> {
        #[allow(clippy::cast_precision_loss, reason = "counts far below 2^53")]
        let enough = came > 0 && came as f64 >= all as f64 * self.min_rows;
        if enough {
            return Ok(());
        }
        #[allow(clippy::cast_precision_loss, reason = "counts far below 2^53")]
        let percent = came as f64 * 100.0 / all.max(1) as f64;
        Err(ImageError::Truncated(format!("the file ends after {percent:.1} % of the picture")))
    }
}

/// One image's time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    started: Instant,
    allowed: Duration,
}

impl Deadline {
    /// Starts the clock.
    pub(super) fn start(limits: &Limits) -> Self {
        Deadline { started: Instant::now(), allowed: limits.time }
    }

    /// Fails once the time is used up. Costs some 25 ns: call it for every row or so, not for every pixel.
    pub(super) fn check(&self) -> Result<(), ImageError> {
        let taken = self.started.elapsed();
        if taken <= self.allowed {
            return Ok(());
        }
        Err(ImageError::TooComplex {
            what: "decode time (ms)",
            // At least one more than the limit: a part of a millisecond counts.
            found: milliseconds(taken).max(milliseconds(self.allowed).saturating_add(1)),
            limit: milliseconds(self.allowed),
        })
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Deadline, Limits};
    use crate::image::ImageError;

    #[test]
    fn a_deadline_passes() {
        let limits = Limits { time: Duration::ZERO, ..Limits::default() };
        let deadline = Deadline::start(&limits);
        while deadline.check().is_ok() {}
        match deadline.check().unwrap_err() {
            ImageError::TooComplex { what: "decode time (ms)", found: 1.., limit: 0 } => {}
            other => panic!("{other}"),
        }
        assert!(Deadline::start(&Limits::default()).check().is_ok());
    }

    #[test]
    fn no_row_is_too_few_whatever_the_setting() {
        let limits = Limits { min_rows: 0.0, ..Limits::default() };
        assert!(limits.check_rows(0, 10).is_err());
        assert!(limits.check_rows(1, 10).is_ok());
        assert!(Limits::default().check_rows(4, 10).is_err());
        assert!(Limits::default().check_rows(5, 10).is_ok());
    }
}
