//! A TIFF's directories (TIFF 6.0, section 2, and BigTIFF), read in place.

use super::{Profile, Structure};

/// A tag that is read here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(in super::super) enum Tag {
    Width = 256,
    Height = 257,
    BitsPerSample = 258,
    Compression = 259,
    Photometric = 262,
    FillOrder = 266,
    StripOffsets = 273,
    Orientation = 274,
    SamplesPerPixel = 277,
    PlanarConfiguration = 284,
    ColorMap = 320,
    TileOffsets = 324,
    ExtraSamples = 338,
    SampleFormat = 339,
    YCbCrSubsampling = 530,
    Icc = 34675,
}

/// The first page's tags.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Directory<'a> {
    file: File<'a>,
    /// The entries, one after the other.
    entries: &'a [u8],
    /// Where the entries lie in the file.
    at: usize,
    /// Where the next directory lies.
    next: Option<usize>,
}

/// One tag's values.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Values<'a> {
    file: File<'a>,
    /// Where the values lie in the file.
    pub(in super::super) at: usize,
    bytes: &'a [u8],
    width: usize,
}

#[derive(Clone, Copy, Debug)]
struct File<'a> {
    bytes: &'a [u8],
    little: bool,
    big: bool,
}

/// Counts pages and the first page's tags, and looks for pages that lie after the file's end. A chain of more pages than `most` is left there; one that bites its tail
/// ends there.
pub(super) fn walk(bytes: &[u8], most: u32) -> Structure<'_> {
    let mut found = Structure { complete: true, ..Structure::default() };
    let Some(file) = File::new(bytes) else {
        return found;
    };
    let mut at = file.first();
    // Brent's way of finding a cycle: a mark that is moved at every power of two.
    let mut mark = at;
    while let Some(start) = at.filter(|at| *at != 0) {
        let Some(directory) = file.directory(start) else {
            found.complete = false;
            break;
        };
        found.frames += 1;
        if found.frames == 1 {
            found.metadata = (directory.entries.len() / file.entry_bytes()) as u64;
            found.profile = directory.get(Tag::Icc).map(|values| Profile::Plain(values.bytes));
        }
        at = directory.next;
        if at == mark || found.frames > u64::from(most) {
            break;
        }
        if found.frames.is_power_of_two() {
            mark = at;
        }
    }
    found
}

impl<'a> Directory<'a> {
    /// The first page's directory, if it lies within the file.
    pub(in super::super) fn first(bytes: &'a [u8]) -> Option<Self> {
        let file = File::new(bytes)?;
        file.directory(file.first()?)
    }

    /// A tag is there, but its values do not lie within the file.
    pub(in super::super) fn lacks(&self, tag: Tag) -> bool {
        self.entry(tag).is_some() && self.get(tag).is_none()
    }

    fn entry(&self, tag: Tag) -> Option<(usize, &'a [u8])> {
        let mut entries = self.entries.chunks_exact(self.file.entry_bytes()).enumerate();
        entries.find(|(_, entry)| self.file.number(&entry[..2]) == tag as u64)
    }

    /// A tag's values, if they lie within the file.
    pub(in super::super) fn get(&self, tag: Tag) -> Option<Values<'a>> {
        let file = self.file;
        let (index, entry) = self.entry(tag)?;
        let width = match file.number(&entry[2..4]) {
            1 | 2 | 6 | 7 => 1,
            3 | 8 => 2,
            4 | 9 | 11 | 13 => 4,
            16..=18 => 8,
            _ => return None,
        };
        let (count, inline) = entry[4..].split_at(if file.big { 8 } else { 4 });
        let length = usize::try_from(file.number(count)).ok()?.checked_mul(width)?;
        let at = if length <= inline.len() {
            self.at + (index + 1) * file.entry_bytes() - inline.len()
        } else {
            usize::try_from(file.number(inline)).ok()?
        };
        let bytes = file.bytes.get(at..at.checked_add(length)?)?;
        Some(Values { file, at, bytes, width })
    }

    /// A tag's first value.
    pub(in super::super) fn number(&self, tag: Tag) -> Option<u64> {
        self.get(tag)?.iter().next()
    }
}

