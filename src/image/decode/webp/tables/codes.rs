//! Prefix codes of a lossless WebP (RFC 9649, section 3.7.2) and the bits that they are read from.

use std::io::BufRead;

/// What a code of more than one symbol takes besides its table: three nodes, and the allocator's overhead.
const CODE_BYTES: u64 = 96;
/// Longest code, in bits, that has entries of 4 bytes in the decoder's table of at most 4 KiB.
const TABLE_BITS: usize = 10;
/// Each symbol with a longer code has room for two nodes of 16 bytes. A group's green code of 2,328 symbols takes up
/// to 75 KiB this way.
const LONG_CODE_BYTES: u64 = 32;

/// Longest code in bits.
pub(super) const LONGEST: usize = 15;

/// Why the reading ends before the groups do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// The decoder refuses it too, or the file ends.
    Broken,
    Overfull,
}

pub(super) type Step<T> = Result<T, Stop>;

/// A prefix code.
pub(super) enum Code {
    /// One symbol that takes no bits.
    One(u16),
    /// How many codes there are of each length, and the symbols in their order.
    Many { counts: [u16; LONGEST + 1], symbols: Vec<u16> },
}

impl Code {
    /// The code whose symbols have these lengths, where 0 is for those that it lacks.
    pub(super) fn new(lengths: &[u8]) -> Step<Code> {
        let mut counts = [0; LONGEST + 1];
        for length in lengths {
            counts[usize::from(*length)] += 1;
        }
        counts[0] = 0;
        let mut starts = [0; LONGEST + 1];
        let (mut room, mut used) = (0_u32, 0);
        for (length, count) in counts.iter().enumerate() {
            starts[length] = used;
            used += usize::from(*count);
            room += u32::from(*count) << (LONGEST - length);
        }
        let mut symbols = vec![0; used];
        for (symbol, length) in (0..).zip(lengths).filter(|(_, length)| **length != 0) {
            let start = &mut starts[usize::from(*length)];
            symbols[*start] = symbol;
            *start += 1;
        }
        match (symbols.as_slice(), room.cmp(&(1 << LONGEST))) {
            ([symbol], _) => Ok(Code::One(*symbol)),
            (_, std::cmp::Ordering::Equal) => Ok(Code::Many { counts, symbols }),
            (_, std::cmp::Ordering::Less) => Err(Stop::Broken),
            (_, std::cmp::Ordering::Greater) => Err(Stop::Overfull),
        }
    }

    /// What the decoder allocates for it.
    pub(super) fn bytes(&self) -> u64 {
        let Code::Many { counts, .. } = self else { return 0 };
        let longest = counts.iter().rposition(|count| *count != 0).unwrap_or_default();
        let long: u64 = counts[TABLE_BITS + 1..].iter().map(|count| u64::from(*count)).sum();
        CODE_BYTES + (4 << longest.min(TABLE_BITS)) + long * LONG_CODE_BYTES
    }
}

/// Reads bits, the lowest of each byte first.
pub(super) struct Bits<R> {
    reader: R,
    buffer: u64,
    held: u32,
}

impl<R: BufRead> Bits<R> {
    pub(super) fn new(reader: R) -> Self {
        Bits { reader, buffer: 0, held: 0 }
    }

    pub(super) fn flag(&mut self) -> Step<bool> {
        Ok(self.read(1)? == 1)
    }

    /// A number of at most 8 bits.
    pub(super) fn byte(&mut self, bits: u32) -> Step<u8> {
        Ok(self.read(bits)?.to_le_bytes()[0])
    }

    /// A number of at most 18 bits.
    pub(super) fn read(&mut self, bits: u32) -> Step<u32> {
        let value = self.peek(bits)?;
        self.skip(bits)?;
        Ok(value)
    }

    /// What comes next, with zeros after the end.
    fn peek(&mut self, bits: u32) -> Step<u32> {
        while self.held < bits {
            let bytes = self.reader.fill_buf().map_err(|_| Stop::Broken)?;
            let took = bytes.len().min((64 - self.held as usize) / 8);
            for byte in &bytes[..took] {
                self.buffer |= u64::from(*byte) << self.held;
                self.held += 8;
            }
            self.reader.consume(took);
            if took == 0 {
                break;
            }
        }
        Ok(u32::try_from(self.buffer & ((1 << bits) - 1)).unwrap_or(u32::MAX))
    }

    fn skip(&mut self, bits: u32) -> Step<()> {
        self.held = self.held.checked_sub(bits).ok_or(Stop::Broken)?;
        self.buffer >>= bits;
        Ok(())
    }

    pub(super) fn symbol(&mut self, code: &Code) -> Step<u16> {
        let (counts, symbols) = match code {
            Code::One(symbol) => return Ok(*symbol),
            Code::Many { counts, symbols } => (counts, symbols),
        };
        let mut next = self.peek(15)?;
        // The codes of one length follow each other, after those of the length before.
        let (mut value, mut first, mut at) = (0, 0, 0);
        for (length, count) in (1..).zip(&counts[1..]) {
            value = value << 1 | next & 1;
            next >>= 1;
            let count = u32::from(*count);
            if value < first + count {
                self.skip(length)?;
                return symbols.get((at + value - first) as usize).copied().ok_or(Stop::Broken);
            }
            at += count;
            first = (first + count) << 1;
        }
        Err(Stop::Broken)
    }

    /// A length or a distance whose size is given by this symbol, at least 1.
    pub(super) fn number(&mut self, symbol: u32) -> Step<u32> {
        if symbol < 4 {
            return Ok(symbol + 1);
        }
        let bits = (symbol - 2) >> 1;
        Ok(((2 + (symbol & 1)) << bits) + self.read(bits)? + 1)
    }
}
