//! Planes of luma and colour differences to 8-bit RGB.
//!
//! ITU-T H.273 for the matrices and ranges. Colour planes of a lower resolution are enlarged as the reference library of
//! the format does.

use std::iter;

use image::RgbImage;

/// Resolution of the two colour planes against the luma plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Chroma {
    /// None: the picture is grey.
    Monochrome,
    /// Half the width and half the height.
    Half,
    /// Half the width.
    HalfWidth,
    /// The same.
    Full,
}

impl Chroma {
    /// Twice the samples of a pixel, on average.
    pub(super) fn half_samples(self) -> u64 {
        match self {
            Chroma::Monochrome => 2,
            Chroma::Half => 3,
            Chroma::HalfWidth => 4,
            Chroma::Full => 6,
        }
    }

    /// Size of a colour plane for a luma plane.
    pub(in super::super) fn plane_size(self, width: usize, height: usize) -> (usize, usize) {
        match self {
            Chroma::Monochrome => (0, 0),
            Chroma::Half => (width.div_ceil(2), height.div_ceil(2)),
            Chroma::HalfWidth => (width.div_ceil(2), height),
            Chroma::Full => (width, height),
        }
    }
}

/// How colour planes of a lower resolution are enlarged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Enlargement {
    /// Linearly, their samples taken to lie between the luma samples that they stand for: libavif.
    Linear,
    /// Each sample for all the luma samples that it stands for: libheif.
    Nearest,
}

/// What the samples mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Colour {
    /// `MatrixCoefficients` of H.273.
    pub(in super::super) matrix: u8,
    /// Samples use all of their bits; else 8-bit luma is 16 to 235.
    pub(in super::super) full_range: bool,
}

/// A decoded picture as its codec has it.
pub(in super::super) struct Picture {
    chroma: Chroma,
    bits: u8,
    colour: Colour,
    enlargement: Enlargement,
    /// Luma and, unless it is monochrome, the blue and the red difference.
    planes: Vec<Plane>,
}

/// A plane of samples, row by row without gaps.
pub(in super::super) struct Plane {
    samples: Samples,
    width: usize,
    height: usize,
}

/// Samples of up to 8 bits, or of more.
pub(in super::super) enum Samples {
    Bytes(Vec<u8>),
    Words(Vec<u16>),
}

impl Plane {
    /// Reads a row; one past the last is the last.
    fn read(&self, row: usize, to: &mut [u16]) {
        let start = row.min(self.height.saturating_sub(1)) * self.width;
        match &self.samples {
            Samples::Bytes(samples) => {
                let from = samples.get(start..).unwrap_or_default();
                to.iter_mut().zip(from).for_each(|(to, from)| *to = u16::from(*from));
            }
            Samples::Words(samples) => {
                let from = samples.get(start..).unwrap_or_default();
                to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
            }
        }
    }
}

impl Picture {
    /// A picture of this size, unless its planes are of others.
    pub(in super::super) fn new(
        size: (usize, usize),
        chroma: Chroma,
        bits: u8,
        (colour, enlargement): (Colour, Enlargement),
        planes: Vec<Samples>,
    ) -> Option<Picture> {
        let colour_size = chroma.plane_size(size.0, size.1);
        let sizes = [size, colour_size, colour_size];
        let expected = if chroma == Chroma::Monochrome { 1 } else { 3 };
        if planes.len() != expected || !(8..=16).contains(&bits) || size.0 == 0 || size.1 == 0 {
            return None;
        }
        let plane = |(samples, (width, height)): (Samples, (usize, usize))| {
            let length = match &samples {
                Samples::Bytes(samples) => samples.len(),
                Samples::Words(samples) => samples.len(),
            };
            (length == width.checked_mul(height)?).then_some(Plane { samples, width, height })
        };
        let planes = planes.into_iter().zip(sizes).map(plane).collect::<Option<_>>()?;
        Some(Picture { chroma, bits, colour, enlargement, planes })
    }

    pub(super) fn width(&self) -> usize {
        self.planes.first().map_or(0, |luma| luma.width)
    }

    pub(super) fn height(&self) -> usize {
        self.planes.first().map_or(0, |luma| luma.height)
    }

    /// An empty picture of this size, of the same kind.
    pub(super) fn canvas(&self, width: usize, height: usize) -> Picture {
        let colour_size = self.chroma.plane_size(width, height);
        let sizes = [(width, height), colour_size, colour_size];
        let empty = |(_, (width, height)): (&Plane, (usize, usize))| Plane {
            samples: Samples::Words(vec![0; width * height]),
            width,
            height,
        };
        Picture { planes: self.planes.iter().zip(sizes).map(empty).collect(), ..*self }
    }

