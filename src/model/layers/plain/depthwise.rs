//! Depthwise convolution on slices, channels last: each channel filtered by itself.
//!
//! A few neighbouring pixels are summed in registers over the whole kernel, for one vector of channels, so that its
//! weights are read once for all of them. Pictures are first copied, one vector of channels at a time, with zeros on both
//! sides: the copy stays in the first cache, and has no edges. Where a copy is most of the work, the picture is read where
//! it is, and the pixels at its edges are computed one by one. A value is summed in the order of the kernel either way.

mod copied;
mod direct;

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::lanes::{Finish, cut, lanes};
use crate::model::layers::ConvSpec;
use crate::model::layers::spec::Axis;

/// Neighbouring pixels in a tile: what pictures of 224 pixels are a multiple of on their way down, and 7 sums, their
/// weights and a few of what they multiply fit in 16 registers.
const TILE: usize = 7;
/// Values of the result below which a thread more costs more than it brings.
const TASK_VALUES: usize = 1 << 14;

/// A depthwise convolution with bias.
pub(in crate::model::layers) struct Depthwise {
    arch: Arch,
    spec: ConvSpec,
    rows: Axis,
    columns: Axis,
    chunks: Vec<Chunk>,
    /// For each chunk `[side × side, lanes]`.
    weights: Vec<f32>,
    bias: Vec<f32>,
}

/// A vector of channels.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    /// Its first channel; the last chunk may share some with the one before, and computes them again.
    channel: usize,
    /// Where its weights begin.
    weights: usize,
}

impl Depthwise {
    /// Whether vectors of this machine fit the channels.
    pub(in crate::model::layers) fn fits(channels: usize) -> bool {
        channels >= lanes(Arch::new())
    }

    /// `weights` are `[side × side, channels]`.
    pub(in crate::model::layers) fn new(
        spec: ConvSpec,
        [rows, columns]: [Axis; 2],
        weights: &[f32],
        bias: Vec<f32>,
    ) -> Self {
        let arch = Arch::new();
        let (lanes, channels, taps) = (lanes(arch), spec.output, spec.kernel * spec.kernel);
        let mut packed = Vec::with_capacity(weights.len() + taps * lanes);
        let mut chunks = Vec::new();
        for channel in (0..channels).step_by(lanes) {
            let channel = channel.min(channels.saturating_sub(lanes));
            chunks.push(Chunk { channel, weights: packed.len() });
            for tap in weights.chunks_exact(channels) {
                packed.extend_from_slice(&tap[channel..channel + lanes]);
            }
        }
        Depthwise { arch, spec, rows, columns, chunks, weights: packed, bias }
    }

    /// Convolves pictures `[batch, rows, columns, channels]`.
    pub(in crate::model::layers) fn run(&self, x: &[f32], residual: Option<&[f32]>, out: &mut [f32]) {
        let width = self.columns.output * self.spec.output;
        if out.is_empty() {
            return;
        }
        let threads = rayon::current_num_threads();
        let tasks = if threads == 1 { 1 } else { (out.len() / TASK_VALUES).clamp(1, 2 * threads) };
        let each = (out.len() / width).div_ceil(tasks);
        let run = |(task, out): (usize, &mut [f32])| {
            let first = task * each;
            let residual = residual.map(|all| &all[first * width..][..out.len()]);
            self.arch.dispatch(Strip { conv: self, x, first, residual, out });
            self.arch.dispatch(Finish { act: self.spec.activation, values: out });
        };
        if tasks == 1 {
            run((0, out));
        } else {
            out.par_chunks_mut(each * width).enumerate().for_each(run);
        }
    }

    /// The rows of the picture under the kernel at a row of the result, and the first row of the kernel that is on it.
    #[inline(always)]
    fn under(&self, row: usize) -> (std::ops::Range<usize>, usize) {
        let top = row * self.spec.stride;
        let from = self.rows.start.saturating_sub(top).min(self.spec.kernel);
        let to = self.spec.kernel.min((self.rows.input + self.rows.start).saturating_sub(top)).max(from);
        let first = (top + from).saturating_sub(self.rows.start).min(self.rows.input);
        (first..first + to - from, from)
    }
}

/// Some rows of the result.
struct Strip<'a> {
    conv: &'a Depthwise,
    x: &'a [f32],
    /// The first row, counted over all pictures.
    first: usize,
    residual: Option<&'a [f32]>,
    out: &'a mut [f32],
}

impl WithSimd for Strip<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match (self.conv.spec.kernel, self.conv.spec.stride) {
            (3, 1) => self.copied::<S, 3>(simd),
            (5, _) => self.copied::<S, 5>(simd),
            (7, _) => self.copied::<S, 7>(simd),
            // Four values copied for nine products: 7.5 instead of 10.8 G products/s.
            (3, _) => self.direct::<S, 3>(simd),
            // No tiles: pixels are computed one by one.
            _ => self.direct::<S, 1>(simd),
        }
    }
}

/// A row of the result that is computed.
struct Line<'a> {
    residual: Option<&'a [f32]>,
    out: &'a mut [f32],
}

impl Line<'_> {
    /// Adds the residual to sums of neighbouring pixels, applies the activation and stores them.
    #[inline(always)]
    fn store<S: Simd, const P: usize>(
        &mut self,
        simd: S,
        spec: &ConvSpec,
        (pixel, channel): (usize, usize),
        sums: [S::f32s; P],
    ) {
        for p in 0..P {
            let at = (pixel + p) * spec.output + channel;
            let sum = match self.residual {
                Some(residual) => simd.add_f32s(sums[p], S::as_simd_f32s(&residual[at..at + S::F32_LANES]).0[0]),
                None => sums[p],
            };
            S::as_mut_simd_f32s(&mut self.out[at..at + S::F32_LANES]).0[0] = cut(simd, spec.activation, sum);
        }
    }
}
