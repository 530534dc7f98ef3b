//! What the prefix codes of a lossless WebP take in the decoder's memory, found before it decodes.
//!
//! The decoder builds five prefix codes for each group that a lossless stream declares, up to 65,536 groups however
//! small the picture is, and bounds them by nothing. So this reads the stream up to the end of its codes as the
//! WebP Lossless Bitstream specification (RFC 9649, section 3) defines it: the transforms' and the entropy image are
//! decoded to get past them, of the groups' codes only the lengths are read, and no pixel of the picture is.
//!
//! It follows `image-webp` 0.2.4 in which chunk it decodes and in what it refuses: a stream that breaks breaks there
//! too, at the same place, so that what was counted until then is all that the decoder builds. It takes less memory than
//! the decoder does, and at most about the time.

mod codes;

use std::io::{self, BufRead, Seek, SeekFrom};

use codes::{Bits, Code, LONGEST, Step, Stop};

/// A group's five headers of 56 bytes each in a vector that grows by doubling, and the old half while it is copied.
const GROUP_BYTES: u64 = 5 * 56 * 3;
/// Symbols of green and lengths, red, blue, alpha, and distances. The first has the colour cache's too.
const ALPHABETS: [u16; 5] = [256 + 24, 256, 256, 256, 40];
/// In which order the lengths of the code for lengths are written.
const LENGTH_ORDER: [usize; 19] = [17, 18, 0, 1, 2, 3, 4, 5, 16, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
/// Columns to the left and rows up of the 120 pixels nearest to a pixel, in the order of their distance codes.
#[rustfmt::skip]
const NEAR: [(i8, i8); 120] = [
    (0, 1),  (1, 0),  (1, 1),  (-1, 1), (0, 2),  (2, 0),  (1, 2),  (-1, 2), (2, 1),  (-2, 1), (2, 2),  (-2, 2),
    (0, 3),  (3, 0),  (1, 3),  (-1, 3), (3, 1),  (-3, 1), (2, 3),  (-2, 3), (3, 2),  (-3, 2), (0, 4),  (4, 0),
    (1, 4),  (-1, 4), (4, 1),  (-4, 1), (3, 3),  (-3, 3), (2, 4),  (-2, 4), (4, 2),  (-4, 2), (0, 5),  (3, 4),
    (-3, 4), (4, 3),  (-4, 3), (5, 0),  (1, 5),  (-1, 5), (5, 1),  (-5, 1), (2, 5),  (-2, 5), (5, 2),  (-5, 2),
    (4, 4),  (-4, 4), (3, 5),  (-3, 5), (5, 3),  (-5, 3), (0, 6),  (6, 0),  (1, 6),  (-1, 6), (6, 1),  (-6, 1),
    (2, 6),  (-2, 6), (6, 2),  (-6, 2), (4, 5),  (-4, 5), (5, 4),  (-5, 4), (3, 6),  (-3, 6), (6, 3),  (-6, 3),
    (0, 7),  (7, 0),  (1, 7),  (-1, 7), (5, 5),  (-5, 5), (7, 1),  (-7, 1), (4, 6),  (-4, 6), (6, 4),  (-6, 4),
    (2, 7),  (-2, 7), (7, 2),  (-7, 2), (3, 7),  (-3, 7), (7, 3),  (-7, 3), (5, 6),  (-5, 6), (6, 5),  (-6, 5),
    (8, 0),  (4, 7),  (-4, 7), (7, 4),  (-7, 4), (8, 1),  (8, 2),  (6, 6),  (-6, 6), (8, 3),  (5, 7),  (-5, 7),
    (7, 5),  (-7, 5), (8, 4),  (6, 7),  (-6, 7), (7, 6),  (-7, 6), (8, 5),  (7, 7),  (-7, 7), (8, 6),  (8, 7),
];

/// The prefix codes that the decoder will build for the pixels of a picture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tables {
    /// Groups that the entropy image uses, one if there is none. All before the highest count.
    pub(super) groups: u32,
    /// Memory in bytes for those that are there, or as far as they were counted.
    pub(super) bytes: u64,
}

/// A code has more symbols than there is room for. The decoder takes some of these for valid, and then panics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a prefix code has too many symbols")]
pub(super) struct Overfull;

