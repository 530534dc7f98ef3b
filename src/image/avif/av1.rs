//! A coded AV1 picture to planes.
//!
//! AV1 specification, sections 5.3 (OBUs), 5.5 (sequence header) and AV1-ISOBMFF section 2.3 (`av1C`).

use std::cell::RefCell;

use re_rav1d::dav1d::pixel::YUVRange;
use re_rav1d::dav1d::{Decoder, Error, Picture as Decoded, PixelLayout, PlanarImageComponent, Settings};

use super::super::ImageError;
use super::super::heif::{Chroma, Codec, Colour, Enlargement, Item, Layout, Picture, Samples};

pub(super) const CODEC: Codec =
    Codec { unusual: "an AVIF of this kind", item: *b"av01", config: *b"av1C", layout, decode, clean_aperture: false };

/// Most frames of a picture: one a layer, of which there are four. Hidden ones would cost time and memory unseen.
const MAX_FRAMES: usize = 4;

fn layout(config: &[u8]) -> Option<Layout> {
    // Marker and version, profile and level, then the flags: tier, high depth, 12 bits, monochrome, halved in x and y.
    let flags = config.get(2)?;
    let chroma = match (flags >> 4 & 1, flags >> 2 & 3) {
        (1, _) => Chroma::Monochrome,
        (_, 3) => Chroma::Half,
        (_, 2) => Chroma::HalfWidth,
        _ => Chroma::Full,
    };
    Some(Layout { chroma, sample_bytes: if flags >> 6 & 1 == 1 { 2 } else { 1 } })
}

fn decode(item: &Item<'_>) -> Result<Picture, ImageError> {
    check_frames(item.payload)?;
    let mut settings = Settings::new();
    settings.set_n_threads(1);
    settings.set_max_frame_delay(1);
    settings.set_all_layers(false);
    // Whatever the sequence header says, no frame may be larger than the file declares.
    settings.set_frame_size_limit(item.width.saturating_mul(item.height));
    let mut decoder = Decoder::with_settings(&settings).map_err(corrupt)?;
    let mut sent = decoder.send_data(item.payload.to_vec(), None, None, None);
    for _ in 0..=MAX_FRAMES {
        match sent {
            Ok(()) | Err(Error::Again) => {}
            Err(error) => return Err(corrupt(error)),
        }
        match decoder.get_picture() {
            Ok(picture) => {
                let planes = planes(&picture);
                free(picture);
                return planes;
            }
            Err(Error::Again) => sent = decoder.send_pending_data(),
            Err(error) => return Err(corrupt(error)),
        }
    }
    Err(ImageError::Corrupt("no AV1 frame to show".to_owned()))
}

fn corrupt(error: Error) -> ImageError {
    ImageError::Corrupt(match error {
        Error::NotEnoughMemory => "the AV1 decoder got no memory".to_owned(),
        // The decoder says so of frames above its limit as well.
        error => format!("the AV1 decoder gave up: {error}"),
    })
}

/// Walks the units of a picture before the decoder does, for it would decode any number of hidden frames.
fn check_frames(mut units: &[u8]) -> Result<(), ImageError> {
    let mut frames = 0;
    while let Some((header, rest)) = units.split_first() {
        let (kind, extended, sized) = (header >> 3 & 15, header >> 2 & 1 == 1, header >> 1 & 1 == 1);
        let rest = if extended { rest.get(1..).unwrap_or_default() } else { rest };
        // Frame headers, alone or with their tiles.
        frames += usize::from(matches!(kind, 3 | 6));
        if frames > MAX_FRAMES {
            return Err(ImageError::Corrupt(format!("a picture of more than {MAX_FRAMES} AV1 frames")));
        }
        // Without a size a unit is the last one.
        let (size, rest) = if sized { leb128(rest) } else { (rest.len(), rest) };
        units = rest.get(size..).unwrap_or_default();
    }
    Ok(())
}

/// A number of 7 bits a byte, the lowest first, and what follows it.
fn leb128(bytes: &[u8]) -> (usize, &[u8]) {
    let mut number = 0_usize;
    for (at, byte) in bytes.iter().enumerate().take(8) {
        number |= usize::from(byte & 0x7F) << (7 * at);
        if byte & 0x80 == 0 {
            return (number, &bytes[at + 1..]);
        }
    }
    (usize::MAX, &[])
}