    /// Copies a tile into a canvas; what reaches over its edges is cut off. False where it is of another kind.
    pub(super) fn place(&mut self, tile: &Picture, left: usize, top: usize) -> bool {
        if (tile.chroma, tile.bits, tile.colour) != (self.chroma, self.bits, self.colour) {
            return false;
        }
        for (to, from) in self.planes.iter_mut().zip(&tile.planes) {
            let Samples::Words(samples) = &mut to.samples else { return false };
            // A tile in the middle has an even size where colour is halved, or the planes would not meet.
            let (halved_width, halved_height) =
                (from.width < tile.planes[0].width, from.height < tile.planes[0].height);
            let left = if halved_width { left / 2 } else { left };
            let top = if halved_height { top / 2 } else { top };
            let width = from.width.min(to.width.saturating_sub(left));
            for row in 0..from.height.min(to.height.saturating_sub(top)) {
                let start = (top + row) * to.width + left;
                if let Some(to) = samples.get_mut(start..start + width) {
                    from.read(row, to);
                }
            }
        }
        true
    }
}

/// Fraction bits of the factors below; colour samples have 4 more, from their enlargement.
const FRACTION_BITS: u32 = 16;

/// Factors from samples to 8-bit red, green and blue.
enum Matrix {
    /// From blue and red difference; green gets a share of both.
    Differences { to_red: i32, to_green: [i32; 2], to_blue: i32 },
    /// Green difference and orange difference.
    GreenOrange(i32),
    /// The planes are green, blue and red.
    Identity,
}

/// The range and the matrix, as numbers.
struct Factors {
    luma: i32,
    luma_zero: i32,
    /// For samples of 16 times their value.
    colour_zero: i32,
    matrix: Matrix,
}

impl Factors {
    fn new(colour: Colour, bits: u8) -> Option<Factors> {
        // No codec has more bits, and the fixed-point numbers have no room for them.
        if bits > 12 {
            return None;
        }
        let fixed = |factor: f64| {
            #[expect(clippy::cast_possible_truncation, reason = "factors are below 3")]
            let fixed = (factor * f64::from(1 << FRACTION_BITS)).round() as i32;
            fixed
        };
        let most = f64::from((1_u32 << bits) - 1);
        let step = f64::from(1_u32 << (bits - 8));
        let (luma_range, colour_range) = if colour.full_range { (most, most) } else { (219.0 * step, 224.0 * step) };
        // Shares of red and blue in luma: H.273, table 4.
        let differences = |red: f64, blue: f64| {
            let green = 1.0 - red - blue;
            let scale = 255.0 / colour_range * 2.0;
            Matrix::Differences {
                to_red: fixed(scale * (1.0 - red)),
                to_green: [fixed(scale * (1.0 - blue) * blue / green), fixed(scale * (1.0 - red) * red / green)],
                to_blue: fixed(scale * (1.0 - blue)),
            }
        };
        let matrix = match colour.matrix {
            0 => Matrix::Identity,
            1 => differences(0.2126, 0.0722),
            4 => differences(0.3, 0.11),
            // What is not said is BT.601, as libavif has it.
            2 | 5 | 6 => differences(0.299, 0.114),
            7 => differences(0.212, 0.087),
            8 => Matrix::GreenOrange(fixed(255.0 / colour_range)),
            9 => differences(0.2627, 0.0593),
            _ => return None,
        };
        let luma_zero = if colour.full_range { 0 } else { 16 << (bits - 8) };
        Some(Factors { luma: fixed(255.0 / luma_range), luma_zero, colour_zero: 16 << (bits - 1), matrix })
    }

    fn luma(&self, sample: u16) -> i32 {
        (i32::from(sample) - self.luma_zero) * self.luma
    }

    /// Red, green and blue of a pixel, from its luma and from the differences times 16.
    fn rgb(&self, luma: u16, first: i32, second: i32) -> [u8; 3] {
        let luma = self.luma(luma);
        let coloured = |difference: i32| level(luma + (difference >> 4));
        let plain = |sample: i32| level(((sample >> 4) - self.luma_zero) * self.luma);
        let (blue, red) = (first, second);
        let (first, second) = (first - self.colour_zero, second - self.colour_zero);
        match self.matrix {
            Matrix::Differences { to_red, to_green, to_blue } => [
                coloured(second * to_red),
                coloured(-(first * to_green[0] + second * to_green[1])),
                coloured(first * to_blue),
            ],
            Matrix::GreenOrange(factor) => {
                let (green, orange) = (first * factor, second * factor);
                [coloured(orange - green), coloured(green), coloured(-green - orange)]
            }
            Matrix::Identity => [plain(red), level(luma), plain(blue)],
        }
    }
}

fn level(fixed: i32) -> u8 {
    let rounded = (fixed + (1 << (FRACTION_BITS - 1))) >> FRACTION_BITS;
    u8::try_from(rounded.clamp(0, 255)).unwrap_or(u8::MAX)
}