/// Finds what the decoder builds for a WebP with a canvas of this size in pixels, and stops counting at `most` bytes.
///
/// Takes up to four bytes for each 16 pixels, so check the size first.
pub(super) fn read(mut file: impl BufRead + Seek, canvas: (u32, u32), most: u64) -> Result<Tables, Overfull> {
    // The decoder fails to read where this does.
    let Ok(Some(stream)) = find(&mut file, canvas) else { return Ok(Tables::default()) };
    if file.seek(SeekFrom::Start(stream.start)).is_err() {
        return Ok(Tables::default());
    }
    let bits = Bits::new(file.take(stream.length));
    let mut reader = Reader { bits, tables: Tables::default(), most };
    match reader.stream(stream.size, stream.header) {
        Ok(()) | Err(Stop::Broken) => Ok(reader.tables),
        Err(Stop::Overfull) => Err(Overfull),
    }
}

/// A lossless stream in a file.
struct Stream {
    start: u64,
    length: u64,
    size: (u32, u32),
    /// It begins with a header that repeats the size.
    header: bool,
}

struct Chunk {
    kind: [u8; 4],
    start: u64,
    length: u64,
}

/// The stream that the decoder will read.
fn find(file: &mut (impl BufRead + Seek), canvas: (u32, u32)) -> io::Result<Option<Stream>> {
    const FLAGS_AT: u64 = 20;
    const ALPHA: u8 = 0x10;
    const ANIMATION: u8 = 0x02;

    let riff = chunk(file, 0)?;
    let first = chunk(file, 12)?;
    if first.kind == *b"VP8L" {
        return Ok(Some(first.lossless(canvas)));
    }
    if first.kind != *b"VP8X" {
        return Ok(None);
    }
    let [flags] = bytes_at(file, FLAGS_AT)?;
    let (mut lossless, mut alpha, mut frame) = (None, None, None);
    let mut at = first.end();
    let end = at + riff.length.saturating_sub(12);
    while at < end {
        let Ok(chunk) = chunk(file, at) else { break };
        at = chunk.end();
        let first = match &chunk.kind {
            b"VP8L" => &mut lossless,
            b"ALPH" => &mut alpha,
            b"ANMF" => &mut frame,
            _ => continue,
        };
        first.get_or_insert(chunk);
    }
    if flags & ANIMATION != 0 {
        let Some(frame) = frame else { return Ok(None) };
        let size: [u8; 6] = bytes_at(file, frame.start + 6)?;
        let side = |at: usize| u32::from_le_bytes([size[at], size[at + 1], size[at + 2], 0]) + 1;
        let size = (side(0), side(3));
        if size.0 > canvas.0 || size.1 > canvas.1 {
            return Ok(None);
        }
        let picture = chunk(file, frame.start + 16)?;
        return match &picture.kind {
            b"VP8L" => Ok(Some(picture.lossless(size))),
            b"ALPH" => picture.alpha(file, size),
            _ => Ok(None),
        };
    }
    // The decoder looks into the first frame for what is not outside of it.
    if let Some(frame) = frame {
        let mut at = frame.start + 16;
        for _ in 0..2 {
            let Ok(chunk) = chunk(file, at) else { break };
            at = chunk.end();
            match &chunk.kind {
                b"VP8L" => lossless.get_or_insert(chunk),
                b"ALPH" => alpha.get_or_insert(chunk),
                _ => continue,
            };
        }
    }
    match (lossless, alpha) {
        (Some(chunk), _) => Ok(Some(chunk.lossless(canvas))),
        (None, Some(chunk)) if flags & ALPHA != 0 => chunk.alpha(file, canvas),
        (None, _) => Ok(None),
    }
}

impl Chunk {
    fn end(&self) -> u64 {
        self.start + self.length.next_multiple_of(2)
    }

    fn lossless(&self, size: (u32, u32)) -> Stream {
        Stream { start: self.start, length: self.length, size, header: true }
    }

