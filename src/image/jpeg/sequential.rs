//! Baseline and extended sequential scans (T.81, F.2): each block is decoded and transformed at once.

use super::super::ImageError;
use super::super::limits::Deadline;
use super::bits::Bits;
use super::channel::Channel;
use super::huffman::{Codes, NoSuchCode, Table};
use super::idct::{Block, ZIGZAG};
use super::markers::{Colour, Scan, ScanComponent};
use super::mcus::{Came, Unit, units, walk};

/// A component's tables and its prediction.
struct Coder {
    channel: usize,
    dc: Table,
    ac: Table,
    predicted: i32,
}

/// Decodes every scan into the channels' planes.
pub(super) fn decode(
    scans: &[Scan],
    channels: &mut [Channel],
    colour: Colour,
    deadline: &Deadline,
) -> Result<Came, ImageError> {
    let mut shares = vec![None; channels.len()];
    for scan in scans {
        // A second scan of a component is no part of this mode.
        if scan.components.iter().any(|part| shares[part.index].is_some()) {
            continue;
        }
        let share = decode_scan(scan, channels, deadline)?;
        scan.components.iter().for_each(|part| shares[part.index] = Some(share));
    }
    Ok(Came::of(&shares, colour, true))
}

fn decode_scan(scan: &Scan, channels: &mut [Channel], deadline: &Deadline) -> Result<f64, ImageError> {
    let coder = |part: &ScanComponent| {
        let (dc, ac) = (table(part.dc.as_deref(), false)?, table(part.ac.as_deref(), true)?);
        Ok(Coder { channel: part.index, dc, ac, predicted: 0 })
    };
    let mut coders = scan.components.iter().map(coder).collect::<Result<Vec<_>, ImageError>>()?;
    let alone = coders.len() == 1;
    let mut block: Block = [0; 64];
    walk(scan, units(scan, channels), deadline, |bits, Unit { column, row, fresh }| {
        for coder in &mut coders {
            if fresh {
                coder.predicted = 0;
            }
            let channel = &mut channels[coder.channel];
            let (h, v) = if alone { (1, 1) } else { (channel.h, channel.v) };
            for row in row * v..(row + 1) * v {
                for column in column * h..(column + 1) * h {
                    if channel.wants(column, row) {
                        block = [0; 64];
                        let rows = coder.block(bits, channel.coefficients, &mut block)?;
                        channel.put(column, row, &block, rows);
                    } else {
                        coder.block(bits, 1, &mut block)?;
                    }
                }
            }
        }
        Ok(())
    })
}

impl Coder {
    /// Decodes a block and keeps as many of its coefficients; gives how many rows of them are not all zero.
    #[inline(always)]
    fn block(&mut self, bits: &mut Bits, keep: usize, block: &mut Block) -> Result<usize, NoSuchCode> {
        bits.refill();
        let (_, difference) = self.dc.symbol_and_value(bits)?;
        self.predicted = self.predicted.wrapping_add(difference);
        block[0] = short(self.predicted);
        let (mut at, mut rows) = (1, 1);
        while at < keep {
            if bits.count() < 32 {
                bits.refill();
            }
            let (symbol, value) = self.ac.symbol_and_value(bits)?;
            match (symbol >> 4, symbol & 15) {
                (15, 0) => at += 16,
                (_, 0) => return Ok(rows),
                (run, _) => {
                    at += usize::from(run);
                    let to = usize::from(*ZIGZAG.get(at).ok_or(NoSuchCode)?);
                    if at < keep {
                        block[to] = short(value);
                        rows = rows.max(to / 8 + 1);
                    }
                    at += 1;
                }
            }
        }
        self.ac.skip_block(bits, at)?;
        Ok(rows)
    }
}

/// No sound file holds more than 16 bits.
#[allow(clippy::cast_possible_truncation, reason = "what a broken file holds more is lost")]
pub(super) fn short(value: i32) -> i16 {
    value as i16
}

/// Builds a component's table.
pub(super) fn table(codes: Option<&Codes>, strides: bool) -> Result<Table, ImageError> {
    let codes = codes.ok_or_else(|| ImageError::Corrupt("a scan without its Huffman table".to_owned()))?;
    Table::new(codes, strides)
}
