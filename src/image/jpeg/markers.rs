//! The marker segments of a JPEG file (ITU-T T.81, annex B): frame, tables, scans and what applications add.
//!
//! One pass over the file, before anything is decoded or allocated for pixels. Scans keep slices of the file and the
//! tables that were in force when they began.

use std::rc::Rc;

use image::metadata::Orientation;

use super::super::structure::MAX_ICC_BYTES;
use super::super::{ImageError, Limits};
use super::huffman::Codes;
use super::standard;

/// A JPEG file, taken apart.
pub(super) struct Jpeg<'a> {
    pub(super) frame: Frame,
    pub(super) scans: Vec<Scan<'a>>,
    pub(super) colour: Colour,
    pub(super) orientation: Orientation,
    pub(super) icc: Option<Vec<u8>>,
    /// The end marker is there.
    pub(super) complete: bool,
}

/// The frame header.
pub(super) struct Frame {
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) progressive: bool,
    pub(super) components: Vec<Component>,
}

/// A colour channel of the frame.
pub(super) struct Component {
    id: u8,
    /// Samples relative to the other channels, 1 to 4.
    pub(super) h: u32,
    pub(super) v: u32,
    table: u8,
    /// In zigzag order; set by the first scan that has this component.
    pub(super) quantisation: Option<[u16; 64]>,
}

/// A scan's header and its coded bytes.
pub(super) struct Scan<'a> {
    pub(super) components: Vec<ScanComponent>,
    /// First and last coefficient, in zigzag order.
    pub(super) first: u8,
    pub(super) last: u8,
    /// Bit position of the scan before on these coefficients, 0 if there was none, and of this one.
    pub(super) high: u8,
    pub(super) low: u8,
    /// MCUs between restart markers, 0 for none.
    pub(super) restart_interval: u32,
    pub(super) data: &'a [u8],
}

/// A component in a scan, with its tables where they are defined.
pub(super) struct ScanComponent {
    /// Index in the frame.
    pub(super) index: usize,
    pub(super) dc: Option<Rc<Codes>>,
    pub(super) ac: Option<Rc<Codes>>,
}

/// What the components mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Colour {
    Grey,
    YCbCr,
    Rgb,
    /// Inverted, as Adobe's programs write it and Pillow reads it: 255 is no ink.
    Cmyk,
    /// CMYK whose first three are coded as YCbCr.
    Ycck,
}

impl Colour {
    /// The first channel alone is a picture in black and white.
    pub(super) fn has_luma(self) -> bool {
        matches!(self, Colour::Grey | Colour::YCbCr)
    }
}

/// Reads every segment up to the end marker.
///
/// # Errors
/// [`ImageError`] for a file without a picture, of a kind that is not decoded, or beyond the limits.
pub(super) fn read<'a>(bytes: &'a [u8], limits: &Limits) -> Result<Jpeg<'a>, ImageError> {
    let mut reader = Reader::new(limits);
    reader.huffman(&standard::TABLES)?;
    let complete = reader.segments(bytes)?;
    let missing = |what: &str| {
        let problem = format!("the file has no {what}");
        if complete { ImageError::Corrupt(problem) } else { ImageError::Truncated(problem) }
    };
    let frame = reader.frame.ok_or_else(|| missing("frame header"))?;
    if reader.scans.is_empty() {
        return Err(missing("picture data"));
    }
    if frame.width == 0 || frame.height == 0 {
        return Err(ImageError::Corrupt(format!("a picture of {} × {} pixels", frame.width, frame.height)));
    }
    Ok(Jpeg {
        colour: colour(&frame, reader.jfif, reader.adobe),
        frame,
        scans: reader.scans,
        orientation: reader.orientation.unwrap_or(Orientation::NoTransforms),
        icc: profile(reader.profile),
        complete,
    })
}

