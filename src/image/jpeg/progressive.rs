//! Progressive scans (T.81, annex G): every scan adds coefficients or bits of them, and the blocks are transformed at
//! the end. Scans without a wanted coefficient are not read.

use super::super::ImageError;
use super::super::limits::Deadline;
use super::bits::Bits;
use super::channel::Channel;
use super::huffman::{NoSuchCode, Table};
use super::idct::{Block, ZIGZAG};
use super::markers::{Colour, Scan};
use super::mcus::{Came, Unit, units, walk};
use super::sequential::{short, table};

/// A channel's coefficients, block by block in the file's order.
struct Coefficients {
    values: Vec<i16>,
    /// Per block: whether any but the first may not be zero. A refinement passes over the others.
    detailed: Vec<bool>,
}

/// Decodes the scans that are needed into the channels' planes.
pub(super) fn decode(
    scans: &[Scan],
    channels: &mut [Channel],
    colour: Colour,
    deadline: &Deadline,
) -> Result<Came, ImageError> {
    let mut coefficients: Vec<Coefficients> = channels
        .iter()
        .map(|channel| Coefficients {
            values: vec![0; channel.coefficients_in_memory()],
            detailed: vec![false; channel.coefficients_in_memory() / channel.depth()],
        })
        .collect();
    let (mut shares, mut whole) = (vec![None; channels.len()], true);
    for (scan, _) in scans.iter().zip(needed(scans, channels)).filter(|(_, needed)| *needed) {
        let share = match (scan.first, scan.high) {
            (0, _) => dc(scan, channels, &mut coefficients, deadline)?,
            (_, 0) => ac_first(scan, channels, &mut coefficients, deadline)?,
            _ => ac_again(scan, channels, &mut coefficients, deadline)?,
        };
        whole &= share >= 1.0;
        if scan.first == 0 {
            // The first scan of a channel gives the picture, the others make it finer.
            scan.components.iter().for_each(|part| _ = shares[part.index].get_or_insert(share));
        }
    }
    for (channel, coefficients) in channels.iter_mut().zip(&coefficients) {
        transform(channel, &coefficients.values, deadline)?;
    }
    Ok(Came::of(&shares, colour, whole))
}

/// Which scans have a wanted coefficient, or one without which a later scan that has one cannot be read.
fn needed(scans: &[Scan], channels: &[Channel]) -> Vec<bool> {
    let mut wanted: Vec<u64> = channels.iter().map(|channel| mask(0, channel.coefficients - 1)).collect();
    let mut needed: Vec<bool> = scans
        .iter()
        .rev()
        .map(|scan| {
            let own = mask(scan.first.into(), scan.last.into());
            let needed = scan.components.iter().any(|part| wanted[part.index] & own != 0);
            if needed {
                // A refinement's bits depend on all coefficients of its band that are not zero yet.
                scan.components.iter().for_each(|part| wanted[part.index] |= own);
            }
            needed
        })
        .collect();
    needed.reverse();
    needed
}

/// Bits `first` to `last`.
fn mask(first: usize, last: usize) -> u64 {
    (u64::MAX >> (63 - last)) & (u64::MAX << first)
}

fn dc(
    scan: &Scan,
    channels: &[Channel],
    coefficients: &mut [Coefficients],
    deadline: &Deadline,
) -> Result<f64, ImageError> {
    let first = scan.high == 0;
    let mut tables = Vec::new();
    for part in scan.components.iter().filter(|_| first) {
        tables.push(table(part.dc.as_deref(), false)?);
    }
    let mut predicted = [0i32; 4];
    walk(scan, units(scan, channels), deadline, |bits, Unit { column, row, fresh }| {
        if fresh {
            predicted = [0; 4];
        }
        for (part, at) in scan.components.iter().zip(0..) {
            let channel = &channels[part.index];
            let (h, v) = if scan.components.len() == 1 { (1, 1) } else { (channel.h, channel.v) };
            for row in row * v..(row + 1) * v {
                for column in column * h..(column + 1) * h {
                    bits.refill();
                    let value = if first {
                        let (_, difference) = tables[at].symbol_and_value(bits)?;
                        predicted[at] = predicted[at].wrapping_add(difference);
                        short(predicted[at] << scan.low)
                    } else {
                        short((bits.take(1) << scan.low).cast_signed())
                    };
                    let to = (row * channel.stride + column) * channel.depth();
                    if let Some(to) = coefficients[part.index].values.get_mut(to) {
                        *to |= value;
                    }
                }
            }
        }
        Ok(())
    })
}

/// A scan of one channel's band: its unit is a block.
struct Band<'a> {
    table: Table,
    blocks: &'a mut Coefficients,
    stride: usize,
    first: usize,
    last: usize,
    /// Blocks, from the next one on, that have no new coefficient in this band.
    run: u32,
}