/// Converts a picture, or gives `None` for a matrix that is not known here. Where the file states the meaning of the
/// samples, that goes before what the codec says.
pub(super) fn to_rgb(picture: &Picture, stated: Option<Colour>) -> Option<RgbImage> {
    let factors = Factors::new(stated.unwrap_or(picture.colour), picture.bits)?;
    let (width, height) = (picture.width(), picture.height());
    let mut rgb = RgbImage::new(u32::try_from(width).unwrap_or(0), u32::try_from(height).unwrap_or(0));
    let rows = rgb.as_flat_samples_mut().samples.chunks_exact_mut(width * 3).enumerate();
    let mut luma = vec![0; width];
    if let [plane] = picture.planes.as_slice() {
        for (row, to) in rows {
            plane.read(row, &mut luma);
            for (to, luma) in to.as_chunks_mut::<3>().0.iter_mut().zip(&luma) {
                *to = [level(factors.luma(*luma)); 3];
            }
        }
        return Some(rgb);
    }
    let [plane, colour @ ..] = picture.planes.as_slice() else { return Some(rgb) };
    let mut enlarged: Vec<Enlarged> = colour.iter().map(|plane| Enlarged::new(plane, picture)).collect();
    for (row, to) in rows {
        plane.read(row, &mut luma);
        enlarged.iter_mut().for_each(|plane| plane.read(row));
        let [first, second] = enlarged.as_slice() else { continue };
        let differences = iter::zip(&first.row, &second.row);
        for (to, (luma, (first, second))) in to.as_chunks_mut::<3>().0.iter_mut().zip(luma.iter().zip(differences)) {
            *to = factors.rgb(*luma, *first, *second);
        }
    }
    Some(rgb)
}

/// Rows of a colour plane at the size of the luma plane, of 16 times their value.
struct Enlarged<'a> {
    plane: &'a Plane,
    chroma: Chroma,
    enlargement: Enlargement,
    near: Vec<u16>,
    far: Vec<u16>,
    row: Vec<i32>,
}

impl<'a> Enlarged<'a> {
    fn new(plane: &'a Plane, picture: &Picture) -> Enlarged<'a> {
        let (near, far, row) = (vec![0; plane.width], vec![0; plane.width], vec![0; picture.width()]);
        Enlarged { plane, chroma: picture.chroma, enlargement: picture.enlargement, near, far, row }
    }

    fn read(&mut self, row: usize) {
        let halved_height = self.chroma == Chroma::Half;
        let near = if halved_height { row / 2 } else { row };
        // Of the two rows that a luma row lies between, the nearer one counts three times.
        let far = match self.enlargement {
            Enlargement::Linear if halved_height => {
                if row.is_multiple_of(2) {
                    near.saturating_sub(1)
                } else {
                    near + 1
                }
            }
            _ => near,
        };
        self.plane.read(near, &mut self.near);
        self.plane.read(far, &mut self.far);
        let blended = |at: usize| 3 * i32::from(self.near[at]) + i32::from(self.far[at]);
        if self.chroma == Chroma::Full {
            self.row.iter_mut().enumerate().for_each(|(at, to)| *to = 4 * blended(at));
            return;
        }
        if self.enlargement == Enlargement::Nearest {
            self.row.iter_mut().enumerate().for_each(|(at, to)| *to = 4 * blended(at / 2));
            return;
        }
        let last = self.near.len() - 1;
        for (at, to) in self.row.chunks_mut(2).enumerate() {
            let here = 3 * blended(at);
            let sides = [here + blended(at.saturating_sub(1)), here + blended((at + 1).min(last))];
            to.iter_mut().zip(sides).for_each(|(to, side)| *to = side);
        }
        // The last of an odd number of columns has its own sample, and libavif blends it with none.
        if self.row.len() % 2 == 1
            && let Some(to) = self.row.last_mut()
        {
            *to = 4 * blended(last);
        }
    }
}

/// Composites a picture on white by the luma of its alpha plane.
pub(super) fn put_on_white(rgb: &mut RgbImage, alpha: &Picture, premultiplied: bool) {
    let colour = Colour { matrix: 2, ..alpha.colour };
    let (Some(plane), Some(factors)) = (alpha.planes.first(), Factors::new(colour, alpha.bits)) else { return };
    let width = alpha.width();
    let mut row = vec![0; width];
    for (at, to) in rgb.as_flat_samples_mut().samples.chunks_exact_mut(width * 3).enumerate() {
        plane.read(at, &mut row);
        for (to, alpha) in to.as_chunks_mut::<3>().0.iter_mut().zip(&row) {
            let alpha = level(factors.luma(*alpha));
            *to = to.map(|colour| over_white(colour, alpha, premultiplied));
        }
    }
}

fn over_white(colour: u8, alpha: u8, premultiplied: bool) -> u8 {
    let (colour, alpha) = (u32::from(colour), u32::from(alpha));
    let share = if premultiplied { colour } else { (colour * alpha + 127) / 255 };
    u8::try_from(share + 255 - alpha).unwrap_or(u8::MAX)
}
