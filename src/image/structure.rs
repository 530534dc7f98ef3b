//! What a file consists of, found by walking its chunks without decoding any.
//!
//! A walk takes time linear in the file, allocates nothing, and looks at no pixel. It counts what
//! [`Limits`](super::Limits) bound, tells whether the file reaches its end mark, and finds the orientation and the
//! colour profile wherever they lie, so that no decoder needs to keep any metadata.

mod tiff;

use std::io::Read;

use super::{Format, ImageError, Limits};

pub(super) use tiff::{Directory, Tag};

/// Longest colour profile that is looked at, in bytes. The largest printing profiles have some 3 MiB.
pub(super) const MAX_ICC_BYTES: usize = 4 << 20;

/// What the walk found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Structure<'a> {
    /// Frames or pages.
    pub(super) frames: u64,
    /// Chunks, segments or tags that are not pixels.
    pub(super) metadata: u64,
    /// The file reaches its end mark. A BMP has none, and of a TIFF this is about its pages: their decoders find out
    /// whether the pixels came.
    pub(super) complete: bool,
    /// An EXIF block, from its TIFF header on.
    pub(super) exif: Option<&'a [u8]>,
    profile: Option<Profile<'a>>,
    /// Features that decide how a WebP is decoded.
    pub(super) webp: WebP,
}

/// Features of a WebP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WebP {
    /// It has an extended header, with its flags at byte 20.
    pub(super) extended: bool,
    /// A chunk with the alpha channel of a lossy picture.
    pub(super) alpha: bool,
    /// A lossy picture outside of any frame.
    pub(super) lossy: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Profile<'a> {
    Plain(&'a [u8]),
    Deflated(&'a [u8]),
}

impl Structure<'_> {
    /// The colour profile, if there is one of at most [`MAX_ICC_BYTES`].
    pub(super) fn icc(&self) -> Option<Vec<u8>> {
        match self.profile? {
            Profile::Plain(profile) => (profile.len() <= MAX_ICC_BYTES).then(|| profile.to_vec()),
            Profile::Deflated(data) => {
                let mut profile = Vec::new();
                let mut reader = flate2::read::ZlibDecoder::new(data).take(MAX_ICC_BYTES as u64 + 1);
                let read = reader.read_to_end(&mut profile);
                (read.is_ok() && profile.len() <= MAX_ICC_BYTES).then_some(profile)
            }
        }
    }
}

/// Walks a file and checks its counts.
///
/// # Errors
/// [`ImageError::TooComplex`].
pub(super) fn walk<'a>(bytes: &'a [u8], format: Format, limits: &Limits) -> Result<Structure<'a>, ImageError> {
    let found = match format {
        Format::Bmp => Structure { frames: 1, ..Structure::default() },
        Format::Gif => gif(bytes),
        // Their decoders walk them by themselves.
        Format::Avif | Format::Heic | Format::Jpeg => Structure::default(),
        Format::Png => png(bytes),
        Format::Tiff => tiff::walk(bytes, limits.frames),
        Format::WebP => webp(bytes),
    };
    limits.check_structure(found.frames, found.metadata)?;
    Ok(found)
}

/// PNG and APNG (W3C PNG, third edition, section 5).
fn png(bytes: &[u8]) -> Structure<'_> {
    let mut found = Structure::default();
    let mut at = 8;
    while let Some((length, kind)) = header(bytes, at, u32::from_be_bytes) {
        let end = (at + 8).saturating_add(length);
        let data = bytes.get(at + 8..end);
        at = end.saturating_add(4);
        match &kind {
            b"IHDR" | b"PLTE" | b"IDAT" | b"fdAT" | b"acTL" => {}
            b"fcTL" => found.frames += 1,
            b"IEND" => {
                found.complete = bytes.len() >= at;
                break;
            }
            _ => found.metadata += 1,
        }
        match (&kind, data) {
            (b"eXIf", Some(data)) => found.exif = found.exif.or(Some(without_exif_mark(data))),
            // A name of up to 79 bytes, its zero, and the compression method.
            (b"iCCP", Some(data)) if found.profile.is_none() => {
                let name = data.iter().take(80).position(|byte| *byte == 0);
                found.profile = name.and_then(|name| data.get(name + 2..)).map(Profile::Deflated);
            }
            _ => {}
        }
    }
    found.frames = found.frames.max(1);
    found
}

/// GIF87a and GIF89a.
fn gif(bytes: &[u8]) -> Structure<'_> {
    let mut found = Structure::default();
    let mut at = 13 + bytes.get(10).map_or(0, |flags| color_table_bytes(*flags));
    loop {
        match bytes.get(at) {
            Some(0x2C) => {
                found.frames += 1;
                at += 11 + bytes.get(at + 9).map_or(0, |flags| color_table_bytes(*flags));
            }
            Some(0x21) => {
                // A graphic control belongs to its frame.
                found.metadata += u64::from(bytes.get(at + 1) != Some(&0xF9));
                at += 2;
            }
            Some(0x3B) => {
                found.complete = true;
                return found;
            }
            Some(_) => {
                // Bytes that some writers leave between blocks.
                at += 1;
                continue;
            }
            None => return found,
        }
        while let Some(&length) = bytes.get(at) {
            at += 1 + usize::from(length);
            if length == 0 {
                break;
            }
        }
    }
}

fn color_table_bytes(flags: u8) -> usize {
    if flags & 0x80 == 0 { 0 } else { 6 << (flags & 7) }
}

