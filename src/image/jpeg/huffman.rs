//! Huffman codes of ITU-T T.81, annexes C and F: tables that decode a symbol and, mostly, its value in one look-up.

use super::super::ImageError;
use super::bits::Bits;

/// Bits of the first look-up. Longer codes are rare and are searched by length.
const LOOK: u32 = 10;

/// What the next [`LOOK`] bits hold.
#[derive(Clone, Copy, Default)]
struct Entry {
    /// The value that follows the code; only with `whole`.
    value: i16,
    /// The symbol.
    symbol: u8,
    /// Bits of the code and, with `whole`, of the value; 0 if the code is longer than the look-up.
    bits: u8,
    /// The value is in here too.
    whole: bool,
}

/// What can be passed over at once when no coefficient is wanted.
#[derive(Clone, Copy, Default)]
struct Stride {
    /// Bits of all symbols and their values; 0 if not even one fits.
    bits: u8,
    /// Coefficients they stand for, without the end of the block.
    coefficients: u8,
    /// The last symbol ends the block.
    ends: bool,
}

/// A code table.
pub(super) struct Table {
    entries: Box<[Entry; 1 << LOOK]>,
    strides: Option<Box<[Stride; 1 << LOOK]>>,
    /// By code length 1 to 16: the first code that is longer, left-aligned to 16 bits.
    ends: [u32; 17],
    /// By code length: index of a code's symbol, less the code.
    offsets: [i32; 17],
    symbols: [u8; 256],
}

/// What a table holds, in the order of the file.
#[derive(Clone)]
pub(super) struct Codes {
    /// Codes of each length, 1 to 16.
    pub(super) counts: [u8; 16],
    /// Their symbols.
    pub(super) symbols: [u8; 256],
}

/// A code that the table does not have.
#[derive(Debug)]
pub(super) struct NoSuchCode;

impl Codes {
    /// Reads counts and symbols; gives the bytes behind them.
    pub(super) fn read(bytes: &[u8]) -> Option<(Codes, &[u8])> {
        let (counts, rest) = bytes.split_first_chunk::<16>()?;
        let total = counts.iter().map(|count| usize::from(*count)).sum::<usize>();
        let mut symbols = [0; 256];
        symbols.get_mut(..total)?.copy_from_slice(rest.get(..total)?);
        Some((Codes { counts: *counts, symbols }, &rest[total..]))
    }
}

impl Table {
    /// Builds the look-up tables; with `strides` also the one for passing over coefficients.
    ///
    /// # Errors
    /// [`ImageError::Corrupt`] if there are more codes of a length than bits can tell apart.
    pub(super) fn new(codes: &Codes, strides: bool) -> Result<Table, ImageError> {
        let mut table = Table {
            entries: Box::new([Entry::default(); 1 << LOOK]),
            strides: None,
            ends: [0; 17],
            offsets: [0; 17],
            symbols: codes.symbols,
        };
        let (mut code, mut index) = (0u32, 0u32);
        for length in 1..=16u32 {
            let count = u32::from(codes.counts[length as usize - 1]);
            table.offsets[length as usize] = index.cast_signed() - code.cast_signed();
            for symbol in index..index + count {
                if length <= LOOK && code < 1 << length {
                    table.enter(code, length, codes.symbols[symbol as usize & 0xFF]);
                }
                code += 1;
            }
            if code > 1 << length {
                return Err(ImageError::Corrupt(format!("a Huffman table has too many codes of {length} bits")));
            }
            index += count;
            table.ends[length as usize] = code << (16 - length);
            code <<= 1;
        }
        if strides {
            table.strides = Some(table.strides());
        }
        Ok(table)
    }

