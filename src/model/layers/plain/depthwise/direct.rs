//! Pictures that are read where they are.

use std::ops::Range;

use pulp::Simd;

use super::{Chunk, Depthwise, Line, Strip, TILE};

/// What a row of the result is computed from.
struct Under<'a> {
    conv: &'a Depthwise,
    /// Rows of the picture that the kernel lies on, one after another.
    x: &'a [f32],
    /// The first row of the kernel that lies on the picture.
    from: usize,
}

impl Strip<'_> {
    /// All rows of the strip. `SIDE` is the side of the kernel; without tiles if it is not.
    #[inline(always)]
    pub(super) fn direct<S: Simd, const SIDE: usize>(self, simd: S) {
        let conv = self.conv;
        let (side, stride, channels) = (conv.spec.kernel, conv.spec.stride, conv.spec.output);
        let (width, x_width) = (conv.columns.output * channels, conv.columns.input * channels);
        let columns = conv.columns;
        // Pixels whose whole kernel lies on the picture.
        let inner = columns.start.div_ceil(stride).min(columns.output);
        let reach = (columns.input + columns.start).checked_sub(side).map_or(0, |last| last / stride + 1);
        let inner = inner..reach.clamp(inner, columns.output);
        for (index, out) in self.out.chunks_exact_mut(width).enumerate() {
            let (image, row) = ((self.first + index) / conv.rows.output, (self.first + index) % conv.rows.output);
            let (rows, from) = conv.under(row);
            let x = &self.x[image * conv.rows.input * x_width..][rows.start * x_width..rows.end * x_width];
            let under = Under { conv, x, from };
            let mut line = Line { residual: self.residual.map(|all| &all[index * width..][..width]), out };
            let mut pixel = 0;
            while pixel < columns.output {
                let left = if inner.contains(&pixel) { inner.end - pixel } else { 0 };
                pixel += match left {
                    TILE.. if SIDE == side => line.tiles::<S, SIDE, TILE>(simd, &under, pixel),
                    4.. if SIDE == side => line.tiles::<S, SIDE, 4>(simd, &under, pixel),
                    _ => line.pixel::<S>(simd, &under, pixel),
                };
            }
        }
    }
}

impl Line<'_> {
    /// `P` inner pixels, all channels; returns `P`.
    #[inline(always)]
    fn tiles<S: Simd, const SIDE: usize, const P: usize>(&mut self, simd: S, under: &Under<'_>, pixel: usize) -> usize {
        let conv = under.conv;
        let left = pixel * conv.spec.stride - conv.columns.start;
        for chunk in &conv.chunks {
            self.tile::<S, SIDE, P>(simd, under, *chunk, pixel, left);
        }
        P
    }

    #[inline(always)]
    fn tile<S: Simd, const SIDE: usize, const P: usize>(
        &mut self,
        simd: S,
        under: &Under<'_>,
        chunk: Chunk,
        pixel: usize,
        left: usize,
    ) {
        let conv = under.conv;
        let channels = conv.spec.output;
        let step = conv.spec.stride * channels;
        let weights = &conv.weights[chunk.weights..][under.from * SIDE * S::F32_LANES..SIDE * SIDE * S::F32_LANES];
        let weights: &[[S::f32s; SIDE]] = S::as_simd_f32s(weights).0.as_chunks::<SIDE>().0;
        let mut sums = [S::as_simd_f32s(&conv.bias[chunk.channel..chunk.channel + S::F32_LANES]).0[0]; P];
        // The last value that a tap of a pixel reads, from its first one.
        let reach = (SIDE - 1) * channels + S::F32_LANES;
        for (x, weights) in under.x.chunks_exact(conv.columns.input * channels).zip(weights) {
            let x = &x[left * channels + chunk.channel..];
            let x: [&[f32]; P] = std::array::from_fn(|p| &x[p * step..][..reach]);
            for (tap, weight) in weights.iter().enumerate() {
                let at = tap * channels;
                for p in 0..P {
                    let x = S::as_simd_f32s(&x[p][at..at + S::F32_LANES]).0[0];
                    sums[p] = simd.mul_add_e_f32s(x, *weight, sums[p]);
                }
            }
        }
        self.store(simd, &conv.spec, (pixel, chunk.channel), sums);
    }

    /// One pixel anywhere, all channels; returns 1.
    #[inline(always)]
    fn pixel<S: Simd>(&mut self, simd: S, under: &Under<'_>, pixel: usize) -> usize {
        let conv = under.conv;
        let (side, channels) = (conv.spec.kernel, conv.spec.output);
        let left = pixel * conv.spec.stride;
        let from = conv.columns.start.saturating_sub(left).min(side);
        let to = side.min((conv.columns.input + conv.columns.start).saturating_sub(left)).max(from);
        let taps: Range<usize> = from..to;
        for chunk in &conv.chunks {
            let weights = &conv.weights[chunk.weights..][..side * side * S::F32_LANES];
            let weights = &S::as_simd_f32s(weights).0[under.from * side..];
            let mut sum = S::as_simd_f32s(&conv.bias[chunk.channel..chunk.channel + S::F32_LANES]).0[0];
            for (x, weights) in under.x.chunks_exact(conv.columns.input * channels).zip(weights.chunks_exact(side)) {
                for tap in taps.clone() {
                    let at = (left + tap - conv.columns.start) * channels + chunk.channel;
                    sum = simd.mul_add_e_f32s(S::as_simd_f32s(&x[at..at + S::F32_LANES]).0[0], weights[tap], sum);
                }
            }
            self.store(simd, &conv.spec, (pixel, chunk.channel), [sum]);
        }
        1
    }
}