/// WebP (RFC 9649).
fn webp(bytes: &[u8]) -> Structure<'_> {
    let mut found = Structure::default();
    let declared = bytes.get(4..8).and_then(|size| size.first_chunk()).map_or(0, |size| u32::from_le_bytes(*size));
    let mut at = 12;
    let mut last_end = at;
    while let Some((kind, length)) = riff_header(bytes, at) {
        let start = at + 8;
        let end = start.saturating_add(length);
        let data = bytes.get(start..end);
        match &kind {
            b"VP8 " => found.webp.lossy = true,
            b"VP8L" | b"ANIM" => {}
            b"ALPH" => found.webp.alpha = true,
            b"VP8X" => found.webp.extended = at == 12,
            b"ANMF" => found.frames += 1,
            _ => found.metadata += 1,
        }
        match (&kind, data) {
            (b"EXIF", Some(data)) => found.exif = found.exif.or(Some(without_exif_mark(data))),
            (b"ICCP", Some(data)) => found.profile = found.profile.or(Some(Profile::Plain(data))),
            _ => {}
        }
        last_end = end;
        at = end.saturating_add(length & 1);
    }
    // Some writers leave out the last chunk's padding byte, or count it when it is not there.
    found.complete = last_end <= bytes.len() && bytes.len() as u64 + 1 >= u64::from(declared) + 8;
    found.frames = found.frames.max(1);
    found
}

fn riff_header(bytes: &[u8], at: usize) -> Option<([u8; 4], usize)> {
    let kind = bytes.get(at..)?.first_chunk()?;
    let length = bytes.get(at + 4..)?.first_chunk()?;
    Some((*kind, u32::from_le_bytes(*length) as usize))
}

/// A PNG chunk's length and type.
fn header(bytes: &[u8], at: usize, number: fn([u8; 4]) -> u32) -> Option<(usize, [u8; 4])> {
    let length = bytes.get(at..)?.first_chunk()?;
    let kind = bytes.get(at + 4..)?.first_chunk()?;
    Some((number(*length) as usize, *kind))
}

/// Some writers repeat the mark that JPEG needs.
fn without_exif_mark(exif: &[u8]) -> &[u8] {
    exif.strip_prefix(b"Exif\0\0").unwrap_or(exif)
}

#[cfg(test)]
mod tests {
    use super::{Structure, gif, png, webp, without_exif_mark};

    fn png_file(chunks: &[(&[u8; 4], &[u8])]) -> Vec<u8> {
        let mut file = b"\x89PNG\r\n\x1A\n".to_vec();
        for (kind, data) in chunks {
            file.extend(u32::try_from(data.len()).unwrap().to_be_bytes());
            file.extend([&kind[..], data, &[0; 4]].concat());
        }
        file
    }

    fn webp_file(chunks: &[(&[u8; 4], &[u8])]) -> Vec<u8> {
        let mut file = b"RIFF\0\0\0\0WEBP".to_vec();
        for (kind, data) in chunks {
            file.extend(kind.iter());
            file.extend(u32::try_from(data.len()).unwrap().to_le_bytes());
            file.extend(data.iter().chain(&[0][..data.len() % 2]));
        }
        let size = u32::try_from(file.len() - 8).unwrap();
        file[4..8].copy_from_slice(&size.to_le_bytes());
        file
    }

    /// Walks every beginning of a file: only the whole one is complete.
    fn only_the_whole_is_complete(file: &[u8], walk: fn(&[u8]) -> Structure<'_>) {
        assert!(walk(file).complete);
        for cut in 0..file.len() {
            assert!(!walk(&file[..cut]).complete, "cut at {cut} of {}", file.len());
        }
    }

    #[test]
    fn png_chunks() {
        let exif = b"Exif\0\0MM\0*";
        let chunks: [(&[u8; 4], &[u8]); 8] = [
            (b"IHDR", &[0; 13]),
            (b"tEXt", b"Comment\0text"),
            (b"acTL", &[0; 8]),
            (b"fcTL", &[0; 26]),
            (b"IDAT", &[0; 10]),
            (b"fcTL", &[0; 26]),
            (b"eXIf", exif),
            (b"IEND", &[]),
        ];
        let file = png_file(&chunks);
        let found = png(&file);
        assert_eq!((found.frames, found.metadata, found.exif), (2, 2, Some(&b"MM\0*"[..])));
        only_the_whole_is_complete(&file, png);
    }

    #[test]
    fn gif_blocks() {
        // A screen with a palette of two colours, a comment, a control, and two frames, of which one has a palette.
        let frame =
            |flags: u8| [&b",\0\0\0\0\x01\0\x01\0"[..], &[flags], &[0; 6][..(flags >> 7) as usize * 6]].concat();
        let data = b"\x02\x02\x44\x01\0";
        let file = [
            &b"GIF89a\x01\0\x01\0\x80\0\0\0\0\0\xFF\xFF\xFF"[..],
            b"!\xFE\x02hi\0",
            b"!\xF9\x04\0\0\0\0\0",
            &frame(0),
            data,
            &frame(0x80),
            data,
            b";",
        ]
        .concat();
        let found = gif(&file);
        assert_eq!((found.frames, found.metadata), (2, 1));
        only_the_whole_is_complete(&file, gif);
    }

    #[test]
    fn webp_chunks() {
        let file = webp_file(&[(b"VP8X", &[0; 10]), (b"ICCP", b"icc"), (b"ANIM", &[0; 6]), (b"ANMF", &[0; 20])]);
        let found = webp(&file);
        assert_eq!((found.frames, found.metadata, found.icc()), (1, 1, Some(b"icc".to_vec())));
        assert!(found.webp.extended && !found.webp.lossy);
        let cut = webp(&file[..file.len() - 2]);
        assert!(found.complete && !cut.complete);
    }

    #[test]
    fn some_writers_repeat_the_exif_mark() {
        assert_eq!(without_exif_mark(b"Exif\0\0II*\0"), b"II*\0");
        assert_eq!(without_exif_mark(b"II*\0"), b"II*\0");
    }
}