struct Reader<'a, 'l> {
    limits: &'l Limits,
    frame: Option<Frame>,
    scans: Vec<Scan<'a>>,
    dc: [Option<Rc<Codes>>; 4],
    ac: [Option<Rc<Codes>>; 4],
    quantisation: [Option<[u16; 64]>; 4],
    restart_interval: u32,
    metadata_chunks: u64,
    orientation: Option<Orientation>,
    profile: Vec<(u8, u8, &'a [u8])>,
    jfif: bool,
    adobe: Option<u8>,
}

impl<'a, 'l> Reader<'a, 'l> {
    fn new(limits: &'l Limits) -> Self {
        Self {
            limits,
            frame: None,
            scans: Vec::new(),
            dc: Default::default(),
            ac: Default::default(),
            quantisation: Default::default(),
            restart_interval: 0,
            metadata_chunks: 0,
            orientation: None,
            profile: Vec::new(),
            jfif: false,
            adobe: None,
        }
    }

    /// Goes from marker to marker; true if the end marker comes before the end.
    fn segments(&mut self, bytes: &'a [u8]) -> Result<bool, ImageError> {
        let mut at = 0;
        while let Some((marker, behind)) = next_marker(bytes, at) {
            at = behind;
            match marker {
                0xD8 => continue,
                0xD9 => return Ok(true),
                _ => {}
            }
            let Some(segment) = segment(bytes, at) else { return Ok(false) };
            at += 2 + segment.len();
            match marker {
                0xC0..=0xC2 => self.frame(segment, marker == 0xC2)?,
                0xC4 => self.huffman(segment)?,
                0xC3 => return Err(unsupported("lossless JPEG")),
                0xC5..=0xC7 | 0xCD..=0xCF | 0xDE | 0xDF => return Err(unsupported("hierarchical JPEG")),
                0xC9..=0xCC => return Err(unsupported("arithmetic-coded JPEG")),
                0xDB => self.quantisation(segment)?,
                0xDC => self.number_of_lines(segment)?,
                0xDD => self.restart_interval = number(segment).ok_or_else(|| corrupt("restart interval"))?,
                0xDA => {
                    let end = end_of_scan(bytes, at);
                    self.scan(segment, &bytes[at.min(end)..end])?;
                    at = end;
                }
                0xE0..=0xEF | 0xFE => self.application(marker, segment)?,
                _ => {}
            }
        }
        Ok(false)
    }

    fn frame(&mut self, segment: &[u8], progressive: bool) -> Result<(), ImageError> {
        let [precision, h1, h2, w1, w2, count, components @ ..] = segment else { return Err(corrupt("frame header")) };
        if self.frame.is_some() {
            return Err(ImageError::Corrupt("two frame headers".to_owned()));
        }
        if *precision != 8 {
            return Err(unsupported(if *precision == 12 { "12-bit JPEG" } else { "a JPEG of this depth" }));
        }
        if !matches!(count, 1 | 3 | 4) {
            return Err(unsupported("a JPEG with this number of channels"));
        }
        let components: Vec<Component> = components
            .chunks_exact(3)
            .take(usize::from(*count))
            .map(|part| Component {
                id: part[0],
                h: u32::from(part[1] >> 4),
                v: u32::from(part[1] & 15),
                table: part[2],
                quantisation: None,
            })
            .collect();
        let sound = |part: &Component| (1..=4).contains(&part.h) && (1..=4).contains(&part.v) && part.table < 4;
        if components.len() != usize::from(*count) || !components.iter().all(sound) {
            return Err(corrupt("frame header"));
        }
        let (width, height) = (u16::from_be_bytes([*w1, *w2]).into(), u16::from_be_bytes([*h1, *h2]).into());
        self.limits.check(width, height, 0)?;
        self.frame = Some(Frame { width, height, progressive, components });
        Ok(())
    }

