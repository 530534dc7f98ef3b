//! One colour channel while it is decoded: its place in the frame, its scale, and the part of it that is wanted.

use std::ops::Range;

use super::super::crop::{Crop, Cut};
use super::idct::{self, Block, Transform, ZIGZAG};
use super::markers::{Component, Frame};
use super::planes::Plane;

/// A channel of the frame.
pub(super) struct Channel {
    /// Blocks of an MCU, across and down.
    pub(super) h: usize,
    pub(super) v: usize,
    /// Blocks that the picture itself covers, across and down: a scan of this channel alone holds these.
    pub(super) blocks: (usize, usize),
    /// Blocks across, those that fill up the last MCU included.
    pub(super) stride: usize,
    /// The wanted blocks.
    pub(super) columns: Range<usize>,
    pub(super) rows: Range<usize>,
    /// Rows of blocks that must be decoded: up to the last wanted one, and further if rows are to be counted.
    pub(super) until: usize,
    /// Coefficients of a block that are wanted, in the file's order.
    pub(super) coefficients: usize,
    size: usize,
    transform: Transform,
    quantisation: [f32; 64],
    pub(super) plane: Plane,
}

/// The scales, in eighths. Above a half, what a smaller transform saves does not pay for its inexactness.
const SCALES: [u32; 4] = [1, 2, 3, 4];

/// The smallest scale at which a cut still covers the size, for all channels: chroma that is stored at half of the
/// luma's resolution stays at half of it, which moves the logits no further than the scale of the luma does.
pub(super) fn eighths(cut: Cut, (width, height): (f64, f64)) -> u32 {
    let covers = |eighths: &u32| {
        let scale = f64::from(*eighths) / 8.0;
        cut.width * scale >= width && cut.height * scale >= height
    };
    SCALES.into_iter().find(covers).unwrap_or(8)
}

impl Channel {
    /// Lays out the channels of a frame for a crop at a scale, to be decoded at least down to `rows` pixels.
    pub(super) fn of(frame: &Frame, crop: Crop, eighths: usize, rows: u32) -> Vec<Channel> {
        let scaled = |samples: usize| (samples * eighths).div_ceil(8);
        let alone = frame.components.len() == 1;
        let sampling = |part: &Component| if alone { (1, 1) } else { (part.h, part.v) };
        let most_h = frame.components.iter().map(|part| sampling(part).0).max().unwrap_or(1);
        let most_v = frame.components.iter().map(|part| sampling(part).1).max().unwrap_or(1);
        frame
            .components
            .iter()
            .map(|part| {
                let (h, v) = sampling(part);
                // Without a table there is no scan of this channel either.
                let quantisation = in_rows(&part.quantisation.unwrap_or([0; 64]));
                let share = |length: u32, own: u32, most: u32| (length * own).div_ceil(most) as usize;
                let blocks = (share(frame.width, h, most_h).div_ceil(8), share(frame.height, v, most_v).div_ceil(8));
                let mcus = (frame.width.div_ceil(8 * most_h) as usize, frame.height.div_ceil(8 * most_v) as usize);
                // One block more on each side: enlarging chroma looks at the neighbours.
                let wanted = |from: u32, length: u32, own: u32, most: u32, all: usize| {
                    let first = (from * own / most / 8) as usize;
                    first.saturating_sub(1)..(share(from + length, own, most).div_ceil(8) + 1).min(all)
                };
                let columns = wanted(crop.left, crop.width, h, most_h, mcus.0 * h as usize);
                let lines = wanted(crop.top, crop.height, v, most_v, mcus.1 * v as usize);
                let counted = (share(rows, v, most_v).div_ceil(8)).min(mcus.1 * v as usize);
                let (width, height) = (columns.len() * eighths, lines.len() * eighths);
                let scale = |own: u32, most: u32| f64::from(own) / f64::from(most) * eighths as f64 / 8.0;
                Channel {
                    h: h as usize,
                    v: v as usize,
                    blocks,
                    stride: mcus.0 * h as usize,
                    until: lines.end.max(counted),
                    coefficients: idct::coefficients(eighths),
                    size: eighths,
                    transform: idct::to_size(eighths),
                    quantisation,
                    plane: Plane {
                        samples: Vec::new(),
                        width,
                        height,
                        left: columns.start * eighths,
                        top: lines.start * eighths,
                        scale: (scale(h, most_h), scale(v, most_v)),
                        sampling: ((h as usize, most_h as usize), (v as usize, most_v as usize)),
                        all: (scaled(share(frame.width, h, most_h)), scaled(share(frame.height, v, most_v))),
                    },
                    columns,
                    rows: lines,
                }
            })
            .collect()
    }

    /// Memory in bytes that decoding takes.
    pub(super) fn memory(&self, progressive: bool) -> u64 {
        let samples = self.plane.width as u64 * self.plane.height as u64;
        let coefficients = self.coefficients_in_memory() as u64;
        samples + if progressive { 2 * coefficients + coefficients / self.depth() as u64 } else { 0 }
    }

    /// Coefficients of a block that a progressive picture keeps: refining one needs all that came before.
    pub(super) fn depth(&self) -> usize {
        if self.coefficients == 1 { 1 } else { 64 }
    }

    pub(super) fn coefficients_in_memory(&self) -> usize {
        self.stride * self.until * self.depth()
    }

    /// Makes room for the samples: grey, in case that a block never comes.
    pub(super) fn allocate(&mut self) {
        self.plane.samples = vec![128; self.plane.width * self.plane.height];
    }

    /// Writes a wanted block's samples.
    pub(super) fn put(&mut self, column: usize, row: usize, block: &Block, rows: usize) {
        let at = (row - self.rows.start) * self.size * self.plane.width + (column - self.columns.start) * self.size;
        (self.transform)(block, &self.quantisation, rows, &mut self.plane.samples[at..], self.plane.width);
    }

    pub(super) fn wants(&self, column: usize, row: usize) -> bool {
        self.columns.contains(&column) && self.rows.contains(&row)
    }
}

/// A quantisation table in the order of a [`Block`].
fn in_rows(zigzag: &[u16; 64]) -> [f32; 64] {
    let mut rows = [0.0; 64];
    for (value, at) in zigzag.iter().zip(ZIGZAG) {
        rows[usize::from(at)] = f32::from(*value);
    }
    rows
}
