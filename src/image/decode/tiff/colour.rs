//! What a TIFF's samples mean.

use super::super::super::ImageError;
use super::super::super::colour::cmyk;
use super::super::super::structure::{Directory, Tag};
use super::super::over_white;

/// Samples of one depth and kind.
pub(super) struct Samples {
    /// Samples a pixel, extra ones included.
    pub(super) count: usize,
    bits: u64,
    float: bool,
}

/// From samples to RGB on white.
pub(super) struct Colours {
    kind: Kind,
    /// What the first extra sample is.
    alpha: Alpha,
    icc: Option<Vec<u8>>,
    /// One row's samples as levels, pixel by pixel.
    levels: Vec<u8>,
}

enum Kind {
    WhiteIsZero,
    Grey,
    Rgb,
    Palette(Vec<[u8; 3]>),
    Cmyk,
    YCbCr,
}

#[derive(PartialEq, Eq)]
enum Alpha {
    None,
    /// The colours are multiplied with it already.
    Associated,
    Unassociated,
}

const UNSIGNED: u64 = 1;
const FLOAT: u64 = 3;
const UNDEFINED: u64 = 4;

impl Samples {
    pub(super) fn find(page: &Directory<'_>) -> Result<Self, ImageError> {
        let mut depths = page.get(Tag::BitsPerSample).into_iter().flat_map(|values| values.iter());
        let bits = depths.next().unwrap_or(1);
        if depths.any(|other| other != bits) {
            return unsupported("TIFF with samples of different depths");
        }
        let formats = || page.get(Tag::SampleFormat).into_iter().flat_map(|values| values.iter());
        let float = formats().next() == Some(FLOAT);
        if formats().any(|format| if float { format != FLOAT } else { !matches!(format, UNSIGNED | UNDEFINED) }) {
            return unsupported("TIFF with signed or complex samples");
        }
        match (float, bits) {
            (false, 1 | 2 | 4 | 8 | 16 | 32) | (true, 32 | 64) => {}
            (true, _) => return unsupported("TIFF with floating-point samples of an unusual depth"),
            _ => return unsupported("TIFF with samples of an unusual depth"),
        }
        if page.number(Tag::FillOrder) == Some(2) {
            return unsupported("TIFF with its bits in reverse order");
        }
        let count = page.number(Tag::SamplesPerPixel).unwrap_or(1);
        // The samples of any camera or scanner, with masks; each costs memory.
        match usize::try_from(count) {
            Ok(count @ 1..=16) => Ok(Samples { count, bits, float }),
            _ => unsupported("TIFF with more than 16 samples a pixel"),
        }
    }

    /// Bytes of a row of so many pixels. A row begins at a whole byte.
    pub(super) fn row_bytes(&self, width: u32, planes: usize) -> usize {
        let samples = if planes > 1 { 1 } else { self.count as u64 };
        usize::try_from((u64::from(width) * samples * self.bits).div_ceil(8)).unwrap_or(usize::MAX)
    }

    /// A row's samples in 8 bits: palette indices as they are, the rest as levels.
    fn levels<'a>(&'a self, row: &'a [u8], indices: bool) -> Box<dyn Iterator<Item = u8> + 'a> {
        match (self.bits, self.float) {
            (8, _) => Box::new(row.iter().copied()),
            // The upper byte, as Pillow takes it.
            (16, _) => {
                Box::new(row.as_chunks().0.iter().map(|bytes| high_byte(u16::from_ne_bytes(*bytes).to_be_bytes())))
            }
            (32, false) => {
                Box::new(row.as_chunks().0.iter().map(|bytes| high_byte(u32::from_ne_bytes(*bytes).to_be_bytes())))
            }
            // Black is 0 and white is 1.
            (32, true) => Box::new(row.as_chunks().0.iter().map(|bytes| level(f64::from(f32::from_ne_bytes(*bytes))))),
            (64, _) => Box::new(row.as_chunks().0.iter().map(|bytes| level(f64::from_ne_bytes(*bytes)))),
            (bits, _) => {
                let bits = bits as u32;
                let most = u8::MAX >> (8 - bits);
                let scale = if indices { 1 } else { u8::MAX / most };
                let shifts = (0..8 / bits).map(move |sample| 8 - bits * (sample + 1));
                Box::new(
                    row.iter().flat_map(move |byte| shifts.clone().map(move |shift| (byte >> shift & most) * scale)),
                )
            }
        }
    }
}

impl Colours {
    pub(super) fn find(page: &Directory<'_>, samples: &Samples, icc: Option<Vec<u8>>) -> Result<Self, ImageError> {
        let photometric = page.number(Tag::Photometric);
        let kind = match photometric {
            Some(0) => Kind::WhiteIsZero,
            Some(1) => Kind::Grey,
            Some(2) => Kind::Rgb,
            Some(3) => Kind::Palette(palette(page, samples)?),
            Some(5) => Kind::Cmyk,
            Some(6) if samples.count == 1 => Kind::Grey,
            Some(6) => Kind::YCbCr,
            Some(4) => return unsupported("TIFF with nothing but a transparency mask"),
            Some(8..=10) => return unsupported("TIFF in CIE L*a*b*"),
            Some(32803 | 34892) => return unsupported("camera raw"),
            Some(32844 | 32845) => return unsupported("TIFF in LogLuv"),
            _ => return unsupported("TIFF of an unknown kind of colour"),
        };
        let subsampling = page.get(Tag::YCbCrSubsampling).map_or(4, |values| values.iter().take(2).product());
        if matches!(kind, Kind::YCbCr) && subsampling != 1 && page.number(Tag::Compression) != Some(super::JPEG) {
            return unsupported("TIFF in subsampled YCbCr");
        }
        let colours = kind.samples();
        if samples.count < colours {
            return Err(ImageError::Corrupt(format!("{} samples a pixel, not {colours}", samples.count)));
        }
        let alpha = match page.number(Tag::ExtraSamples) {
            _ if samples.count == colours => Alpha::None,
            Some(1) => Alpha::Associated,
            Some(2) => Alpha::Unassociated,
            // Some writers of RGBA leave the tag out.
            None if samples.count == 4 && matches!(kind, Kind::Rgb) => Alpha::Unassociated,
            _ => Alpha::None,
        };
        Ok(Colours { kind, alpha, icc, levels: Vec::new() })
    }