fn planes(picture: &Decoded) -> Result<Picture, ImageError> {
    use PlanarImageComponent::{U, V, Y};
    let (chroma, components) = match picture.pixel_layout() {
        PixelLayout::I400 => (Chroma::Monochrome, [Y].as_slice()),
        PixelLayout::I420 => (Chroma::Half, [Y, U, V].as_slice()),
        PixelLayout::I422 => (Chroma::HalfWidth, [Y, U, V].as_slice()),
        PixelLayout::I444 => (Chroma::Full, [Y, U, V].as_slice()),
    };
    let bits = picture.bits_per_component().map_or(8, |bits| bits.0);
    let size = (picture.width() as usize, picture.height() as usize);
    let colour =
        Colour { matrix: picture.matrix_coefficients() as u8, full_range: picture.color_range() == YUVRange::Full };
    let planes = components.iter().map(|component| copy(picture, *component, chroma)).collect();
    let bits = u8::try_from(bits).unwrap_or(u8::MAX);
    Picture::new(size, chroma, bits, (colour, Enlargement::Linear), planes)
        .ok_or_else(|| ImageError::Corrupt("an AV1 picture without its planes".to_owned()))
}

/// A plane without the gaps between its rows.
fn copy(picture: &Decoded, component: PlanarImageComponent, chroma: Chroma) -> Samples {
    let size = (picture.width() as usize, picture.height() as usize);
    let (width, height) = if component == PlanarImageComponent::Y { size } else { chroma.plane_size(size.0, size.1) };
    let (plane, stride) = (picture.plane(component), picture.stride(component) as usize);
    let rows = plane.chunks(stride).take(height);
    if picture.bit_depth() > 8 {
        let mut words = Vec::with_capacity(width * height);
        rows.for_each(|row| {
            words.extend(row.as_chunks().0.iter().take(width).map(|word| u16::from_ne_bytes(*word)));
        });
        Samples::Words(words)
    } else {
        let mut bytes = Vec::with_capacity(width * height);
        rows.for_each(|row| bytes.extend_from_slice(row.get(..width).unwrap_or(row)));
        Samples::Bytes(bytes)
    }
}

thread_local! {
    /// Blocks of the size that a picture leaks.
    #[expect(clippy::vec_box, reason = "each is freed by itself")]
    static SPARE: RefCell<Vec<Box<[u8; LEAKED_BYTES]>>> = const { RefCell::new(Vec::new()) };
}

/// Bytes that re_rav1d 0.1.3 leaks with each picture: `dav1d_picture_unref` leaves an empty list of metadata in its place.
const LEAKED_BYTES: usize = 48;

/// Frees a picture so that what it leaks does no harm.
///
/// Left to itself the block lies somewhere in the room that the decoder has just used, which then is too small for the
/// next decoder: measured with glibc, 24 to 440 KiB more for each picture. A block that is freed right before is the one
/// that is given out again, and those that are allocated together lie together.
fn free(picture: Decoded) {
    SPARE.with_borrow_mut(|spare| {
        if spare.is_empty() {
            spare.extend((0..4096).map(|_| Box::new([0; LEAKED_BYTES])));
        }
        drop(spare.pop());
    });
    drop(picture);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_of_many_frames_is_refused_before_it_is_decoded() {
        // A temporal delimiter, then frames of two bytes each, the last without its size.
        let picture = |frames: usize| [&[0x12, 0][..], &[0x32, 2, 0, 0].repeat(frames), &[0x30, 0]].concat();
        assert!(check_frames(&picture(MAX_FRAMES - 1)).is_ok());
        assert!(matches!(check_frames(&picture(MAX_FRAMES)), Err(ImageError::Corrupt(_))));
        // A unit that reaches past the end, and a size that never ends.
        assert!(check_frames(&[0x32, 0x7F, 0]).is_ok());
        assert!(check_frames(&[0x32, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF]).is_ok());
    }

    #[test]
    fn sizes_are_little_endian_in_sevens() {
        assert_eq!(leb128(&[0xE5, 0x8E, 0x26, 7]), (624_485, &[7][..]));
    }
}
