//! The part of a product that is computed in registers.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::{Columns, Packed, Panel};
use crate::model::layers::Act;
use crate::model::layers::plain::lanes::cut;

/// Some rows, some panels and a part of the depth of a product.
pub(super) struct Block<'a> {
    pub(super) packed: &'a Packed,
    pub(super) a: &'a [f32],
    /// Values from one row of `a` to the next.
    pub(super) stride: usize,
    pub(super) depths: Range<usize>,
    /// What is added to the sums, with the last part of the depth.
    pub(super) residual: Option<&'a [f32]>,
    pub(super) act: Act,
    pub(super) columns: Columns<'a>,
    /// The sums so far, unless the depth begins at 0.
    pub(super) out: &'a mut [f32],
}

/// What all tiles of a panel share.
struct Shared<'a, S: Simd, const V: usize> {
    weights: &'a [[S::f32s; V]],
    bias: [S::f32s; V],
    /// Where the panel begins in a row of the result.
    column: usize,
    /// Columns that are stored, if not all.
    columns: usize,
}

impl WithSimd for Block<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        for panel in self.columns.panels {
            // As many sums as leave registers for the weights and a value of a row: 16 registers hold 6 × 2.
            match (panel.vectors, S::REGISTER_COUNT >= 32) {
                (1, _) => self.panel::<S, 8, 1>(simd, *panel),
                (_, false) => self.panel::<S, 6, 2>(simd, *panel),
                (_, true) => self.panel::<S, 12, 2>(simd, *panel),
            }
        }
    }
}

impl Block<'_> {
    #[inline(always)]
    fn panel<S: Simd, const R: usize, const V: usize>(&mut self, simd: S, panel: Panel) {
        let Packed { outputs, ref weights, start, ref bias, .. } = *self.packed;
        let width = V * S::F32_LANES;
        let weights = &weights[start + panel.offset..][self.depths.start * width..self.depths.end * width];
        let bias = S::as_simd_f32s(&bias[panel.column..][..width]).0;
        let shared = Shared::<S, V> {
            weights: S::as_simd_f32s(weights).0.as_chunks::<V>().0,
            bias: std::array::from_fn(|v| bias[v]),
            column: panel.column - self.columns.first,
            columns: width.min(outputs - panel.column),
        };
        if shared.columns == width {
            self.rows::<S, R, V, true>(simd, &shared);
        } else {
            self.rows::<S, R, V, false>(simd, &shared);
        }
    }

    /// All rows, `R` at a time.
    #[inline(always)]
    fn rows<S: Simd, const R: usize, const V: usize, const FULL: bool>(&mut self, simd: S, shared: &Shared<'_, S, V>) {
        let rows = self.out.len() / self.columns.width;
        let mut row = 0;
        while row + R <= rows {
            self.tile::<S, R, V, FULL>(simd, shared, row);
            row += R;
        }
        while row + 4 <= rows {
            self.tile::<S, 4, V, FULL>(simd, shared, row);
            row += 4;
        }
        while row + 2 <= rows {
            self.tile::<S, 2, V, FULL>(simd, shared, row);
            row += 2;
        }
        if row < rows {
            self.tile::<S, 1, V, FULL>(simd, shared, row);
        }
    }

    #[inline(always)]
    fn tile<S: Simd, const R: usize, const V: usize, const FULL: bool>(
        &mut self,
        simd: S,
        shared: &Shared<'_, S, V>,
        row: usize,
    ) {
        let weights = shared.weights;
        let a = &self.a[row * self.stride..];
        let a: [&[f32]; R] = std::array::from_fn(|r| &a[r * self.stride..][..weights.len()]);
        let columns = if FULL { V * S::F32_LANES } else { shared.columns };
        let first = row * self.columns.width + shared.column;
        let mut sums = [shared.bias; R];
        if self.depths.start > 0 {
            for r in 0..R {
                sums[r] = load::<S, V, FULL>(simd, &self.out[first + r * self.columns.width..][..columns]);
            }
        }
        for (depth, weights) in weights.iter().enumerate() {
            for r in 0..R {
                let value = simd.splat_f32s(a[r][depth]);
                for v in 0..V {
                    sums[r][v] = simd.mul_add_e_f32s(value, weights[v], sums[r][v]);
                }
            }
        }
        if let Some(residual) = self.residual {
            for r in 0..R {
                let residual = load::<S, V, FULL>(simd, &residual[first + r * self.columns.width..][..columns]);
                for v in 0..V {
                    sums[r][v] = simd.add_f32s(sums[r][v], residual[v]);
                }
            }
        }
        for r in 0..R {
            for v in 0..V {
                sums[r][v] = cut(simd, self.act, sums[r][v]);
            }
            store::<S, V, FULL>(simd, sums[r], &mut self.out[first + r * self.columns.width..][..columns]);
        }
    }
}

/// Reads `V` vectors, or as many values as there are and zeros.
#[inline(always)]
fn load<S: Simd, const V: usize, const FULL: bool>(simd: S, values: &[f32]) -> [S::f32s; V] {
    let (vectors, rest) = S::as_simd_f32s(values);
    let mut found = [simd.splat_f32s(0.0); V];
    for v in 0..V {
        if FULL || v < vectors.len() {
            found[v] = vectors[v];
        } else if v == vectors.len() {
            found[v] = simd.partial_load_f32s(rest);
        }
    }
    found
}

/// Writes `V` vectors, or as much of them as there is room for.
#[inline(always)]
fn store<S: Simd, const V: usize, const FULL: bool>(simd: S, vectors: [S::f32s; V], values: &mut [f32]) {
    let (out, rest) = S::as_mut_simd_f32s(values);
    for v in 0..V {
        if FULL || v < out.len() {
            out[v] = vectors[v];
        } else if v == out.len() {
            simd.partial_store_f32s(rest, vectors[v]);
        }
    }
}