impl<'a> Values<'a> {
    /// The values as unsigned numbers.
    pub(in super::super) fn iter(self) -> impl Iterator<Item = u64> + use<'a> {
        self.bytes.chunks_exact(self.width).map(move |value| self.file.number(value))
    }

    /// One of the values.
    pub(in super::super) fn nth(self, index: usize) -> Option<u64> {
        let at = index.checked_mul(self.width)?;
        Some(self.file.number(self.bytes.get(at..at.checked_add(self.width)?)?))
    }

    /// A 16-bit number as this file writes it.
    pub(in super::super) fn short(self, value: u16) -> [u8; 2] {
        if self.file.little { value.to_le_bytes() } else { value.to_be_bytes() }
    }

    /// Bytes of one value.
    pub(in super::super) fn width(self) -> usize {
        self.width
    }
}

impl<'a> File<'a> {
    fn new(bytes: &'a [u8]) -> Option<Self> {
        let little = bytes.starts_with(b"II");
        let mut file = File { bytes, little, big: false };
        file.big = file.number(bytes.get(2..4)?) == 43;
        Some(file)
    }

    fn first(self) -> Option<usize> {
        let at = if self.big { self.bytes.get(8..16) } else { self.bytes.get(4..8) };
        usize::try_from(self.number(at?)).ok()
    }

    /// The directory that lies there.
    fn directory(self, at: usize) -> Option<Directory<'a>> {
        let count_bytes = if self.big { 8 } else { 2 };
        let count = usize::try_from(self.number(self.bytes.get(at..)?.get(..count_bytes)?)).ok()?;
        let start = at + count_bytes;
        let end = start.checked_add(count.checked_mul(self.entry_bytes())?)?;
        let next = self.bytes.get(end..)?.get(..if self.big { 8 } else { 4 });
        let next = next.and_then(|next| usize::try_from(self.number(next)).ok());
        Some(Directory { file: self, entries: self.bytes.get(start..end)?, at: start, next })
    }

    fn entry_bytes(self) -> usize {
        if self.big { 20 } else { 12 }
    }

    /// An unsigned number of any width up to 8 bytes.
    fn number(self, bytes: &[u8]) -> u64 {
        let join = |number: u64, byte: &u8| (number << 8) | u64::from(*byte);
        if self.little { bytes.iter().rev().fold(0, join) } else { bytes.iter().fold(0, join) }
    }
}

#[cfg(test)]
mod tests {
    use super::{Directory, Tag, walk};

    /// A directory of one tag, the image's width, that is followed by another directory.
    fn directory(next: u32) -> Vec<u8> {
        [&b"\x01\0\0\x01\x04\0\x01\0\0\0\x2A\0\0\0"[..], &next.to_le_bytes()].concat()
    }

    #[test]
    fn pages_are_counted_and_circles_end() {
        let head = b"II*\0\x08\0\0\0";
        for (nexts, frames, complete) in [
            (vec![0], 1, true),
            (vec![26, 44, 0], 3, true),
            // Back to the first, the second, itself.
            (vec![26, 8], 2, true),
            (vec![26, 44, 26], 3, true),
            (vec![8], 1, true),
            (vec![1000], 1, false),
        ] {
            let file = [&head[..], &nexts.iter().flat_map(|next| directory(*next)).collect::<Vec<_>>()].concat();
            let found = walk(&file, 100);
            assert!((frames..frames * 2 + 2).contains(&found.frames), "{nexts:?}: {}", found.frames);
            assert_eq!((found.metadata, found.complete), (1, complete), "{nexts:?}");
            assert_eq!(Directory::first(&file).unwrap().number(Tag::Width), Some(42));
        }
        let endless: Vec<u8> = (1..=200).flat_map(|page| directory(8 + page * 18)).collect();
        assert_eq!(walk(&[&head[..], &endless].concat(), 100).frames, 101);
    }

    #[test]
    fn values_outside_of_the_file_are_missing() {
        // Two 32-bit numbers at 1000.
        let entry = b"\x01\0\x11\x01\x04\0\x02\0\0\0\xE8\x03\0\0\0\0\0\0";
        let file = [&b"II*\0\x08\0\0\0"[..], entry].concat();
        let page = Directory::first(&file).unwrap();
        assert!(page.get(Tag::StripOffsets).is_none() && page.lacks(Tag::StripOffsets));
        assert!(!page.lacks(Tag::TileOffsets));
    }
}