    /// The profile that the pixels still need: that of CMYK has been used.
    pub(super) fn into_icc(self) -> Option<Vec<u8>> {
        self.icc.filter(|_| !matches!(self.kind, Kind::Cmyk))
    }

    /// Converts a row. `plane` gives the stored row of a plane, of which there is one or one a sample.
    pub(super) fn convert<'a>(
        &mut self,
        samples: &Samples,
        planes: usize,
        plane: impl Fn(usize) -> &'a [u8],
        to: &mut [u8],
    ) {
        let Colours { kind, alpha, icc, levels } = self;
        let indices = matches!(kind, Kind::Palette(_));
        let to = to.as_chunks_mut::<3>().0;
        levels.resize(to.len() * samples.count, 0);
        if planes == 1 {
            levels.iter_mut().zip(samples.levels(plane(0), indices)).for_each(|(to, level)| *to = level);
        } else {
            for index in 0..planes {
                let to = levels.iter_mut().skip(index).step_by(samples.count);
                to.zip(samples.levels(plane(index), indices)).for_each(|(to, level)| *to = level);
            }
        }
        let pixels = levels.chunks_exact(samples.count);
        if matches!(kind, Kind::Cmyk) {
            let inks: Vec<u8> = pixels.clone().flat_map(|pixel| &pixel[..4]).copied().collect();
            to.as_flattened_mut().copy_from_slice(&cmyk(&inks, icc.as_deref()));
        } else {
            to.iter_mut().zip(pixels.clone()).for_each(|(to, pixel)| *to = kind.rgb(pixel));
        }
        let first_extra = kind.samples();
        match alpha {
            Alpha::None => {}
            Alpha::Associated => {
                to.iter_mut()
                    .zip(pixels)
                    .for_each(|(to, pixel)| *to = to.map(|value| value.saturating_add(255 - pixel[first_extra])));
            }
            Alpha::Unassociated => {
                to.iter_mut()
                    .zip(pixels)
                    .for_each(|(to, pixel)| *to = to.map(|value| over_white(value, pixel[first_extra])));
            }
        }
    }
}

impl Kind {
    /// Samples of a colour.
    fn samples(&self) -> usize {
        match self {
            Kind::WhiteIsZero | Kind::Grey | Kind::Palette(_) => 1,
            Kind::Rgb | Kind::YCbCr => 3,
            Kind::Cmyk => 4,
        }
    }

    fn rgb(&self, pixel: &[u8]) -> [u8; 3] {
        match (self, pixel) {
            (Kind::WhiteIsZero, [grey, ..]) => [255 - grey; 3],
            (Kind::Palette(palette), [index, ..]) => palette.get(usize::from(*index)).copied().unwrap_or_default(),
            (Kind::YCbCr, [luma, blue, red, ..]) => from_ycbcr([*luma, *blue, *red]),
            (Kind::Rgb, [red, green, blue, ..]) => [*red, *green, *blue],
            (_, [grey, ..]) => [*grey; 3],
            (_, []) => [0; 3],
        }
    }
}

/// ITU-R BT.601 over the full range, as in JPEG.
fn from_ycbcr([luma, blue, red]: [u8; 3]) -> [u8; 3] {
    let (luma, blue, red) = (f32::from(luma), f32::from(blue) - 128.0, f32::from(red) - 128.0);
    [luma + 1.402 * red, luma - 0.344_136 * blue - 0.714_136 * red, luma + 1.772 * blue].map(|value| {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast from float saturates")]
        let level = value.round() as u8;
        level
    })
}

/// The palette's reds, then its greens, then its blues, in 16 bits each.
fn palette(page: &Directory<'_>, samples: &Samples) -> Result<Vec<[u8; 3]>, ImageError> {
    if samples.bits > 8 {
        return unsupported("TIFF with a palette of more than 256 colours");
    }
    let values = page.get(Tag::ColorMap).into_iter().flat_map(|values| values.iter());
    let values: Vec<u8> = values.take(3 * 256).map(|value| (value >> 8 & 0xFF) as u8).collect();
    let colours = values.len() / 3;
    Ok((0..colours).map(|index| [values[index], values[colours + index], values[2 * colours + index]]).collect())
}

fn high_byte<const N: usize>(big_endian: [u8; N]) -> u8 {
    big_endian[0]
}

fn level(value: f64) -> u8 {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast from float saturates")]
    let level = (value * 255.0).round() as u8;
    level
}

fn unsupported<T>(format: &'static str) -> Result<T, ImageError> {
    Err(ImageError::UnsupportedFormat { format })
}
