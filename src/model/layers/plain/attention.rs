//! Scaled dot-product attention on tensors in plain memory, head by head.

use std::ops::Range;

use burn::tensor::TensorData;
use burn_flex::FlexTensor;
use pulp::Arch;
use rayon::prelude::*;

use super::gemm::{Dense, Packed, Rows};
use crate::model::layers::Act;

/// The rows of one head of a tensor `[batch, heads, tokens, width]`.
struct Head<'a> {
    /// From the first row on.
    values: &'a [f32],
    /// Values from one row to the next.
    stride: usize,
    tokens: usize,
    width: usize,
}

/// `softmax(q kᵀ / √width) v`. All are `[batch, heads, tokens, width]`. In memory, what comes out has a token's heads one
/// after another.
pub(in crate::model::layers) fn attention(inputs: [FlexTensor; 3]) -> FlexTensor {
    let [batch, heads, tokens, width] = std::array::from_fn(|axis| inputs[0].layout().shape()[axis]);
    let inputs = inputs.map(|tensor| if tensor.layout().strides()[3] == 1 { tensor } else { tensor.to_contiguous() });
    let mixed: Vec<Vec<f32>> = (0..batch * heads)
        .into_par_iter()
        .map(|index| {
            let [q, k, v] = inputs.each_ref().map(|tensor| Head::new(tensor, index / heads, index % heads));
            mix(&q, &k, &v)
        })
        .collect();
    let mut out = Vec::with_capacity(batch * heads * tokens * width);
    for mixed in mixed.chunks_exact(heads.max(1)) {
        for token in 0..tokens {
            mixed.iter().for_each(|head| out.extend_from_slice(&head[token * width..][..width]));
        }
    }
    FlexTensor::from_data(TensorData::new(out, [batch, tokens, heads, width])).permute(&[0, 2, 1, 3])
}

impl<'a> Head<'a> {
    /// The tensor's last axis lies in memory one value after another.
    fn new(tensor: &'a FlexTensor, image: usize, head: usize) -> Self {
        let layout = tensor.layout();
        let [across_images, across_heads, stride, _] =
            std::array::from_fn(|axis| layout.strides()[axis].unsigned_abs());
        let first = layout.start_offset() + image * across_images + head * across_heads;
        let (tokens, width) = (layout.shape()[2], layout.shape()[3]);
        Head { values: tensor.storage::<f32>().get(first..).unwrap_or_default(), stride, tokens, width }
    }

    fn row(&self, token: usize) -> &[f32] {
        &self.values[token * self.stride..][..self.width]
    }
}

impl Rows for Head<'_> {
    fn block<'a>(&'a self, first: usize, _: usize, depths: Range<usize>, _: &'a mut Vec<f32>) -> (&'a [f32], usize) {
        (&self.values[first * self.stride + depths.start..], self.stride)
    }
}

/// What one head makes of its values, `[tokens, width]`.
fn mix(q: &Head<'_>, k: &Head<'_>, v: &Head<'_>) -> Vec<f32> {
    let (tokens, width) = (q.tokens, q.width);
    #[allow(clippy::cast_precision_loss, reason = "a head is far narrower than 2^24")]
    let scale = 1.0 / (width as f32).sqrt();
    let keys: Vec<f32> =
        (0..width).flat_map(|channel| (0..k.tokens).map(move |token| k.row(token)[channel] * scale)).collect();
    let mut scores = vec![0.0; tokens * k.tokens];
    Packed::new(&keys, &vec![0.0; k.tokens]).product(q, None, Act::None, &mut scores);
    Arch::new().dispatch(|| scores.chunks_exact_mut(k.tokens).for_each(softmax));
    let values: Vec<f32> = (0..v.tokens).flat_map(|token| v.row(token)).copied().collect();
    let mut mixed = vec![0.0; tokens * width];
    let scores = Dense { values: &scores, depth: v.tokens };
    Packed::new(&values, &vec![0.0; width]).product(&scores, None, Act::None, &mut mixed);
    mixed
}

#[inline(always)]
fn softmax(scores: &mut [f32]) {
    let largest = scores.iter().fold(f32::NEG_INFINITY, |largest, score| largest.max(*score));
    scores.iter_mut().for_each(|score| *score = exp(*score - largest));
    let share = 1.0 / super::rows::sum(scores, |weight| weight);
    scores.iter_mut().for_each(|weight| *weight *= share);
}

/// `eˣ` for `x` up to 0, within 2 units in the last place; below -87 it is that of -87. Written so that the compiler makes
/// vectors of it. The polynomial is that of the Cephes library's `expf`.
#[inline(always)]
fn exp(x: f32) -> f32 {
    const POLYNOMIAL: [f32; 6] = [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_66, 0.5];
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    /// Added to a small number it leaves the nearest integer in the last bits.
    const ROUND: f32 = 12_582_912.0;
    // A NaN stays one.
    let x = if x < -87.0 { -87.0 } else { x };
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let power = rounded - ROUND;
    let rest = x - power * LN_2_HIGH - power * LN_2_LOW;
    let polynomial = POLYNOMIAL[1..].iter().fold(POLYNOMIAL[0], |sum, next| sum * rest + next);
    let scale = f32::from_bits((rounded.to_bits() << 23).wrapping_add(1.0f32.to_bits()));
    (polynomial * rest * rest + rest + 1.0) * scale
}

#[cfg(test)]
mod tests {
    use super::{exp, softmax};

    #[test]
    fn exp_is_within_two_units_in_the_last_place() {
        for step in 0..=8_700u16 {
            let x = -f32::from(step) / 100.0;
            let expected = f64::from(x).exp();
            assert!((f64::from(exp(x)) - expected).abs() <= 2.0 * f64::from(f32::EPSILON) * expected, "{x}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(-1e9) < 1e-37 && exp(f32::NEG_INFINITY) < 1e-37);
    }

    #[test]
    fn a_nan_is_not_hidden() {
        let mut scores = [1.0, f32::NAN, 2.0];
        softmax(&mut scores);
        assert!(scores.iter().all(|weight| weight.is_nan()));
    }
}
