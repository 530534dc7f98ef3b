//! Pictures that are copied: a vector of channels at a time, a band of rows, with zeros on both sides.

use pulp::Simd;

use super::{Chunk, Line, Strip, TILE};

/// Values of a copy that stay in the first- or second-level cache while they are read.
const COPY_VALUES: usize = 12 << 10;

impl Strip<'_> {
    /// All rows of the strip, picture after picture.
    #[inline(always)]
    pub(super) fn copied<S: Simd, const SIDE: usize>(mut self, simd: S) {
        let conv = self.conv;
        let width = conv.columns.output * conv.spec.output;
        let picture = conv.rows.input * conv.columns.input * conv.spec.input;
        let columns = conv.columns.start + conv.columns.input + conv.columns.end;
        let band = (COPY_VALUES / (columns * conv.spec.stride * S::F32_LANES)).max(conv.spec.kernel);
        let most = conv.rows.input.min((band - 1) * conv.spec.stride + conv.spec.kernel);
        let mut copy = vec![simd.splat_f32s(0.0); most * columns];
        let (mut done, count) = (0, self.out.len() / width);
        while done < count {
            let (image, row) = ((self.first + done) / conv.rows.output, (self.first + done) % conv.rows.output);
            let rows = row..conv.rows.output.min(row + band).min(row + count - done);
            let x = &self.x[image * picture..][..picture];
            for chunk in &conv.chunks {
                self.chunk::<S, SIDE>(simd, x, rows.clone(), done, *chunk, &mut copy);
            }
            done += rows.len();
        }
    }

    /// A vector of channels of neighbouring rows of one picture.
    #[inline(always)]
    fn chunk<S: Simd, const SIDE: usize>(
        &mut self,
        simd: S,
        x: &[f32],
        rows: std::ops::Range<usize>,
        done: usize,
        chunk: Chunk,
        copy: &mut [S::f32s],
    ) {
        let conv = self.conv;
        let (channels, input) = (conv.spec.output, conv.columns.input);
        let width = conv.columns.output * channels;
        let columns = conv.columns.start + input + conv.columns.end;
        let needed = conv.under(rows.start).0.start..conv.under(rows.end - 1).0.end;
        let x = &x[needed.start * input * channels..needed.end * input * channels];
        for (x, copy) in x.chunks_exact(input * channels).zip(copy.chunks_exact_mut(columns)) {
            let copy = &mut copy[conv.columns.start..conv.columns.start + input];
            for (x, copy) in x.chunks_exact(channels).zip(copy) {
                *copy = S::as_simd_f32s(&x[chunk.channel..chunk.channel + S::F32_LANES]).0[0];
            }
        }
        let weights = &conv.weights[chunk.weights..][..SIDE * SIDE * S::F32_LANES];
        let weights: &[[S::f32s; SIDE]] = S::as_simd_f32s(weights).0.as_chunks::<SIDE>().0;
        let bias = S::as_simd_f32s(&conv.bias[chunk.channel..chunk.channel + S::F32_LANES]).0[0];
        for (index, row) in rows.enumerate() {
            let at = (done + index) * width;
            let residual = self.residual.map(|all| &all[at..at + width]);
            let mut line = Line { residual, out: &mut self.out[at..at + width] };
            let (under, from) = conv.under(row);
            let x = &copy[(under.start - needed.start) * columns..(under.end - needed.start) * columns];
            let weights = &weights[from..from + under.len()];
            let mut pixel = 0;
            while pixel < conv.columns.output {
                let at = (pixel, chunk.channel);
                // Nothing where the kernel lies on padding only.
                let x = x.get(pixel * conv.spec.stride..).unwrap_or_default();
                pixel += match (conv.spec.stride, conv.columns.output - pixel) {
                    (1, TILE..) => line.tile_of_copy::<S, SIDE, 1, TILE>(simd, conv, x, weights, bias, at),
                    (2, TILE..) => line.tile_of_copy::<S, SIDE, 2, TILE>(simd, conv, x, weights, bias, at),
                    (1, 4..) => line.tile_of_copy::<S, SIDE, 1, 4>(simd, conv, x, weights, bias, at),
                    (2, 4..) => line.tile_of_copy::<S, SIDE, 2, 4>(simd, conv, x, weights, bias, at),
                    _ => line.tile_of_copy::<S, SIDE, 1, 1>(simd, conv, x, weights, bias, at),
                };
            }
        }
    }
}

impl Line<'_> {
    /// `P` pixels; returns `P`. `x` begins at the first column under the kernel.
    #[inline(always)]
    fn tile_of_copy<S: Simd, const SIDE: usize, const STRIDE: usize, const P: usize>(
        &mut self,
        simd: S,
        conv: &super::Depthwise,
        x: &[S::f32s],
        weights: &[[S::f32s; SIDE]],
        bias: S::f32s,
        at: (usize, usize),
    ) -> usize {
        let columns = conv.columns.start + conv.columns.input + conv.columns.end;
        let mut sums = [bias; P];
        for (row, weights) in weights.iter().enumerate() {
            let x = &x[row * columns..][..(P - 1) * STRIDE + SIDE];
            for (tap, weight) in weights.iter().enumerate() {
                for p in 0..P {
                    sums[p] = simd.mul_add_e_f32s(x[p * STRIDE + tap], *weight, sums[p]);
                }
            }
        }
        self.store(simd, &conv.spec, at, sums);
        P
    }
}