    /// Fills every look-up that begins with this code.
    fn enter(&mut self, code: u32, length: u32, symbol: u8) {
        let rest = LOOK - length;
        let size = u32::from(symbol & 15);
        for tail in 0..1u32 << rest {
            let whole = size <= rest;
            #[allow(clippy::cast_possible_truncation, reason = "at most 10 bits")]
            let value = if whole { extended(tail >> (rest - size), size) as i16 } else { 0 };
            let bits = if whole { length + size } else { length };
            #[allow(clippy::cast_possible_truncation, reason = "at most 10 bits")]
            let entry = Entry { value, symbol, bits: bits as u8, whole };
            self.entries[(code << rest | tail) as usize] = entry;
        }
    }

    /// Strings as many symbols together as fit.
    fn strides(&self) -> Box<[Stride; 1 << LOOK]> {
        let mut strides = Box::new([Stride::default(); 1 << LOOK]);
        for (look, stride) in strides.iter_mut().enumerate() {
            loop {
                let used = u32::from(stride.bits);
                let entry = self.entries[(look << used) & ((1 << LOOK) - 1)];
                // The bits behind the look-up are taken as zeros here: a code must lie in what is known. Its value need
                // not, to be passed over.
                let size = entry.symbol & 15;
                let code = if entry.whole { entry.bits - size } else { entry.bits };
                if code == 0 || LOOK < used + u32::from(code) {
                    break;
                }
                stride.bits += code + size;
                match (entry.symbol >> 4, entry.symbol & 15) {
                    (15, 0) => stride.coefficients += 16,
                    (_, 0) => {
                        stride.ends = true;
                        break;
                    }
                    (run, _) => stride.coefficients += run + 1,
                }
                if LOOK <= u32::from(stride.bits) {
                    break;
                }
            }
        }
        strides
    }

    /// The next symbol. At least 16 bits must be in the window.
    #[inline(always)]
    pub(super) fn symbol(&self, bits: &mut Bits) -> Result<u8, NoSuchCode> {
        let entry = self.entries[bits.peek(LOOK) as usize];
        if entry.bits == 0 {
            return self.long_symbol(bits);
        }
        let value_bits = if entry.whole { entry.symbol & 15 } else { 0 };
        bits.skip(u32::from(entry.bits - value_bits));
        Ok(entry.symbol)
    }

    /// The next symbol and the value whose size are the symbol's low four bits. At least 32 bits must be in the window.
    #[inline(always)]
    pub(super) fn symbol_and_value(&self, bits: &mut Bits) -> Result<(u8, i32), NoSuchCode> {
        let entry = self.entries[bits.peek(LOOK) as usize];
        if entry.whole {
            bits.skip(u32::from(entry.bits));
            return Ok((entry.symbol, i32::from(entry.value)));
        }
        let symbol = if entry.bits == 0 {
            self.long_symbol(bits)?
        } else {
            bits.skip(u32::from(entry.bits));
            entry.symbol
        };
        let size = u32::from(symbol & 15);
        Ok((symbol, extended(bits.take(size), size)))
    }

    /// Passes over the coefficients of a block from index `from` on.
    #[inline(always)]
    pub(super) fn skip_block(&self, bits: &mut Bits, from: usize) -> Result<(), NoSuchCode> {
        let mut at = from;
        while at < 64 {
            if bits.count() < 32 {
                bits.refill();
            }
            if let Some(strides) = &self.strides {
                let stride = strides[bits.peek(LOOK) as usize];
                let behind = at + usize::from(stride.coefficients);
                // A block that is full ends without a symbol: what follows belongs to the next.
                if stride.bits > 0 && behind < 64 {
                    bits.skip(u32::from(stride.bits));
                    if stride.ends {
                        return Ok(());
                    }
                    at = behind;
                    continue;
                }
            }
            let (symbol, _) = self.symbol_and_value(bits)?;
            match (symbol >> 4, symbol & 15) {
                (15, 0) => at += 16,
                (_, 0) => return Ok(()),
                (run, _) => at += usize::from(run) + 1,
            }
        }
        Ok(())
    }

