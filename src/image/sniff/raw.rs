//! Camera raw files in the clothes of TIFF.
//!
//! Their first picture is a thumbnail or a mosaic of single colours, and neither is what was photographed.

/// Whether a file that begins as TIFF is a camera's raw data.
///
/// Sources: DNG 1.7 (`DNGVersion`), TIFF/EP (`CFAPattern`, `CFARepeatPatternDim`, photometric 32803), the makers' own
/// compressions and signatures as LibRaw and ExifTool list them.
pub(super) fn is_camera_raw(bytes: &[u8]) -> bool {
    // Canon's CR2 says so behind the header.
    bytes.get(8..10) == Some(b"CR") || Directory::first(bytes).is_some_and(Directory::is_raw)
}

/// Most entries of a directory that are looked at; entries are sorted, and the telling ones are among the first.
const MAX_ENTRIES: usize = 512;
/// Most directories below the first one that are looked at.
const MAX_BELOW: usize = 8;

const COMPRESSION: u16 = 259;
const PHOTOMETRIC: u16 = 262;
const SUB_DIRECTORIES: u16 = 330;
const CFA_REPEAT: u16 = 33_421;
const CFA_PATTERN: u16 = 33_422;
const DNG_VERSION: u16 = 50_706;
/// A mosaic of single colours, and a mosaic made linear.
const RAW_PHOTOMETRICS: [u32; 2] = [32_803, 34_892];
/// Sony's, Samsung's, Nikon's, Kodak's (two) and Pentax's own.
const RAW_COMPRESSIONS: [u32; 6] = [32_767, 32_770, 34_713, 32_867, 65_000, 65_535];

#[derive(Clone, Copy)]
struct Directory<'a> {
    file: &'a [u8],
    big_endian: bool,
    offset: usize,
}

/// A field of a directory: its tag, how many values it has, and the value or where the values are.
#[derive(Clone, Copy)]
struct Field {
    tag: u16,
    count: u32,
    value: u32,
}

impl<'a> Directory<'a> {
    fn first(file: &'a [u8]) -> Option<Directory<'a>> {
        let header = Directory { file, big_endian: file.starts_with(b"MM"), offset: 0 };
        header.at(header.long(4)?)
    }

    fn at(self, offset: u32) -> Option<Directory<'a>> {
        Some(Directory { offset: usize::try_from(offset).ok()?, ..self })
    }

    fn is_raw(self) -> bool {
        let below = self.fields().find(|field| field.tag == SUB_DIRECTORIES);
        self.has_raw_field() || below.is_some_and(|field| self.below(field).any(Directory::has_raw_field))
    }

    /// The directories that a field points to: the full picture is often in one of them.
    fn below(self, field: Field) -> impl Iterator<Item = Directory<'a>> {
        let count = usize::try_from(field.count).unwrap_or(0).min(MAX_BELOW);
        let offset = move |at: usize| match count {
            1 => Some(field.value),
            _ => self.long(usize::try_from(field.value).ok()?.checked_add(at * 4)?),
        };
        (0..count).filter_map(move |at| self.at(offset(at)?))
    }

    fn has_raw_field(self) -> bool {
        self.fields().any(|field| match field.tag {
            DNG_VERSION | CFA_REPEAT | CFA_PATTERN => true,
            PHOTOMETRIC => RAW_PHOTOMETRICS.contains(&field.value),
            COMPRESSION => RAW_COMPRESSIONS.contains(&field.value),
            _ => false,
        })
    }

    fn fields(self) -> impl Iterator<Item = Field> {
        let count = self.short(self.offset).map_or(0, usize::from).min(MAX_ENTRIES);
        (0..count).map_while(move |at| {
            let at = self.offset.checked_add(2 + at * 12)?;
            // A short value is in the first two of the four bytes.
            let value = if self.short(at + 2)? == 3 { u32::from(self.short(at + 8)?) } else { self.long(at + 8)? };
            Some(Field { tag: self.short(at)?, count: self.long(at + 4)?, value })
        })
    }

    fn short(self, at: usize) -> Option<u16> {
        let bytes = *self.file.get(at..)?.first_chunk()?;
        Some(if self.big_endian { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) })
    }

    fn long(self, at: usize) -> Option<u32> {
        let bytes = *self.file.get(at..)?.first_chunk()?;
        Some(if self.big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    }
}
