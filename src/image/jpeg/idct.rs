//! A block's coefficients to samples, at the block's full size of 8 × 8 or at any smaller one.
//!
//! The N × N picture of a block comes from its N × N lowest frequencies, by a DCT of N points: an ideal low-pass
//! filter, which keeps more of the picture than the average of the full samples does.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

/// Coefficients in rows from the lowest vertical frequency down, not yet multiplied by the quantisation table.
pub(super) type Block = [i16; 64];

/// Turns a block into N rows of N samples, the first at the start of the slice and each a stride behind the one before.
/// `rows` is how many rows of coefficients are not all zero, at least 1.
pub(super) type Transform = fn(block: &Block, quantisation: &[f32; 64], rows: usize, samples: &mut [u8], stride: usize);

/// Where the coefficients of the file belong in a [`Block`] (T.81, figure A.6).
pub(super) const ZIGZAG: [u8; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14, 21,
    28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54,
    47, 55, 62, 63,
];

/// The transform to N × N samples; N is 1 to 8.
pub(super) fn to_size(size: usize) -> Transform {
    match size {
        1 => transform::<1>,
        2 => transform::<2>,
        3 => transform::<3>,
        4 => transform::<4>,
        5 => transform::<5>,
        6 => transform::<6>,
        7 => transform::<7>,
        _ => transform_full,
    }
}

/// How many coefficients of the file, in its order, hold all that a transform to N × N samples needs.
pub(super) fn coefficients(size: usize) -> usize {
    let needed = |at: &u8| usize::from(at >> 3) < size && usize::from(at & 7) < size;
    ZIGZAG.iter().rposition(needed).map_or(1, |last| last + 1)
}

/// `BASIS[n][u][x]` is ½ c(u) cos((2x + 1) u π ÷ 2n), with c(0) = √½ and c = 1 else (T.81, A.3.3, for n points).
static BASIS: std::sync::LazyLock<[[[f32; 8]; 8]; 9]> = std::sync::LazyLock::new(|| {
    let mut basis = [[[0.0; 8]; 8]; 9];
    for (n, table) in basis.iter_mut().enumerate().skip(1) {
        for (u, row) in table.iter_mut().enumerate().take(n) {
            for (x, value) in row.iter_mut().enumerate().take(n) {
                let scale = if u == 0 { FRAC_1_SQRT_2 } else { 1.0 };
                let angle = (2 * x + 1) as f64 * u as f64 * PI / (2 * n) as f64;
                #[allow(clippy::cast_possible_truncation, reason = "f32 has digits enough for bytes")]
                let rounded = (scale * angle.cos() / 2.0) as f32;
                *value = rounded;
            }
        }
    }
    basis
});

fn transform<const N: usize>(block: &Block, quantisation: &[f32; 64], rows: usize, samples: &mut [u8], stride: usize) {
    let basis = &BASIS[N];
    let mut coefficients = [[0.0f32; N]; N];
    let rows = rows.min(N);
    for (u, row) in coefficients[..rows].iter_mut().enumerate() {
        for (v, coefficient) in row.iter_mut().enumerate() {
            *coefficient = f32::from(block[u * 8 + v]) * quantisation[u * 8 + v];
        }
    }
    for (y, to) in samples.chunks_mut(stride).take(N).enumerate() {
        let mut column = [0.0f32; N];
        for (u, row) in coefficients[..rows].iter().enumerate() {
            for (sum, coefficient) in column.iter_mut().zip(row) {
                *sum += basis[u][y] * coefficient;
            }
        }
        // Samples are stored around 128.
        let mut sums = [128.0f32; N];
        for (v, value) in column.iter().enumerate() {
            for (sum, weight) in sums.iter_mut().zip(basis[v]) {
                *sum += value * weight;
            }
        }
        for (to, sum) in to.iter_mut().zip(sums) {
            *to = to_byte(sum);
        }
    }
}