    #[cold]
    fn long_symbol(&self, bits: &mut Bits) -> Result<u8, NoSuchCode> {
        let next = bits.peek(16);
        let length = (1..=16usize).find(|length| next < self.ends[*length]).ok_or(NoSuchCode)?;
        #[allow(clippy::cast_possible_truncation, reason = "1 to 16")]
        let code = bits.take(length as u32);
        let index = self.offsets[length] + code.cast_signed();
        usize::try_from(index).ok().and_then(|index| self.symbols.get(index).copied()).ok_or(NoSuchCode)
    }
}

/// The value of `size` bits: those with a leading zero stand for negative values (T.81, F.2.2.1, EXTEND).
#[inline(always)]
pub(super) fn extended(bits: u32, size: u32) -> i32 {
    let half = (1u32 << size) >> 1;
    if bits < half { bits.cast_signed() - (1 << size) + 1 } else { bits.cast_signed() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A complete code for these symbols: one of each length, as unlike as codes can be.
    fn skewed(symbols: &[u8]) -> Codes {
        let mut codes = Codes { counts: [0; 16], symbols: [0; 256] };
        for (index, symbol) in symbols.iter().take(16).enumerate() {
            codes.counts[index] = 1;
            codes.symbols[index] = *symbol;
        }
        codes
    }

    /// The code of the symbol at `index` of a skewed code: `index` ones and a zero.
    fn write(bits: &mut Vec<bool>, index: usize) {
        bits.extend(std::iter::repeat_n(true, index));
        bits.push(false);
    }

    fn bytes(bits: &[bool]) -> Vec<u8> {
        let packed =
            bits.chunks(8).map(|bits| (0..8).fold(0, |byte, at| byte << 1 | u8::from(bits.get(at) == Some(&true))));
        packed.flat_map(|byte| if byte == 0xFF { vec![0xFF, 0] } else { vec![byte] }).collect()
    }

    #[test]
    fn a_table_with_more_codes_than_bits_is_refused() {
        let mut codes = skewed(&[]);
        codes.counts[0] = 3;
        assert!(Table::new(&codes, true).is_err());
    }

    #[test]
    fn a_code_that_is_not_in_the_table_is_an_error() {
        let table = Table::new(&skewed(&[1, 2, 3]), true).unwrap();
        let mut bits = Bits::new(b"\xF0\x00\x00");
        bits.refill();
        assert!(table.symbol(&mut bits).is_err());
    }

    #[test]
    fn values_with_a_leading_zero_are_negative() {
        assert_eq!([0, 1].map(|bits| extended(bits, 1)), [-1, 1]);
        assert_eq!([0, 3, 4, 7].map(|bits| extended(bits, 3)), [-7, -4, 4, 7]);
        assert_eq!(extended(0, 0), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

        /// Passing over blocks several symbols at a time ends where decoding them one by one does.
        #[test]
        fn strides_keep_to_the_blocks(
            symbols in proptest::collection::vec(prop_oneof![Just(0u8), Just(0xF0u8), any::<u8>()], 1..16),
            picks in proptest::collection::vec((0usize..16, any::<u16>()), 1..400),
        ) {
            let codes = skewed(&symbols);
            let mut stream = Vec::new();
            for (pick, value) in picks {
                let index = pick % symbols.len();
                write(&mut stream, index);
                stream.extend((0..symbols[index] & 15).map(|bit| value >> bit & 1 == 1));
            }
            let stream = bytes(&stream);
            let (by_stride, by_symbol) = (Table::new(&codes, true).unwrap(), Table::new(&codes, false).unwrap());
            let (mut left, mut right) = (Bits::new(&stream), Bits::new(&stream));
            for _ in 0..20 {
                let results = (by_stride.skip_block(&mut left, 1), by_symbol.skip_block(&mut right, 1));
                prop_assert_eq!(results.0.is_ok(), results.1.is_ok());
                if results.0.is_err() {
                    break;
                }
                left.refill();
                right.refill();
                prop_assert_eq!(left.peek(32), right.peek(32));
                prop_assert_eq!(left.ran_out(), right.ran_out());
            }
        }
    }
}