    /// A frame header may leave the height to a segment behind the first scan (T.81, B.2.5).
    fn number_of_lines(&mut self, segment: &[u8]) -> Result<(), ImageError> {
        if let Some(frame) = self.frame.as_mut().filter(|frame| frame.height == 0) {
            frame.height = number(segment).ok_or_else(|| corrupt("number of lines"))?;
            self.limits.check(frame.width, frame.height, 0)?;
        }
        Ok(())
    }

    fn huffman(&mut self, mut segment: &[u8]) -> Result<(), ImageError> {
        while let Some((class, rest)) = segment.split_first() {
            let (codes, rest) = Codes::read(rest).ok_or_else(|| corrupt("Huffman table"))?;
            let tables = if class >> 4 == 0 { &mut self.dc } else { &mut self.ac };
            *tables.get_mut(usize::from(class & 15)).ok_or_else(|| corrupt("Huffman table"))? = Some(Rc::new(codes));
            segment = rest;
        }
        Ok(())
    }

    fn quantisation(&mut self, mut segment: &[u8]) -> Result<(), ImageError> {
        while let Some((kind, rest)) = segment.split_first() {
            let wide = kind >> 4 != 0;
            let (values, rest) =
                rest.split_at_checked(if wide { 128 } else { 64 }).ok_or_else(|| corrupt("quantisation table"))?;
            let mut table = [0; 64];
            for (index, value) in table.iter_mut().enumerate() {
                *value = if wide {
                    u16::from_be_bytes([values[2 * index], values[2 * index + 1]])
                } else {
                    values[index].into()
                };
            }
            *self.quantisation.get_mut(usize::from(kind & 15)).ok_or_else(|| corrupt("quantisation table"))? =
                Some(table);
            segment = rest;
        }
        Ok(())
    }

    fn scan(&mut self, segment: &[u8], data: &'a [u8]) -> Result<(), ImageError> {
        let Some(frame) = &mut self.frame else {
            return Err(ImageError::Corrupt("a scan before the frame".to_owned()));
        };
        let found = self.scans.len() as u64 + 1;
        if found > u64::from(self.limits.scans) {
            return Err(ImageError::TooComplex { what: "scans", found, limit: self.limits.scans.into() });
        }
        let (count, rest) = segment.split_first().ok_or_else(|| corrupt("scan header"))?;
        let count = usize::from(*count);
        let (parts, rest) = rest.split_at_checked(2 * count).ok_or_else(|| corrupt("scan header"))?;
        let [first, last, approximation, ..] = *rest else { return Err(corrupt("scan header")) };
        let mut components: Vec<ScanComponent> = Vec::new();
        for part in parts.chunks_exact(2) {
            let index = frame.components.iter().position(|component| component.id == part[0]);
            let index = index.ok_or_else(|| corrupt("scan header"))?;
            if components.iter().any(|earlier| earlier.index == index) {
                return Err(corrupt("scan header"));
            }
            let table = |tables: &[Option<Rc<Codes>>; 4], at: u8| tables.get(usize::from(at)).cloned().flatten();
            components.push(ScanComponent {
                index,
                dc: table(&self.dc, part[1] >> 4),
                ac: table(&self.ac, part[1] & 15),
            });
            // A component keeps the table of its first scan, whatever comes later under that number.
            let component = &mut frame.components[index];
            component.quantisation = component.quantisation.or(self.quantisation[usize::from(component.table)]);
            if component.quantisation.is_none() {
                return Err(ImageError::Corrupt("a scan without its quantisation table".to_owned()));
            }
        }
        let (first, last) = if frame.progressive { (first, last) } else { (0, 63) };
        let (high, low) = if frame.progressive { (approximation >> 4, approximation & 15) } else { (0, 0) };
        let blocks: u32 =
            components.iter().map(|part| frame.components[part.index].h * frame.components[part.index].v).sum();
        if components.is_empty()
            || (components.len() > 1 && (blocks > 10 || first > 0))
            || first > last
            || last > 63
            || low > 13
            || (frame.progressive && (first == 0) != (last == 0))
        {
            return Err(corrupt("scan header"));
        }
        let restart_interval = self.restart_interval;
        self.scans.push(Scan { components, first, last, high, low, restart_interval, data });
        Ok(())
    }