impl<'a> Band<'a> {
    fn new(scan: &Scan, channels: &[Channel], coefficients: &'a mut [Coefficients]) -> Result<Self, ImageError> {
        let part = scan.components.first().ok_or_else(|| ImageError::Corrupt("an empty scan".to_owned()))?;
        let (first, last) = (scan.first.into(), scan.last.into());
        let table = table(part.ac.as_deref(), false)?;
        let blocks = &mut coefficients[part.index];
        Ok(Self { table, blocks, stride: channels[part.index].stride, first, last, run: 0 })
    }

    /// A block's coefficients, in the file's order, of which one gets a value.
    fn block(&mut self, unit: Unit) -> Option<&mut [i16]> {
        let at = unit.row * self.stride + unit.column;
        *self.blocks.detailed.get_mut(at)? = true;
        self.blocks.values.get_mut(at * 64..(at + 1) * 64)
    }

    /// A block's coefficients, if they are not all zero.
    fn detailed_block(&mut self, unit: Unit) -> Option<&mut [i16]> {
        let at = unit.row * self.stride + unit.column;
        if *self.blocks.detailed.get(at)? { self.blocks.values.get_mut(at * 64..(at + 1) * 64) } else { None }
    }
}

fn ac_first(
    scan: &Scan,
    channels: &[Channel],
    coefficients: &mut [Coefficients],
    deadline: &Deadline,
) -> Result<f64, ImageError> {
    let mut band = Band::new(scan, channels, coefficients)?;
    walk(scan, units(scan, channels), deadline, |bits, unit| {
        if unit.fresh {
            band.run = 0;
        }
        if band.run > 0 {
            band.run -= 1;
            return Ok(());
        }
        let (mut at, last) = (band.first, band.last);
        while at <= last {
            bits.refill();
            let (symbol, value) = band.table.symbol_and_value(bits)?;
            match (symbol >> 4, symbol & 15) {
                (15, 0) => at += 16,
                (run, 0) => {
                    band.run = (1 << run) - 1 + bits.take(run.into());
                    break;
                }
                (run, _) => {
                    at += usize::from(run);
                    if last < at {
                        return Err(NoSuchCode);
                    }
                    if let Some(block) = band.block(unit) {
                        block[at] = short(value << scan.low);
                    }
                    at += 1;
                }
            }
        }
        Ok(())
    })
}

fn ac_again(
    scan: &Scan,
    channels: &[Channel],
    coefficients: &mut [Coefficients],
    deadline: &Deadline,
) -> Result<f64, ImageError> {
    let mut band = Band::new(scan, channels, coefficients)?;
    let bit = short(1 << scan.low);
    walk(scan, units(scan, channels), deadline, |bits, unit| {
        if unit.fresh {
            band.run = 0;
        }
        let (mut at, last) = (band.first, band.last);
        while band.run == 0 && at <= last {
            bits.refill();
            let symbol = band.table.symbol(bits)?;
            let (mut zeros, new) = match (symbol >> 4, symbol & 15) {
                (15, 0) => (15, 0),
                (run, 0) => {
                    band.run = (1 << run) + bits.take(run.into());
                    break;
                }
                (run, _) => (run, if bits.take(1) == 1 { bit } else { -bit }),
            };
            let Some(block) = band.block(unit) else { return Err(NoSuchCode) };
            while at <= last {
                if block[at] != 0 {
                    correct(bits, &mut block[at], bit);
                } else if zeros == 0 {
                    block[at] = new;
                    at += 1;
                    break;
                } else {
                    zeros -= 1;
                }
                at += 1;
            }
        }
        if band.run > 0 {
            band.run -= 1;
            let Some(block) = band.detailed_block(unit) else { return Ok(()) };
            block[at..=last].iter_mut().filter(|value| **value != 0).for_each(|value| correct(bits, value, bit));
        }
        Ok(())
    })
}

/// One more bit of a coefficient that is not zero.
#[inline(always)]
fn correct(bits: &mut Bits, value: &mut i16, bit: i16) {
    if bits.count() == 0 {
        bits.refill();
    }
    if bits.take(1) == 1 && *value & bit == 0 {
        *value = value.wrapping_add(if *value < 0 { -bit } else { bit });
    }
}

fn transform(channel: &mut Channel, coefficients: &[i16], deadline: &Deadline) -> Result<(), ImageError> {
    let (depth, keep) = (channel.depth(), channel.coefficients);
    for row in channel.rows.clone() {
        deadline.check()?;
        for column in channel.columns.clone() {
            let at = (row * channel.stride + column) * depth;
            let mut block: Block = [0; 64];
            let mut rows = 1;
            for (value, to) in coefficients[at..at + depth].iter().zip(ZIGZAG).take(keep) {
                let to = usize::from(to);
                block[to] = *value;
                if *value != 0 {
                    rows = rows.max(to / 8 + 1);
                }
            }
            channel.put(column, row, &block, rows);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::mask;

    #[test]
    fn masks_hold_both_ends() {
        assert_eq!(mask(0, 0), 1);
        assert_eq!(mask(1, 5), 0b11_1110);
        assert_eq!(mask(0, 63), u64::MAX);
        assert_eq!(mask(63, 63), 1 << 63);
    }
}
