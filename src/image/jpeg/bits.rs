//! The bits of entropy-coded data, most significant first, without its stuffed zeros (ITU-T T.81, F.2.2.5).

/// Reads up to a marker or the end of the slice, then gives zeros, as every JPEG decoder does for a file that ends
/// early. [`Bits::ran_out`] tells whether such zeros were used.
pub(super) struct Bits<'a> {
    bytes: &'a [u8],
    /// The first byte that is not in the window. It never lies past a marker.
    at: usize,
    /// The next bits, left-aligned. Below `count` they are either zero or already the right ones.
    window: u64,
    /// Valid bits in the window.
    count: u32,
    /// Bits of the window, at its end, that no byte stands for.
    padding: u32,
}

impl<'a> Bits<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, window: 0, count: 0, padding: 0 }
    }

    /// Makes sure that 56 bits can be read.
    #[inline(always)]
    pub(super) fn refill(&mut self) {
        if let Some(Ok(next)) = self.bytes.get(self.at..self.at.wrapping_add(8)).map(<[u8; 8]>::try_from) {
            let next = u64::from_be_bytes(next);
            if !has_a_byte_of_ones(next) {
                self.window |= next >> self.count;
                self.at += ((63 - self.count) >> 3) as usize;
                self.count |= 56;
                return;
            }
        }
        self.refill_bytewise();
    }

    #[inline(never)]
    fn refill_bytewise(&mut self) {
        // What the fast path left below `count` may lie past a stuffed zero now.
        self.window &= !(u64::MAX >> self.count);
        while self.count < 56 {
            let byte = match (self.bytes.get(self.at), self.bytes.get(self.at + 1)) {
                (Some(0xFF), Some(0)) => {
                    self.at += 2;
                    0xFF
                }
                (Some(0xFF) | None, _) => {
                    self.padding += 8;
                    0
                }
                (Some(byte), _) => {
                    self.at += 1;
                    *byte
                }
            };
            self.window |= u64::from(byte) << (56 - self.count);
            self.count += 8;
        }
    }

    /// The next `count` bits, at most 32, without taking them.
    #[inline(always)]
    pub(super) fn peek(&self, count: u32) -> u32 {
        #[allow(clippy::cast_possible_truncation, reason = "at most 32 bits are left")]
        let bits = ((self.window >> 32) as u32).checked_shr(32 - count).unwrap_or(0);
        bits
    }

    #[inline(always)]
    pub(super) fn skip(&mut self, count: u32) {
        self.window <<= count;
        self.count = self.count.wrapping_sub(count);
    }

    /// Takes `count` bits, at most 16.
    #[inline(always)]
    pub(super) fn take(&mut self, count: u32) -> u32 {
        let bits = self.peek(count);
        self.skip(count);
        bits
    }

    /// Valid bits in the window.
    #[inline(always)]
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Bits were read that the data does not hold.
    #[inline(always)]
    pub(super) fn ran_out(&self) -> bool {
        self.padding > self.count
    }

    /// Goes past the next restart marker and gives its number, 0 to 7, if one follows.
    pub(super) fn next_restart(&mut self) -> Option<u8> {
        while let Some(found) = memchr::memchr(0xFF, self.bytes.get(self.at..)?) {
            self.at += found + 1;
            if let Some(marker @ 0xD0..=0xD7) = self.bytes.get(self.at) {
                *self = Self { at: self.at + 1, ..Self::new(self.bytes) };
                return Some(marker & 7);
            }
        }
        None
    }
}

/// Whether one of the eight bytes is 0xFF: then a byte of the complement is zero, and only there does subtracting one
/// from each byte carry into a top bit that was clear.
#[inline(always)]
fn has_a_byte_of_ones(word: u64) -> bool {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const TOPS: u64 = 0x8080_8080_8080_8080;
    (!word).wrapping_sub(ONES) & word & TOPS != 0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Bits;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

        #[test]
        fn stuffed_bytes_come_back_bit_by_bit(
            bytes in proptest::collection::vec(prop_oneof![Just(0xFFu8), any::<u8>()], 0..60),
            steps in proptest::collection::vec(0u32..=16, 1..80),
        ) {
            let stuffed: Vec<u8> =
                bytes.iter().flat_map(|byte| if *byte == 0xFF { vec![0xFF, 0] } else { vec![*byte] }).collect();
            let bit = |at: usize| bytes.get(at / 8).map_or(0, |byte| u32::from(byte >> (7 - at % 8)) & 1);
            let mut found = Bits::new(&stuffed);
            let mut at = 0;
            for step in steps {
                found.refill();
                let expected = (at..at + step as usize).fold(0, |bits, at| bits << 1 | bit(at));
                prop_assert_eq!(found.take(step), expected);
                at += step as usize;
                prop_assert_eq!(found.ran_out(), at > bytes.len() * 8);
            }
        }
    }

    #[test]
    fn a_marker_ends_the_bits_and_a_restart_goes_on_after_it() {
        let mut bits = Bits::new(b"\xAB\xFF\xD3\xCD\xFF\x00\xFF\xD9");
        bits.refill();
        assert_eq!((bits.take(8), bits.ran_out()), (0xAB, false));
        assert_eq!((bits.take(8), bits.ran_out()), (0, true));
        assert_eq!(bits.next_restart(), Some(3));
        bits.refill();
        assert_eq!((bits.take(16), bits.ran_out()), (0xCDFF, false));
        assert_eq!(bits.next_restart(), None);
    }
}
