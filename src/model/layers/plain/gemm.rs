//! `activation(A × W + bias + residual)` on slices, with `W` packed once and everything after the product done while the
//! result is in registers.
//!
//! A tile of a few rows and up to 2 vectors of columns is summed in registers over a block of the depth that fits the
//! first-level cache, block after block. Each value is summed in the order of the depth: it is the same to the bit,
//! whatever else is computed with it.

mod tile;

use std::ops::Range;

use pulp::Arch;
use rayon::prelude::*;

use self::tile::Block;
use super::lanes::{Finish, lanes};
use crate::model::layers::Act;

/// Vectors of columns in a tile. With 3, as many sums need 3 rows fewer, but the compiler keeps some in memory.
const TILE_VECTORS: usize = 2;
/// Rows of `W` in a block: with 2 vectors of 8 columns 16 KB, which leaves the first-level cache room for rows of `A`.
const BLOCK_DEPTH: usize = 256;
/// Values of `A` and of the result that a block of rows may hold, to stay in the second-level cache while `W` passes by.
const BLOCK_VALUES: usize = 80 << 10;
/// Rows in a block, at least: every block reads all of `W`.
const LEAST_ROWS: usize = 24;
/// Multiplications below which a thread more costs more than it brings.
const TASK_PRODUCTS: usize = 1 << 18;

/// A matrix `[depth, outputs]` and a bias, in the order in which they are read.
pub(in crate::model::layers) struct Packed {
    arch: Arch,
    depth: usize,
    outputs: usize,
    /// Panels, one after another, each `[depth, vectors, lanes]`.
    weights: Vec<f32>,
    /// Where the first panel begins, aligned to a cache line.
    start: usize,
    bias: Vec<f32>,
    panels: Vec<Panel>,
}

/// Neighbouring columns that are computed together.
#[derive(Clone, Copy, Debug)]
struct Panel {
    /// Its first column.
    column: usize,
    vectors: usize,
    /// Where it begins in the weights.
    offset: usize,
}

/// The rows of `A`.
pub(in crate::model::layers) trait Rows: Sync {
    /// A part of `count` rows from `first` on, and the values from one row to the next; `buffer` may hold them.
    fn block<'a>(
        &'a self,
        first: usize,
        count: usize,
        depths: Range<usize>,
        buffer: &'a mut Vec<f32>,
    ) -> (&'a [f32], usize);
}

/// Rows that lie in memory one after another.
pub(in crate::model::layers) struct Dense<'a> {
    pub(in crate::model::layers) values: &'a [f32],
    pub(in crate::model::layers) depth: usize,
}

impl Rows for Dense<'_> {
    fn block<'a>(
        &'a self,
        first: usize,
        count: usize,
        depths: Range<usize>,
        _: &'a mut Vec<f32>,
    ) -> (&'a [f32], usize) {
        (&self.values[first * self.depth..(first + count) * self.depth][depths.start..], self.depth)
    }
}

impl Packed {
    /// Packs a row-major matrix.
    pub(in crate::model::layers) fn new(matrix: &[f32], bias: &[f32]) -> Self {
        let arch = Arch::new();
        let lanes = lanes(arch);
        let outputs = bias.len();
        let depth = matrix.len() / outputs.max(1);
        let mut panels = Vec::new();
        let (mut vector, mut offset) = (0, 0);
        let all = outputs.div_ceil(lanes);
        while vector < all {
            // Two panels of two rather than one of three and one of one.
            let vectors = if all - vector == TILE_VECTORS + 1 { 2 } else { TILE_VECTORS.min(all - vector) };
            panels.push(Panel { column: vector * lanes, vectors, offset });
            vector += vectors;
            offset += depth * vectors * lanes;
        }
        let mut weights = vec![0.0; offset + 15];
        let start = weights.as_ptr().align_offset(64).min(15);
        for panel in &panels {
            let width = panel.vectors * lanes;
            let columns = width.min(outputs - panel.column);
            for row in 0..depth {
                let at = start + panel.offset + row * width;
                let from = row * outputs + panel.column;
                weights[at..at + columns].copy_from_slice(&matrix[from..from + columns]);
            }
        }
        let mut padded = bias.to_vec();
        padded.resize(all * lanes, 0.0);
        Packed { arch, depth, outputs, weights, start, bias: padded, panels }
    }