    fn application(&mut self, marker: u8, segment: &'a [u8]) -> Result<(), ImageError> {
        self.metadata_chunks += 1;
        self.limits.check_structure(1, self.metadata_chunks)?;
        match marker {
            0xE0 => self.jfif |= segment.starts_with(b"JFIF\0"),
            // Broken metadata is no reason to refuse a picture.
            0xE1 if self.orientation.is_none() => {
                let exif = segment.strip_prefix(b"Exif\0").and_then(|rest| rest.get(1..));
                self.orientation = exif.and_then(Orientation::from_exif_chunk);
            }
            0xE2 => {
                if let Some([number, count, part @ ..]) = segment.strip_prefix(b"ICC_PROFILE\0") {
                    self.profile.push((*number, *count, part));
                }
            }
            0xEE => {
                if let Some(transform) = segment.strip_prefix(b"Adobe").and_then(|rest| rest.get(6)) {
                    self.adobe = Some(*transform);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// The next marker at or behind `at`, and where its segment begins. Stuffed zeros, fill bytes, restart markers and TEM
/// start no segment.
fn next_marker(bytes: &[u8], mut at: usize) -> Option<(u8, usize)> {
    while let Some(found) = memchr::memchr(0xFF, bytes.get(at..)?) {
        at += found + 1;
        if let Some(marker) = bytes.get(at).filter(|marker| !matches!(marker, 0x00 | 0x01 | 0xD0..=0xD7 | 0xFF)) {
            return Some((*marker, at + 1));
        }
    }
    None
}

/// What the two length bytes at `at` announce, if it is all there.
fn segment(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let length = usize::from(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
    bytes.get(at + 2..at + length.max(2))
}

/// Where the coded bytes from `at` on end: at the marker, or with the file.
fn end_of_scan(bytes: &[u8], at: usize) -> usize {
    next_marker(bytes, at).map_or(bytes.len(), |(_, behind)| behind - 2)
}

fn number(segment: &[u8]) -> Option<u32> {
    segment.first_chunk().map(|bytes| u16::from_be_bytes(*bytes).into())
}

/// As libjpeg guesses it: an Adobe marker tells, then a JFIF one, then the component names.
fn colour(frame: &Frame, jfif: bool, adobe: Option<u8>) -> Colour {
    let ids: Vec<u8> = frame.components.iter().map(|component| component.id).collect();
    match (ids.len(), adobe) {
        (1, _) => Colour::Grey,
        (4, None | Some(0)) => Colour::Cmyk,
        (4, Some(_)) => Colour::Ycck,
        _ if jfif => Colour::YCbCr,
        (_, Some(0)) => Colour::Rgb,
        (_, None) if ids == *b"RGB" => Colour::Rgb,
        _ => Colour::YCbCr,
    }
}

/// Puts a profile's parts in order (ICC.1:2010, B.4); nothing if one is missing.
fn profile(mut parts: Vec<(u8, u8, &[u8])>) -> Option<Vec<u8>> {
    parts.sort_by_key(|(number, ..)| *number);
    let count = parts.first()?.1;
    let whole = parts.len() == usize::from(count)
        && parts.iter().zip(1..=count).all(|((number, total, _), expected)| *number == expected && *total == count);
    let bytes: usize = parts.iter().map(|(.., part)| part.len()).sum();
    (whole && bytes <= MAX_ICC_BYTES).then(|| parts.iter().flat_map(|(.., part)| *part).copied().collect())
}

fn unsupported(format: &'static str) -> ImageError {
    ImageError::UnsupportedFormat { format }
}

fn corrupt(what: &str) -> ImageError {
    ImageError::Corrupt(format!("a broken {what}"))
}
