//! A coded AV1 picture to planes.
//!
//! AV1 specification, sections 5.3 (OBUs), 5.5 (sequence header) and AV1-ISOBMFF section 2.3 (`av1C`).

use re_rav1d::dav1d::pixel::YUVRange;
use re_rav1d::dav1d::{Decoder, Error, Picture as Decoded, PixelLayout, PlanarImageComponent, Settings};

use super::super::ImageError;
use super::super::heif::{Chroma, Codec, Colour, Enlargement, Item, Layout, Picture, Plane};

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
            Ok(picture) => return planes(&picture),
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
    let sample_bytes = if bits > 8 { 2 } else { 1 };
    let plane = |component: &PlanarImageComponent| {
        Plane::foreign(picture.plane(*component), sample_bytes, picture.stride(*component) as usize / sample_bytes)
    };
    let size = (picture.width() as usize, picture.height() as usize);
    let colour =
        Colour { matrix: picture.matrix_coefficients() as u8, full_range: picture.color_range() == YUVRange::Full };
    let bits = u8::try_from(bits).unwrap_or(u8::MAX);
    Picture::new(size, chroma, bits, (colour, Enlargement::Linear), components.iter().map(plane).collect())
        .ok_or_else(|| ImageError::Corrupt("an AV1 picture without its planes".to_owned()))
}
