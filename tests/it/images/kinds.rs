//! What the same format can hold. `formats.rs` compares files of many programs with Pillow; these are made here.

use moxcms::ColorProfile;

use super::*;

fn decoded(bytes: &[u8]) -> Pixels {
    decode(bytes, &Limits::default()).unwrap()
}

fn named(bytes: &[u8]) -> &'static str {
    match refused(bytes) {
        ImageError::UnsupportedFormat { format } => format,
        other => panic!("{other}"),
    }
}

/// A little-endian TIFF of one page: its tags, and its strips.
pub(super) struct Tiff {
    tags: Vec<(u16, Vec<u32>)>,
    strips: Vec<Vec<u8>>,
}

impl Tiff {
    /// Uncompressed, with one sample a pixel for each of `bits`.
    pub(super) fn new(width: u32, height: u32, photometric: u32, bits: &[u32], strip: Vec<u8>) -> Self {
        let samples = u32::try_from(bits.len()).unwrap();
        let tags = [(256, vec![width]), (257, vec![height]), (258, bits.to_vec()), (262, vec![photometric])];
        let tags = tags.into_iter().chain([(277, vec![samples]), (278, vec![height])]).collect();
        Tiff { tags, strips: vec![strip] }
    }

    fn with(mut self, tag: u16, values: &[u32]) -> Self {
        self.tags.push((tag, values.to_vec()));
        self
    }

    /// Header, directory, the values that do not fit into it, and the strips.
    pub(super) fn bytes(mut self) -> Vec<u8> {
        let lengths = self.strips.iter().map(|strip| u32::try_from(strip.len()).unwrap()).collect();
        self.tags.extend([(273, vec![0; self.strips.len()]), (279, lengths)]);
        self.tags.sort();
        // Offsets and lengths of strips are 32-bit numbers, the others 16-bit ones.
        let width = |tag: u16| if matches!(tag, 273 | 279) { 4 } else { 2 };
        let values_at = 8 + 2 + self.tags.len() * 12 + 4;
        let outside = |(tag, values): &(u16, Vec<u32>)| Some(values.len() * width(*tag)).filter(|bytes| *bytes > 4);
        let mut strip_at = values_at + self.tags.iter().filter_map(outside).sum::<usize>();
        let offsets = self.strips.iter().map(|strip| {
            strip_at += strip.len();
            u32::try_from(strip_at - strip.len()).unwrap()
        });
        let offsets = offsets.collect();
        self.tags.iter_mut().filter(|(tag, _)| *tag == 273).for_each(|(_, values)| *values = Vec::clone(&offsets));

        let mut bytes = b"II*\0\x08\0\0\0".to_vec();
        bytes.extend(u16::try_from(self.tags.len()).unwrap().to_le_bytes());
        let mut after: Vec<u8> = Vec::new();
        for (tag, values) in &self.tags {
            let width = width(*tag);
            let mut value: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()[..width].to_vec()).collect();
            if value.len() > 4 {
                let at = u32::try_from(values_at + after.len()).unwrap().to_le_bytes();
                after.extend(std::mem::replace(&mut value, at.to_vec()));
            }
            value.resize(4, 0);
            bytes.extend([tag.to_le_bytes(), if width == 4 { [4, 0] } else { [3, 0] }].concat());
            bytes.extend(u32::try_from(values.len()).unwrap().to_le_bytes());
            bytes.extend(value);
        }
        bytes.extend([0; 4]);
        bytes.extend(after);
        bytes.extend(self.strips.concat());
        bytes
    }
}

#[test]
fn tiffs_of_every_kind_of_colour() {
    let palette: Vec<u32> = [[10, 200], [20, 150], [30, 100]].concat().iter().map(|level| level * 257).collect();
    for (name, tiff, expected) in [
        ("bilevel", Tiff::new(3, 1, 1, &[1], vec![0b1010_0000]), vec![255, 255, 255, 0, 0, 0, 255, 255, 255]),
        ("white is zero", Tiff::new(2, 1, 0, &[8], vec![0, 55]), vec![255, 255, 255, 200, 200, 200]),
        ("4 bits", Tiff::new(2, 1, 1, &[4], vec![0x1F]), vec![17, 17, 17, 255, 255, 255]),
        ("16 bits", Tiff::new(1, 1, 1, &[16], vec![0xFF, 0x80]), vec![128; 3]),
        ("32 bits", Tiff::new(1, 1, 1, &[32], vec![0xFF, 0xFF, 0xFF, 0x80]), vec![128; 3]),
        ("float", Tiff::new(1, 1, 1, &[32], 0.5f32.to_le_bytes().to_vec()).with(339, &[3]), vec![128; 3]),
        ("palette", Tiff::new(2, 1, 3, &[1], vec![0b0100_0000]).with(320, &palette), vec![10, 20, 30, 200, 150, 100]),
        ("alpha", Tiff::new(1, 1, 2, &[8; 4], vec![255, 0, 100, 64]).with(338, &[2]), vec![255, 191, 216]),
        ("multiplied", Tiff::new(1, 1, 2, &[8; 4], vec![64, 0, 25, 64]).with(338, &[1]), vec![255, 191, 216]),
        ("extra", Tiff::new(1, 1, 2, &[8; 4], vec![255, 0, 100, 64]).with(338, &[0]), vec![255, 0, 100]),
        ("inks", Tiff::new(1, 1, 5, &[8; 4], vec![255, 0, 100, 51]), vec![0, 204, 124]),
        ("grey alpha", Tiff::new(1, 1, 1, &[8; 2], vec![100, 64]).with(338, &[2]), vec![216; 3]),
        ("luma", Tiff::new(1, 1, 6, &[8; 3], vec![76, 85, 255]).with(530, &[1, 1]), vec![254, 0, 0]),
        ("on its side", Tiff::new(2, 1, 1, &[8], vec![1, 2]).with(274, &[6]), vec![1, 1, 1, 2, 2, 2]),
    ] {
        let found = decoded(&tiff.bytes());
        assert_eq!(found.rgb, expected, "{name}");
    }
}

