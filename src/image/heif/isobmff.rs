//! The items of an ISO base media file: boxes in, the payload and the properties of each item out.
//!
//! ISO 14496-12 (boxes, `iloc`) and ISO 23008-12 (`pitm`, `iinf`, `iref`, `iprp`), as far as a still picture needs. It
//! borrows from the file, allocates in proportion to the file's length, and never reads past a box.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::super::ImageError;
use super::reader::Reader;

/// Most items, references, properties and places of properties. A phone's picture has a hundred tiles or fewer.
const MAX_ENTRIES: usize = 10_000;

/// A four-letter code, of boxes, items and references.
pub(super) type Code = [u8; 4];

/// The parts of a file's `meta` box.
#[derive(Debug, Default)]
pub(super) struct Container<'a> {
    /// The item to show.
    pub(super) primary: u32,
    /// A box reaches past the end of the file.
    pub(super) ends_early: bool,
    file: &'a [u8],
    idat: &'a [u8],
    kinds: BTreeMap<u32, Code>,
    places: BTreeMap<u32, Place>,
    references: Vec<Reference>,
    properties: BTreeMap<u32, Vec<(Code, &'a [u8])>>,
}

#[derive(Debug)]
struct Reference {
    kind: Code,
    from: u32,
    to: Vec<u32>,
}

/// Where an item's bytes are: in the file or in the `idat` box, in pieces of offset and length.
#[derive(Debug)]
struct Place {
    in_idat: bool,
    pieces: Vec<(u64, u64)>,
}

impl<'a> Container<'a> {
    /// Reads the `meta` box.
    ///
    /// # Errors
    /// [`ImageError::Truncated`] where the file ends before it does, else [`ImageError::Corrupt`].
    pub(super) fn read(file: &'a [u8]) -> Result<Container<'a>, ImageError> {
        let (boxes, ends_early) = boxes(file);
        let unfinished = |problem: String| {
            if ends_early { ImageError::Truncated(problem) } else { ImageError::Corrupt(problem) }
        };
        let Some((_, meta)) = boxes.iter().find(|(kind, _)| kind == b"meta") else {
            return Err(unfinished("there is no list of items".to_owned()));
        };
        let mut container = Container { file, ends_early, ..Container::default() };
        container.read_meta(meta).ok_or_else(|| unfinished("the list of items contradicts itself".to_owned()))?;
        Ok(container)
    }

    fn read_meta(&mut self, meta: &'a [u8]) -> Option<()> {
        let mut list = Reader(meta);
        list.version_and_flags()?;
        for (kind, body) in boxes(list.0).0 {
            match &kind {
                b"pitm" => {
                    let mut body = Reader(body);
                    let (version, _) = body.version_and_flags()?;
                    self.primary = body.id(version > 0)?;
                }
                b"idat" => self.idat = body,
                b"iinf" => self.read_kinds(Reader(body))?,
                b"iloc" => self.read_places(Reader(body))?,
                b"iref" => self.read_references(Reader(body))?,
                b"iprp" => self.read_properties(body)?,
                _ => {}
            }
        }
        Some(())
    }

    fn read_kinds(&mut self, mut body: Reader<'a>) -> Option<()> {
        let (version, _) = body.version_and_flags()?;
        body.id(version > 0)?;
        for (kind, entry) in boxes(body.0).0 {
            let mut entry = Reader(entry);
            let (version, _) = entry.version_and_flags()?;
            // Versions 0 and 1 have no code; no still picture uses them.
            if &kind == b"infe" && version >= 2 {
                let item = entry.id(version > 2)?;
                entry.uint(2)?;
                self.kinds.insert(item, entry.code()?);
            }
        }
        Some(())
    }

    fn read_places(&mut self, mut body: Reader<'a>) -> Option<()> {
        let (version, _) = body.version_and_flags()?;
        let sizes = body.uint(2)?;
        let [offset_size, length_size, base_size, index_size] = [12, 8, 4, 0].map(|shift| sizes >> shift & 15);
        let index_size = if version > 0 { index_size } else { 0 };
        let mut placed = 0;
        for _ in 0..body.id(version > 1)? {
            let item = body.id(version > 1)?;
            let in_idat = match if version > 0 { body.uint(2)? & 15 } else { 0 } {
                0 => false,
                1 => true,
                _ => return None,
            };
            body.uint(2)?;
            let base = body.uint(base_size)?;
            let mut place = Place { in_idat, pieces: Vec::new() };
            for _ in 0..body.uint(2)? {
                body.uint(index_size)?;
                let offset = base.checked_add(body.uint(offset_size)?)?;
                place.pieces.push((offset, body.uint(length_size)?));
                // With sizes of 0 a piece takes no bytes of the file, and yet memory.
                placed += 1;
                bounded(placed)?;
            }
            self.places.insert(item, place);
        }
        Some(())
    }

    fn read_references(&mut self, mut body: Reader<'a>) -> Option<()> {
        let (version, _) = body.version_and_flags()?;
        for (kind, entry) in boxes(body.0).0 {
            let mut entry = Reader(entry);
            let from = entry.id(version > 0)?;
            let count = entry.uint(2)?;
            let to = (0..count).map(|_| entry.id(version > 0)).collect::<Option<_>>()?;
            self.references.push(Reference { kind, from, to });
        }
        Some(())
    }

    fn read_properties(&mut self, body: &'a [u8]) -> Option<()> {
        let boxes_of = |kind: Code| boxes(body).0.into_iter().filter(move |(found, _)| *found == kind);
        let all: Vec<_> = boxes_of(*b"ipco").flat_map(|(_, list)| boxes(list).0).collect();
        let mut placed = 0;
        for (_, list) in boxes_of(*b"ipma") {
            let mut list = Reader(list);
            let (version, flags) = list.version_and_flags()?;
            for _ in 0..list.uint(4)? {
                let item = list.id(version > 0)?;
                for _ in 0..list.uint(1)? {
                    // The upper bit says whether the property is essential.
                    let index = if flags & 1 == 1 { list.uint(2)? & 0x7FFF } else { list.uint(1)? & 0x7F };
                    let property = usize::try_from(index).ok()?.checked_sub(1).and_then(|index| all.get(index));
                    self.properties.entry(item).or_default().extend(property);
                    placed += 1;
                    bounded(placed)?;
                }
            }
        }
        Some(())
    }

    /// The item's kind, such as `av01`.
    pub(super) fn kind(&self, item: u32) -> Option<Code> {
        self.kinds.get(&item).copied()
    }

    /// The item's properties in the order in which they apply.
    pub(super) fn properties(&self, item: u32) -> impl Iterator<Item = (Code, &'a [u8])> {
        self.properties.get(&item).into_iter().flatten().copied()
    }

    /// The body of the item's first property of a kind.
    pub(super) fn property(&self, item: u32, kind: &Code) -> Option<&'a [u8]> {
        self.properties(item).find(|(found, _)| found == kind).map(|(_, body)| body)
    }