    pub(in crate::model::layers) fn depth(&self) -> usize {
        self.depth
    }

    pub(in crate::model::layers) fn outputs(&self) -> usize {
        self.outputs
    }

    /// Computes `out.len() / outputs` rows.
    pub(in crate::model::layers) fn product<R: Rows>(
        &self,
        rows: &R,
        residual: Option<&[f32]>,
        act: Act,
        out: &mut [f32],
    ) {
        let count = out.len() / self.outputs.max(1);
        if count == 0 {
            return;
        }
        let most = (count * self.depth * self.outputs / TASK_PRODUCTS).clamp(1, rayon::current_num_threads());
        if count == 1 {
            return self.single(rows, residual, act, most, out);
        }
        let fitting = (BLOCK_VALUES / (self.depth.min(BLOCK_DEPTH) + self.outputs)).max(LEAST_ROWS);
        // As many blocks for each thread, all of nearly the same size.
        let blocks = count.div_ceil(fitting).next_multiple_of(most);
        let block = count.div_ceil(blocks).next_multiple_of(2);
        let run = |buffer: &mut Vec<f32>, (index, out): (usize, &mut [f32])| {
            let first = index * block;
            let residual = residual.map(|all| &all[first * self.outputs..][..out.len()]);
            let all = Columns { first: 0, width: self.outputs, panels: &self.panels };
            self.block(rows, first, buffer, residual, act, all, out);
        };
        if most == 1 {
            let mut buffer = Vec::new();
            out.chunks_mut(block * self.outputs).enumerate().for_each(|chunk| run(&mut buffer, chunk));
        } else {
            out.par_chunks_mut(block * self.outputs).enumerate().for_each_init(Vec::new, run);
        }
    }

    /// One row, its columns spread over up to `most` tasks.
    fn single<R: Rows>(&self, rows: &R, residual: Option<&[f32]>, act: Act, most: usize, out: &mut [f32]) {
        let width = TILE_VECTORS * lanes(self.arch);
        let each = self.panels.len().div_ceil(most);
        out.par_chunks_mut(each * width).zip(self.panels.par_chunks(each)).for_each(|(out, panels)| {
            let first = panels[0].column;
            let residual = residual.map(|all| &all[first..][..out.len()]);
            let columns = Columns { first, width: out.len(), panels };
            self.block(rows, 0, &mut Vec::new(), residual, act, columns, out);
        });
    }

    /// The rows of `out`, block after block of the depth.
    #[allow(clippy::too_many_arguments, reason = "a row block's coordinates, each used once")]
    fn block<R: Rows>(
        &self,
        rows: &R,
        first: usize,
        buffer: &mut Vec<f32>,
        residual: Option<&[f32]>,
        act: Act,
        columns: Columns<'_>,
        out: &mut [f32],
    ) {
        let count = out.len() / columns.width;
        let step = self.depth.div_ceil(self.depth.div_ceil(BLOCK_DEPTH).max(1)).max(1);
        let mut start = 0;
        loop {
            let depths = start..(start + step).min(self.depth);
            let (a, stride) = rows.block(first, count, depths.clone(), buffer);
            start = depths.end;
            let last = start == self.depth;
            let (residual, cut) = if last { (residual, act) } else { (None, Act::None) };
            self.arch.dispatch(Block { packed: self, a, stride, depths, residual, act: cut, columns, out });
            if last {
                return self.arch.dispatch(Finish { act, values: out });
            }
        }
    }
}

/// Columns of the result that are computed together.
#[derive(Clone, Copy)]
struct Columns<'a> {
    first: usize,
    /// Values from one row of the result to the next.
    width: usize,
    panels: &'a [Panel],
}