    /// The stream of an alpha channel, if it is compressed.
    fn alpha(&self, file: &mut (impl BufRead + Seek), size: (u32, u32)) -> io::Result<Option<Stream>> {
        let [info] = bytes_at(file, self.start)?;
        let length = self.length.saturating_sub(1);
        Ok((info & 3 == 1).then_some(Stream { start: self.start + 1, length, size, header: false }))
    }
}

fn chunk(file: &mut (impl BufRead + Seek), at: u64) -> io::Result<Chunk> {
    let [a, b, c, d, length @ ..] = bytes_at::<8>(file, at)?;
    Ok(Chunk { kind: [a, b, c, d], start: at + 8, length: u64::from(u32::from_le_bytes(length)) })
}

fn bytes_at<const N: usize>(file: &mut (impl BufRead + Seek), at: u64) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    file.seek(SeekFrom::Start(at))?;
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

struct Reader<R> {
    bits: Bits<R>,
    tables: Tables,
    most: u64,
}

impl<R: BufRead> Reader<R> {
    fn stream(&mut self, (width, height): (u32, u32), header: bool) -> Step<()> {
        if header {
            let (signature, declared) = (self.bits.read(8)?, (self.bits.read(14)? + 1, self.bits.read(14)? + 1));
            let (_alpha, version) = (self.bits.read(1)?, self.bits.read(3)?);
            if signature != 0x2f || declared != (width, height) || version != 0 {
                return Err(Stop::Broken);
            }
        } else if width.max(height) > 1 << 14 {
            return Err(Stop::Broken);
        }
        let width = self.transforms(width, height)?;
        let cache = self.cache_bits()?;
        let groups = if self.bits.flag()? {
            let block = self.bits.read(3)? + 2;
            let pixels = self.pixels(blocks(width, block), blocks(height, block))?;
            pixels.iter().map(|argb| argb >> 8 & 0xffff).max().map_or(1, |highest| highest + 1)
        } else {
            1
        };
        self.tables.groups = groups;
        for _ in 0..groups {
            self.tables.bytes += GROUP_BYTES;
            for symbols in alphabets(cache) {
                self.tables.bytes += self.code(symbols)?.bytes();
            }
            if self.tables.bytes > self.most {
                break;
            }
        }
        Ok(())
    }

    /// Gets past the transforms, and returns the width that they leave.
    fn transforms(&mut self, mut width: u32, height: u32) -> Step<u32> {
        let mut seen = [false; 4];
        while self.bits.flag()? {
            let kind = self.bits.read(2)?;
            if std::mem::replace(&mut seen[kind as usize], true) {
                return Err(Stop::Broken);
            }
            match kind {
                // Predictors and colours.
                0 | 1 => {
                    let block = self.bits.read(3)? + 2;
                    self.pixels(blocks(width, block), blocks(height, block))?;
                }
                // Green is subtracted.
                2 => {}
                _ => {
                    let colours = self.bits.read(8)? + 1;
                    self.pixels(colours, 1)?;
                    // Indexes of few colours share a pixel.
                    let shared = match colours {
                        ..=2 => 3,
                        3..=4 => 2,
                        5..=16 => 1,
                        _ => 0,
                    };
                    width = blocks(width, shared);
                }
            }
        }
        Ok(width)
    }

    /// An image other than the picture, as ARGB.
    fn pixels(&mut self, width: u32, height: u32) -> Step<Vec<u32>> {
        let cache_bits = self.cache_bits()?;
        let mut codes = [const { Code::One(0) }; 5];
        for (code, symbols) in codes.iter_mut().zip(alphabets(cache_bits)) {
            *code = self.code(symbols)?;
        }
        let [green_code, red_code, blue_code, alpha_code, distance_code] = &codes;
        let mut cache = cache_bits.map(|bits| (vec![0_u32; 1 << bits], 32 - bits));
        let count = width as usize * height as usize;
        let mut pixels: Vec<u32> = Vec::with_capacity(count);
        while pixels.len() < count {
            let cached = pixels.len();
            let green = u32::from(self.bits.symbol(green_code)?);
            if green < 256 {
                let red = u32::from(self.bits.symbol(red_code)?);
                let blue = u32::from(self.bits.symbol(blue_code)?);
                let alpha = u32::from(self.bits.symbol(alpha_code)?);
                pixels.push(alpha << 24 | red << 16 | green << 8 | blue);
            } else if green < 280 {
                let length = self.bits.number(green - 256)? as usize;
                let distance = u32::from(self.bits.symbol(distance_code)?);
                let from = pixels.len().checked_sub(distance_in(width, self.bits.number(distance)?));
                let from = from.filter(|_| length <= count - pixels.len()).ok_or(Stop::Broken)?;
                for at in from..from + length {
                    pixels.push(pixels[at]);
                }
            } else {
                let (colours, _) = cache.as_ref().ok_or(Stop::Broken)?;
                pixels.push(*colours.get(green as usize - 280).ok_or(Stop::Broken)?);
            }
            if let Some((colours, shift)) = &mut cache {
                for argb in &pixels[cached..] {
                    colours[(argb.wrapping_mul(0x1e35_a7bd) >> *shift) as usize] = *argb;
                }
            }
        }
        Ok(pixels)
    }