    /// The items that an item refers to, in order.
    pub(super) fn referred(&self, from: u32, kind: &Code) -> &[u32] {
        self.references
            .iter()
            .find(|reference| reference.from == from && &reference.kind == kind)
            .map_or(&[], |reference| reference.to.as_slice())
    }

    /// The items that refer to an item.
    pub(super) fn referring(&self, kind: &Code, to: u32) -> impl Iterator<Item = u32> {
        let refers = move |reference: &&Reference| &reference.kind == kind && reference.to.contains(&to);
        self.references.iter().filter(refers).map(|reference| reference.from)
    }

    /// The item's bytes.
    ///
    /// # Errors
    /// [`ImageError::Truncated`] where they lie past the end of the file, else [`ImageError::Corrupt`].
    pub(super) fn payload(&self, item: u32) -> Result<Cow<'a, [u8]>, ImageError> {
        let corrupt = |problem: &str| ImageError::Corrupt(format!("item {item} {problem}"));
        let place = self.places.get(&item).ok_or_else(|| corrupt("is listed without its place"))?;
        let source = if place.in_idat { self.idat } else { self.file };
        let piece = |(offset, length): (u64, u64)| {
            let start = usize::try_from(offset).ok()?;
            // A length of 0 means everything that is left.
            let length = if length == 0 { source.len().checked_sub(start)? } else { usize::try_from(length).ok()? };
            source.get(start..start.checked_add(length)?)
        };
        let past = || {
            if place.in_idat {
                corrupt("lies outside of its box")
            } else {
                ImageError::Truncated(format!("item {item} lies past the end of the file"))
            }
        };
        if let [only] = place.pieces.as_slice() {
            return piece(*only).map(Cow::Borrowed).ok_or_else(past);
        }
        let mut whole = Vec::new();
        for part in &place.pieces {
            whole.extend_from_slice(piece(*part).ok_or_else(past)?);
            // Pieces that overlap could make any amount of a small file.
            if whole.len() > self.file.len() {
                return Err(corrupt("is larger than its file"));
            }
        }
        Ok(Cow::Owned(whole))
    }
}

fn bounded(entries: usize) -> Option<()> {
    (entries <= MAX_ENTRIES).then_some(())
}

/// The boxes in these bytes, and whether the last one that begins in them ends outside.
fn boxes(bytes: &[u8]) -> (Vec<(Code, &[u8])>, bool) {
    let mut found = Vec::new();
    let mut rest = Reader(bytes);
    while !rest.0.is_empty() && found.len() < MAX_ENTRIES {
        let all = rest.0;
        let (Some(size), Some(kind)) = (rest.uint(4), rest.code()) else { return (found, true) };
        let size = match size {
            0 => Some(all.len() as u64),
            1 => rest.uint(8),
            size => Some(size),
        };
        let Some(size) = size else { return (found, true) };
        let header = all.len() - rest.0.len();
        let Some(body) = usize::try_from(size).ok().and_then(|size| size.checked_sub(header)) else {
            return (found, false);
        };
        let Some(body) = rest.take(body) else { return (found, true) };
        found.push((kind, body));
    }
    (found, false)
}
