//! Kernels that pass over pixels: pools, layer norm, and the way from bytes to normalised values.

use pulp::Arch;
use rayon::prelude::*;

use crate::model::layers::spec::Axis;

/// Values below which a thread more costs more than it brings.
const TASK_VALUES: usize = 1 << 14;
/// Running sums in a mean: as many as a vector holds, so that they are added side by side.
const SUMS: usize = 16;

/// The mean over `pixels` of each channel: `[batch, pixels, channels]` to `[batch, channels]`.
pub(in crate::model::layers) fn average(x: &[f32], pixels: usize, channels: usize, out: &mut [f32]) {
    #[allow(clippy::cast_precision_loss, reason = "a picture has far fewer than 2^24 pixels here")]
    let share = 1.0 / pixels as f32;
    Arch::new().dispatch(|| {
        for (x, out) in x.chunks_exact(pixels * channels).zip(out.chunks_exact_mut(channels)) {
            out.fill(0.0);
            for x in x.chunks_exact(channels) {
                out.iter_mut().zip(x).for_each(|(sum, x)| *sum += x);
            }
            out.iter_mut().for_each(|sum| *sum *= share);
        }
    });
}

/// The largest of each square of pixels, channel by channel; padding never wins.
pub(in crate::model::layers) fn max_pool(
    x: &[f32],
    [rows, columns]: [Axis; 2],
    (kernel, stride): (usize, usize),
    channels: usize,
    out: &mut [f32],
) {
    let arch = Arch::new();
    let width = columns.input * channels;
    let line = |(index, out): (usize, &mut [f32])| {
        let (image, row) = (index / rows.output, index % rows.output);
        let x = &x[image * rows.input * width..][..rows.input * width];
        let under = window(row, rows, kernel, stride);
        arch.dispatch(|| {
            for (column, out) in out.chunks_exact_mut(channels).enumerate() {
                out.fill(f32::NEG_INFINITY);
                let across = window(column, columns, kernel, stride);
                for x in x[under.start * width..under.end * width].chunks_exact(width) {
                    for x in x[across.start * channels..across.end * channels].chunks_exact(channels) {
                        out.iter_mut()
                            .zip(x)
                            .for_each(|(most, x)| *most = if *x > *most || x.is_nan() { *x } else { *most });
                    }
                }
            }
        });
    };
    let each = columns.output * channels;
    out.par_chunks_mut(each).enumerate().with_min_len(TASK_VALUES.div_ceil(each.max(1))).for_each(line);
}

/// Pixels of the picture under a kernel.
fn window(at: usize, axis: Axis, kernel: usize, stride: usize) -> std::ops::Range<usize> {
    let start = (at * stride).saturating_sub(axis.start).min(axis.input);
    start..(at * stride + kernel).saturating_sub(axis.start).clamp(start, axis.input)
}

/// `(x − mean) / √(variance + ε) × weight + bias` over each row of channels.
pub(in crate::model::layers) fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], epsilon: f64, out: &mut [f32]) {
    let (arch, channels) = (Arch::new(), weight.len());
    #[allow(clippy::cast_precision_loss, reason = "a layer has far fewer than 2^24 channels")]
    let share = 1.0 / channels as f32;
    #[allow(clippy::cast_possible_truncation, reason = "rounding to f32 is what is meant")]
    let epsilon = epsilon as f32;
    let line = |(x, out): (&[f32], &mut [f32])| {
        arch.dispatch(|| {
            let mean = sum(x, |x| x) * share;
            let variance = sum(x, |x| (x - mean) * (x - mean)) * share;
            let scale = 1.0 / (variance + epsilon).sqrt();
            let parameters = weight.iter().zip(bias);
            for ((out, x), (weight, bias)) in out.iter_mut().zip(x).zip(parameters) {
                *out = (x - mean) * scale * weight + bias;
            }
        });
    };
    let least = TASK_VALUES.div_ceil(channels.max(1));
    x.par_chunks_exact(channels).zip(out.par_chunks_exact_mut(channels)).with_min_len(least).for_each(line);
}

/// Sums of every 16th value, added up at the end: the order that vectors add in, on every machine.
#[inline(always)]
pub(super) fn sum(x: &[f32], term: impl Fn(f32) -> f32) -> f32 {
    let (vectors, rest) = x.as_chunks::<SUMS>();
    let mut sums = [0.0; SUMS];
    for x in vectors {
        for (sum, x) in sums.iter_mut().zip(x) {
            *sum += term(*x);
        }
    }
    sums.iter().sum::<f32>() + rest.iter().map(|x| term(*x)).sum::<f32>()
}

/// `(byte − mean) / std` of each colour.
pub(in crate::model::layers) fn normalise(rgb: &[u8], mean: [f32; 3], std: [f32; 3], out: &mut [f32]) {
    let tables: [[f32; 256]; 3] = std::array::from_fn(|colour| {
        std::array::from_fn(|byte| {
            let byte = u8::try_from(byte).unwrap_or(u8::MAX);
            (f32::from(byte) - mean[colour]) / std[colour]
        })
    });
    for (out, rgb) in out.as_chunks_mut::<3>().0.iter_mut().zip(rgb.as_chunks::<3>().0) {
        *out = std::array::from_fn(|colour| tables[colour][usize::from(rgb[colour])]);
    }
}