#[test]
fn planes_are_put_together() {
    let mut planes = Tiff::new(2, 1, 2, &[8; 3], vec![1, 2]).with(284, &[2]);
    planes.strips.extend([vec![3, 4], vec![5, 6]]);
    assert_eq!(decoded(&planes.bytes()).rgb, [1, 3, 5, 2, 4, 6]);
}

#[test]
fn tiffs_that_are_not_decoded_are_named() {
    for (tiff, name) in [
        (Tiff::new(1, 1, 8, &[8; 3], vec![0; 3]), "TIFF in CIE L*a*b*"),
        (Tiff::new(1, 1, 1, &[12], vec![0; 2]), "TIFF with samples of an unusual depth"),
        (Tiff::new(1, 1, 1, &[16], vec![0; 2]).with(339, &[2]), "TIFF with signed or complex samples"),
        (Tiff::new(1, 1, 1, &[8], vec![0]).with(259, &[50_000]), "TIFF compressed with Zstandard"),
        (Tiff::new(1, 1, 32_803, &[8], vec![0]), "camera raw"),
    ] {
        assert_eq!(named(&tiff.bytes()), name);
    }
}

#[test]
fn a_gif_frame_is_put_on_its_canvas() {
    let mut frame = gif::Frame::from_indexed_pixels(2, 1, vec![0, 1], None);
    (frame.left, frame.top) = (1, 1);
    let palette = [10, 20, 30, 40, 50, 60];
    let encoded = |frame: &gif::Frame<'_>, width, height| {
        let mut bytes = Vec::new();
        let mut encoder = gif::Encoder::new(&mut bytes, width, height, &palette).unwrap();
        encoder.write_frame(frame).unwrap();
        drop(encoder);
        decoded(&bytes)
    };
    let (first, second, white) = ([10, 20, 30], [40, 50, 60], [255; 3]);
    // Around it shows the palette's first colour, unless something is transparent.
    let found = encoded(&frame, 4, 2);
    assert_eq!(found.rgb, [first, first, first, first, first, first, second, first].concat());
    frame.transparent = Some(0);
    let found = encoded(&frame, 4, 2);
    assert_eq!(found.rgb, [white, white, white, white, white, white, second, white].concat());
    // A canvas that is too small grows.
    let found = encoded(&frame, 1, 1);
    assert_eq!((found.width, found.height), (3, 2));
}

/// The model's input for a PNG of one colour, with a profile.
fn converted(colour: [u8; 3], grey: bool, profile: &[u8]) -> [u8; 3] {
    let mut bytes = Vec::new();
    let mut encoder = image::codecs::png::PngEncoder::new(&mut bytes);
    encoder.set_icc_profile(profile.to_vec()).unwrap();
    let (samples, kind) =
        if grey { (vec![colour[0]; 64], ExtendedColorType::L8) } else { (colour.repeat(64), ExtendedColorType::Rgb8) };
    encoder.write_image(&samples, 8, 8, kind).unwrap();
    *prepared(&bytes).pixels.rgb.first_chunk().unwrap()
}

#[test]
fn colour_profiles_are_converted_to_srgb() {
    let colours = [[200, 100, 50], [40, 180, 90], [60, 70, 200], [128, 128, 128]];
    // What Pillow's ImageCms.profileToProfile gives for the same profiles.
    let p3 = [[215, 93, 31], [0, 183, 78], [57, 70, 208], [128, 128, 128]];
    let adobe = [[227, 100, 42], [0, 181, 83], [52, 68, 205], [129, 129, 129]];
    let greys = [[30; 3], [100; 3], [200; 3]];
    for (name, profile, from, to) in [
        ("Display-P3", ColorProfile::new_display_p3(), &colours[..], &p3[..]),
        ("Adobe RGB", ColorProfile::new_adobe_rgb(), &colours, &adobe),
        ("grey of gamma 2.2", ColorProfile::new_gray_with_gamma(2.2), &greys, &[[24; 3], [100; 3], [201; 3]]),
        ("sRGB", ColorProfile::new_srgb(), &colours, &colours),
    ] {
        for (from, to) in from.iter().zip(to) {
            let found = converted(*from, name.starts_with("grey"), &profile.encode().unwrap());
            let near = found.iter().zip(to).all(|(a, b)| a.abs_diff(*b) <= 1);
            assert!(near, "{name}: {from:?} became {found:?}, expected {to:?}");
        }
    }
}

#[test]
fn profiles_that_do_not_fit_are_ignored() {
    let colour = [200, 100, 50];
    let grey = ColorProfile::new_gray_with_gamma(1.0).encode().unwrap();
    let p3 = ColorProfile::new_display_p3().encode().unwrap();
    for profile in [&b"no profile"[..], &p3[..200], &grey, &[]] {
        assert_eq!(converted(colour, false, profile), colour);
    }
}
