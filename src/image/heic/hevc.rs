//! A coded HEVC picture to planes.
//!
//! ITU-T H.265 sections 7.3.1 (NAL units) and 7.3.2.2 (sequence parameter set), ISO 14496-15 (`hvcC`).

use heic_rs::boxes::BoxHeader;
use heic_rs::hevc::{self, ChromaFormat};
use heic_rs::props::hvcc::{self, HevcConfig, NAL_SPS};

use super::super::ImageError;
use super::super::heif::{Chroma, Codec, Colour, Enlargement, Item, Layout, Picture, Plane};

pub(super) const CODEC: Codec =
    Codec { unusual: "a HEIC of this kind", item: *b"hvc1", config: *b"hvcC", layout, decode, clean_aperture: true };

/// What is assumed of samples of which the file says nothing: BT.601 in full range, as libheif does and phones write.
const COLOUR: Colour = Colour { matrix: 6, full_range: true };

/// The coded picture is larger than the shown one by less than a coding block.
const MAX_PADDING: u64 = 64;

fn layout(body: &[u8]) -> Option<Layout> {
    let chroma = match config(body).ok()?.chroma_format {
        0 => Chroma::Monochrome,
        1 => Chroma::Half,
        2 => Chroma::HalfWidth,
        _ => Chroma::Full,
    };
    // The decoder's own planes, and a copy without the padding.
    Some(Layout { chroma, sample_bytes: 4 })
}

fn config(body: &[u8]) -> Result<HevcConfig<'_>, ImageError> {
    hvcc::parse(&BoxHeader { boxtype: CODEC.config, payload: body, uuid: None, offset: 0 }).map_err(corrupt)
}

fn decode(item: &Item<'_>) -> Result<Picture, ImageError> {
    let config = config(item.config)?;
    if config.chroma_format > 1 {
        return Err(ImageError::UnsupportedFormat { format: "a HEIC with 4:2:2 or 4:4:4 colour" });
    }
    // The decoder allocates for what the parameter set says, whatever the file declares.
    let largest = (u64::from(item.width) + MAX_PADDING, u64::from(item.height) + MAX_PADDING);
    // It goes by the header of the unit, not by the list that the unit is in.
    let is_set = |unit: &&&[u8]| unit.first().is_some_and(|header| header >> 1 & 0x3F == NAL_SPS);
    for set in config.arrays.iter().flat_map(|array| &array.nals).filter(is_set) {
        let size =
            coded_size(set).ok_or_else(|| ImageError::Corrupt("an HEVC parameter set without its end".to_owned()))?;
        if size.0 > largest.0 || size.1 > largest.1 {
            let declared = (item.width, item.height);
            let problem =
                format!("HEVC pictures of {} × {}, declared as {} × {}", size.0, size.1, declared.0, declared.1);
            return Err(ImageError::Corrupt(problem));
        }
    }
    let units = config.split_nals(item.payload).map_err(corrupt)?;
    let frame = hevc::decode_still(&config.parameter_sets(), &units).map_err(corrupt)?;
    let (chroma, planes) = match frame.chroma {
        ChromaFormat::Monochrome => (Chroma::Monochrome, vec![(frame.y, frame.y_stride)]),
        ChromaFormat::Yuv420 => {
            (Chroma::Half, vec![(frame.y, frame.y_stride), (frame.cb, frame.c_stride), (frame.cr, frame.c_stride)])
        }
        ChromaFormat::Yuv422 | ChromaFormat::Yuv444 => {
            return Err(ImageError::UnsupportedFormat { format: "a HEIC with 4:2:2 or 4:4:4 colour" });
        }
    };
    let planes = planes.into_iter().map(|(samples, stride)| Plane::own(samples, stride as usize)).collect();
    Picture::new(
        (frame.width as usize, frame.height as usize),
        chroma,
        frame.bit_depth,
        (COLOUR, Enlargement::Nearest),
        planes,
    )
    .ok_or_else(|| ImageError::Corrupt("an HEVC picture without its planes".to_owned()))
}

fn corrupt(error: heic_rs::Error) -> ImageError {
    match error {
        heic_rs::Error::Unsupported(_) => ImageError::UnsupportedFormat { format: CODEC.unusual },
        error => ImageError::Corrupt(error.to_string()),
    }
}

/// Width and height of the pictures of a sequence parameter set, with their padding, in pixels.
fn coded_size(unit: &[u8]) -> Option<(u64, u64)> {
    let mut bits = Bits::of_unit(unit);
    bits.read(16 + 4)?;
    let sub_layers = bits.read(3)?;
    // Profile, tier and level: 96 bits for the whole, then for each sub-layer what two flags say that there is.
    bits.read(1 + 48)?;
    bits.read(48)?;
    let present: Vec<(u64, u64)> =
        (0..sub_layers).map(|_| Some((bits.read(1)?, bits.read(1)?))).collect::<Option<_>>()?;
    if sub_layers > 0 {
        bits.read(2 * (8 - sub_layers))?;
    }
    for (profile, level) in present {
        bits.read(44 * profile)?;
        bits.read(44 * profile)?;
        bits.read(8 * level)?;
    }
    bits.exp_golomb()?;
    if bits.exp_golomb()? == 3 {
        bits.read(1)?;
    }
    Some((bits.exp_golomb()?, bits.exp_golomb()?))
}

/// The bits of a NAL unit, the highest first.
struct Bits {
    bytes: Vec<u8>,
    at: usize,
}

impl Bits {
    /// Drops each 3 that keeps two zeros from looking like the start of a unit.
    fn of_unit(unit: &[u8]) -> Bits {
        let (mut bytes, mut zeros) = (Vec::new(), 0);
        for byte in unit {
            let dropped = zeros >= 2 && *byte == 3;
            zeros = if *byte == 0 { zeros + 1 } else { 0 };
            if !dropped {
                bytes.push(*byte);
            }
        }
        Bits { bytes, at: 0 }
    }

    /// A number of up to 63 bits.
    fn read(&mut self, bits: u64) -> Option<u64> {
        let mut number = 0;
        for _ in 0..bits {
            let byte = self.bytes.get(self.at / 8)?;
            number = number << 1 | u64::from(byte >> (7 - self.at % 8) & 1);
            self.at += 1;
        }
        Some(number)
    }

    fn exp_golomb(&mut self) -> Option<u64> {
        let mut zeros = 0;
        while self.read(1)? == 0 {
            zeros += 1;
        }
        if zeros > 32 { None } else { Some((1 << zeros) - 1 + self.read(zeros)?) }
    }
}
