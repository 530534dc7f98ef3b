//! The walk over a scan's minimum coded units (T.81, A.2) and its restart markers.

use super::super::ImageError;
use super::super::limits::Deadline;
use super::bits::Bits;
use super::channel::Channel;
use super::huffman::NoSuchCode;
use super::markers::{Colour, Scan};

/// What came of a picture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Came {
    /// Share of the picture that can be seen, 0 to 1.
    pub(super) share: f64,
    /// Nothing is missing, however fine.
    pub(super) whole: bool,
}

impl Came {
    /// From the share of each channel in the scan that gives its picture. Without its chroma a picture can still be seen.
    pub(super) fn of(shares: &[Option<f64>], colour: Colour, whole: bool) -> Came {
        let seen = if colour.has_luma() { shares.get(..1).unwrap_or(shares) } else { shares };
        let least = |shares: &[Option<f64>]| shares.iter().map(|share| share.unwrap_or(0.0)).fold(1.0, f64::min);
        Came { share: least(seen), whole: whole && least(shares) >= 1.0 }
    }
}

/// Where a unit lies.
#[derive(Clone, Copy)]
pub(super) struct Unit {
    pub(super) column: usize,
    pub(super) row: usize,
    /// It is the first one, or the first behind a restart marker: nothing is predicted from those before.
    pub(super) fresh: bool,
}

/// Decodes so many units of a scan, across and down, in order. Units that did not come or hold no code
/// of the tables are lost up to the next restart marker.
///
/// Gives the share of the units that came.
pub(super) fn walk(
    scan: &Scan,
    (columns, rows): (usize, usize),
    deadline: &Deadline,
    mut decode: impl FnMut(&mut Bits, Unit) -> Result<(), NoSuchCode>,
) -> Result<f64, ImageError> {
    let interval = if scan.restart_interval == 0 { u64::MAX } else { u64::from(scan.restart_interval) };
    let mut bits = Bits::new(scan.data);
    let (mut at, mut came) = (0u64, 0u64);
    // The unit that the next restart marker precedes, and the first one that can be decoded again.
    let (mut restart, mut sound) = (interval, 0);
    let mut fresh = true;
    for row in 0..rows {
        deadline.check()?;
        for column in 0..columns {
            if at == restart {
                let missing = missing_intervals(&mut bits, (at / interval).wrapping_sub(1));
                sound = missing.map_or(u64::MAX, |missing| at + missing * interval);
                restart = missing.map_or(u64::MAX, |missing| at + (missing + 1) * interval);
                fresh = true;
            }
            if sound <= at {
                if decode(&mut bits, Unit { column, row, fresh }).is_ok() && !bits.ran_out() {
                    came += 1;
                } else {
                    sound = restart;
                }
                fresh = false;
            }
            at += 1;
        }
    }
    Ok(came as f64 / at.max(1) as f64)
}

/// A scan's units: across, and down to the last one that is wanted.
pub(super) fn units(scan: &Scan, channels: &[Channel]) -> (usize, usize) {
    match &scan.components[..] {
        [alone] => {
            let channel = &channels[alone.index];
            (channel.blocks.0, channel.blocks.1.min(channel.until))
        }
        parts => {
            let channels = || parts.iter().map(|part| &channels[part.index]);
            let columns = channels().map(|channel| channel.stride / channel.h).max();
            let rows = channels().map(|channel| channel.until.div_ceil(channel.v)).max();
            (columns.unwrap_or(0), rows.unwrap_or(0))
        }
    }
}

/// Goes to the next restart marker. They count from 0 to 7 and over again, so a number slightly ahead of its turn tells
/// how many intervals are missing, and one slightly behind is an old one.
fn missing_intervals(bits: &mut Bits, turn: u64) -> Option<u64> {
    loop {
        let found = bits.next_restart()?;
        match u64::from(found).wrapping_sub(turn) & 7 {
            missing @ 1..=2 => return Some(missing),
            6 | 7 => {}
            _ => return Some(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::Limits;
    use crate::image::jpeg::markers::Scan;

    /// Units of one byte in intervals of two; gives the units that came, each with what it read.
    fn walked(data: &[u8], units: usize) -> (Vec<(usize, u32)>, f64) {
        let scan = Scan { components: Vec::new(), first: 0, last: 63, high: 0, low: 0, restart_interval: 2, data };
        let mut came = Vec::new();
        let share = walk(&scan, (units, 1), &Deadline::start(&Limits::default()), |bits, unit| {
            bits.refill();
            let byte = bits.take(8);
            if !bits.ran_out() {
                came.push((unit.column, byte));
            }
            Ok(())
        });
        (came, share.unwrap())
    }

    #[test]
    fn a_lost_interval_costs_only_itself() {
        let whole = walked(b"\x01\x02\xFF\xD0\x03\x04\xFF\xD1\x05\x06", 6);
        assert_eq!(whole, (vec![(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6)], 1.0));
        let short = walked(b"\x01\x02\xFF\xD0\x03\xFF\xD1\x05\x06", 6);
        assert_eq!(short, (vec![(0, 1), (1, 2), (2, 3), (4, 5), (5, 6)], 5.0 / 6.0));
        let missing = walked(b"\x01\x02\xFF\xD1\x05\x06", 6);
        assert_eq!(missing, (vec![(0, 1), (1, 2), (4, 5), (5, 6)], 4.0 / 6.0));
        let cut = walked(b"\x01\x02\xFF\xD0\x03", 6);
        assert_eq!(cut, (vec![(0, 1), (1, 2), (2, 3)], 0.5));
    }
}