/// [`transform`] to 8 × 8 in half of the steps: cosines of even frequencies are the same from both ends of a row, those
/// of odd ones the opposite.
fn transform_full(block: &Block, quantisation: &[f32; 64], rows: usize, samples: &mut [u8], stride: usize) {
    let basis = &BASIS[8];
    let mut coefficients = [[0.0f32; 8]; 8];
    let rows = rows.min(8);
    for (u, row) in coefficients[..rows].iter_mut().enumerate() {
        for (v, coefficient) in row.iter_mut().enumerate() {
            *coefficient = f32::from(block[u * 8 + v]) * quantisation[u * 8 + v];
        }
    }
    let mut columns = [[0.0f32; 8]; 8];
    for y in 0..4 {
        let (mut even, mut odd) = ([0.0f32; 8], [0.0f32; 8]);
        for (u, row) in coefficients[..rows].iter().enumerate() {
            let sums = if u % 2 == 0 { &mut even } else { &mut odd };
            for (sum, coefficient) in sums.iter_mut().zip(row) {
                *sum += basis[u][y] * coefficient;
            }
        }
        for v in 0..8 {
            columns[y][v] = even[v] + odd[v];
            columns[7 - y][v] = even[v] - odd[v];
        }
    }
    for (column, to) in columns.iter().zip(samples.chunks_mut(stride)) {
        let (mut even, mut odd) = ([128.0f32; 4], [0.0f32; 4]);
        for v in [0, 2, 4, 6] {
            for x in 0..4 {
                even[x] += column[v] * basis[v][x];
                odd[x] += column[v + 1] * basis[v + 1][x];
            }
        }
        if let Some(to) = to.first_chunk_mut::<8>() {
            for x in 0..4 {
                to[x] = to_byte(even[x] + odd[x]);
                to[7 - x] = to_byte(even[x] - odd[x]);
            }
        }
    }
}

/// The nearest byte. Adding 1.5 × 2²³ leaves the rounded value in the lowest bits, which compilers turn into vector code;
/// a checked cast they do not.
#[inline(always)]
fn to_byte(value: f32) -> u8 {
    const SHIFT: f32 = 12_582_912.0;
    (value.clamp(0.0, 255.0) + SHIFT).to_bits().to_le_bytes()[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition: every sample a sum over all coefficients (T.81, A.3.3).
    fn by_definition(block: &Block) -> [[f64; 8]; 8] {
        let c = |u: usize| if u == 0 { FRAC_1_SQRT_2 } else { 1.0 };
        let cos = |x: usize, u: usize| ((2 * x + 1) as f64 * u as f64 * PI / 16.0).cos();
        std::array::from_fn(|y| {
            std::array::from_fn(|x| {
                let terms = (0..64).map(|at| {
                    let (u, v) = (at / 8, at % 8);
                    c(u) * c(v) * f64::from(block[at]) * cos(y, u) * cos(x, v) / 4.0
                });
                terms.sum::<f64>() + 128.0
            })
        })
    }

    fn block() -> Block {
        let mut block = [0; 64];
        for (at, value) in [(0, 160), (1, -70), (8, 33), (9, 12), (18, -25), (35, 9), (63, 11), (56, -14)] {
            block[at] = value;
        }
        block
    }

    #[test]
    fn the_full_size_is_the_definition() {
        let mut samples = [0; 64];
        to_size(8)(&block(), &[1.0; 64], 8, &mut samples, 8);
        for (at, expected) in by_definition(&block()).iter().flatten().enumerate() {
            assert!((f64::from(samples[at]) - expected.clamp(0.0, 255.0)).abs() <= 0.501, "sample {at}");
        }
    }

    #[test]
    fn every_size_keeps_the_mean_and_takes_only_its_own_coefficients() {
        for size in 1..=8 {
            let mut samples = vec![0; size * size];
            let mut block = block();
            to_size(size)(&block, &[1.0; 64], 8, &mut samples, size);
            let mean = samples.iter().map(|sample| f64::from(*sample)).sum::<f64>() / samples.len() as f64;
            assert!((mean - 148.0).abs() < 0.5, "{size}: {mean}");
            for at in &ZIGZAG[coefficients(size)..] {
                block[usize::from(*at)] = 99;
            }
            let mut again = vec![0; size * size];
            to_size(size)(&block, &[1.0; 64], 8, &mut again, size);
            assert_eq!(samples, again, "{size}");
        }
    }
}
