//! Big-endian fields from the front of a slice.

use super::isobmff::Code;

/// The bytes that are still to be read. Every read gives `None` where they do not suffice.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    /// A number of this many bytes, 8 at most; of none it is 0.
    pub(super) fn uint(&mut self, bytes: u64) -> Option<u64> {
        let taken = self.take(usize::try_from(bytes).ok()?)?;
        (taken.len() <= 8).then(|| taken.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    pub(super) fn code(&mut self) -> Option<Code> {
        self.take(4)?.first_chunk().copied()
    }

    /// The number of an item, or of items: 4 bytes, or 2 in the older versions of a box.
    pub(super) fn id(&mut self, wide: bool) -> Option<u32> {
        u32::try_from(self.uint(if wide { 4 } else { 2 })?).ok()
    }

    /// What a `FullBox` begins with.
    pub(super) fn version_and_flags(&mut self) -> Option<(u64, u64)> {
        Some((self.uint(1)?, self.uint(3)?))
    }
}