    fn cache_bits(&mut self) -> Step<Option<u32>> {
        if !self.bits.flag()? {
            return Ok(None);
        }
        let bits = self.bits.read(4)?;
        if (1..=11).contains(&bits) { Ok(Some(bits)) } else { Err(Stop::Broken) }
    }

    fn code(&mut self, symbols: u16) -> Step<Code> {
        if self.bits.flag()? {
            return self.simple_code(symbols);
        }
        let mut lengths = [0; LENGTH_ORDER.len()];
        let count = 4 + self.bits.read(4)? as usize;
        for at in LENGTH_ORDER.iter().take(count) {
            lengths[*at] = self.bits.byte(3)?;
        }
        let code = Code::new(&lengths)?;
        let lengths = self.lengths(&code, usize::from(symbols))?;
        Code::new(&lengths)
    }

    fn simple_code(&mut self, symbols: u16) -> Step<Code> {
        let two = self.bits.flag()?;
        let bits = if self.bits.flag()? { 8 } else { 1 };
        let first = u16::from(self.bits.byte(bits)?);
        let second = if two { u16::from(self.bits.byte(8)?) } else { first };
        if first.max(second) >= symbols {
            return Err(Stop::Broken);
        }
        let mut counts = [0; LONGEST + 1];
        counts[1] = 2;
        Ok(if two { Code::Many { counts, symbols: vec![first, second] } } else { Code::One(first) })
    }

    /// The lengths of a code with this many symbols, which are themselves written in a code.
    fn lengths(&mut self, code: &Code, symbols: usize) -> Step<Vec<u8>> {
        let most = if self.bits.flag()? {
            let bits = 2 + 2 * self.bits.read(3)?;
            2 + self.bits.read(bits)? as usize
        } else {
            symbols
        };
        if most > symbols {
            return Err(Stop::Broken);
        }
        let mut lengths = Vec::with_capacity(symbols);
        let mut previous = 8;
        for _ in 0..most {
            if lengths.len() >= symbols {
                break;
            }
            let (length, times) = match self.bits.symbol(code)? {
                16 => (previous, 3 + self.bits.read(2)?),
                17 => (0, 3 + self.bits.read(3)?),
                18 => (0, 11 + self.bits.read(7)?),
                length => (u8::try_from(length).unwrap_or_default(), 1),
            };
            if length != 0 {
                previous = length;
            }
            lengths.resize(lengths.len() + times as usize, length);
        }
        if lengths.len() > symbols { Err(Stop::Broken) } else { Ok(lengths) }
    }
}

/// Blocks of `1 << bits` pixels along a side.
fn blocks(side: u32, bits: u32) -> u32 {
    side.div_ceil(1 << bits)
}

fn alphabets(cache_bits: Option<u32>) -> [u16; 5] {
    let mut symbols = ALPHABETS;
    symbols[0] += cache_bits.map_or(0, |bits| 1 << bits);
    symbols
}

/// How many pixels back a distance code refers to.
fn distance_in(width: u32, code: u32) -> usize {
    let distance = match NEAR.get(code as usize - 1) {
        Some((left, up)) => i64::from(*left) + i64::from(*up) * i64::from(width),
        None => i64::from(code) - 120,
    };
    usize::try_from(distance.max(1)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests;
