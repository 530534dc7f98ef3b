//! The pixels under a kernel, position by position, as rows of a matrix.

use std::ops::Range;

use super::gemm::Rows;
use crate::model::layers::spec::{Axis, ConvSpec};

/// Pictures `[batch, rows, columns, channels]`, seen through a kernel.
pub(in crate::model::layers) struct Windows<'a> {
    x: &'a [f32],
    spec: ConvSpec,
    rows: Axis,
    columns: Axis,
}

impl<'a> Windows<'a> {
    pub(in crate::model::layers) fn new(x: &'a [f32], spec: ConvSpec, [rows, columns]: [Axis; 2]) -> Self {
        Windows { x, spec, rows, columns }
    }

    /// A part of the pixels under one row of the kernel: values from the picture, and zeros around it. `left` is the
    /// column of the kernel, `from` the value in its row that the part begins with.
    fn line(&self, image: usize, row: usize, left: usize, from: usize, out: &mut [f32]) {
        let ConvSpec { input: channels, .. } = self.spec;
        let Some(row) = row.checked_sub(self.rows.start).filter(|row| *row < self.rows.input) else {
            return out.fill(0.0);
        };
        // Counted in values from the first pixel of padding.
        let (start, end) = (self.columns.start * channels, (self.columns.start + self.columns.input) * channels);
        let from = left * channels + from;
        let lead = start.saturating_sub(from).min(out.len());
        let until = end.saturating_sub(from).clamp(lead, out.len());
        out[..lead].fill(0.0);
        out[until..].fill(0.0);
        if until > lead {
            let first = (image * self.rows.input + row) * self.columns.input * channels + from + lead - start;
            out[lead..until].copy_from_slice(&self.x[first..first + until - lead]);
        }
    }
}

impl Rows for Windows<'_> {
    fn block<'a>(
        &'a self,
        first: usize,
        count: usize,
        depths: Range<usize>,
        buffer: &'a mut Vec<f32>,
    ) -> (&'a [f32], usize) {
        let ConvSpec { input, kernel: side, stride, .. } = self.spec;
        let line = side * input;
        buffer.resize(count * depths.len(), 0.0);
        for (index, mut window) in buffer.chunks_exact_mut(depths.len()).enumerate() {
            let at = first + index;
            let (row, column) = (at / self.columns.output, at % self.columns.output);
            let (image, row) = (row / self.rows.output, row % self.rows.output);
            let mut depth = depths.start;
            while depth < depths.end {
                let (offset, from) = (depth / line, depth % line);
                let (out, rest) = window.split_at_mut((line - from).min(depths.end - depth));
                self.line(image, row * stride + offset, column * stride, from, out);
                depth += out.len();
                window = rest;
            }
        }
        (buffer, depths.len())
    }
}
