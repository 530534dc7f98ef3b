//! Decoded channels to RGB: at full scale as libjpeg enlarges chroma, or each plane straight to the model's input.

use std::ops::Range;

use image::RgbImage;

use super::super::crop::{Crop, Cut, Window};
use super::super::resize::{self, Scaling};
use super::super::{ImageError, colour};
use super::markers::Colour;

/// A channel's samples around the crop.
pub(super) struct Plane {
    pub(super) samples: Vec<u8>,
    pub(super) width: usize,
    pub(super) height: usize,
    /// Where the first sample lies in the whole channel, in samples at this scale.
    pub(super) left: usize,
    pub(super) top: usize,
    /// Samples at this scale in a pixel of the picture, across and down.
    pub(super) scale: (f64, f64),
    /// The channel's share of the grid that the finest one has, as own and largest sampling factor, across and down.
    pub(super) sampling: ((usize, usize), (usize, usize)),
    /// Samples of the whole channel at this scale, without what fills up the last block.
    pub(super) all: (usize, usize),
}

/// What of a JPEG file was decoded.
pub(in super::super) struct Picture {
    pub(super) planes: Vec<Plane>,
    pub(super) colour: Colour,
    pub(super) icc: Option<Vec<u8>>,
    /// In pixels of the whole picture.
    pub(super) window: Window,
    /// The scale of all planes.
    pub(super) eighths: u32,
}

impl Picture {
    /// What was decoded, at its scale, in sRGB. Where that cuts through samples they are in it whole.
    pub(in super::super) fn rgb(&self) -> RgbImage {
        let (mut image, icc) = (self.converted(), self.icc.as_deref());
        if let Some(icc) = icc.filter(|_| !self.is_ink()) {
            colour::rgb(&mut image, icc);
        }
        image
    }

    /// The cut at the model's size, in sRGB.
    pub(in super::super) fn scaled(&self, scaling: &Scaling) -> Result<RgbImage, ImageError> {
        // At full scale chroma is enlarged and colours are converted before the resize, as by every other decoder. Ink
        // always: the light that it leaves is a product, and no product of averages.
        let before = self.is_ink() || (self.eighths == 8 && self.colour != Colour::Grey);
        let mut small = if before {
            resize::rgb(&self.converted(), &self.within_grid(), scaling)?
        } else {
            self.planes_scaled(scaling)?
        };
        if let Some(icc) = self.icc.as_deref().filter(|_| !self.is_ink()) {
            colour::rgb(&mut small, icc);
        }
        Ok(small)
    }

    fn is_ink(&self) -> bool {
        matches!(self.colour, Colour::Cmyk | Colour::Ycck)
    }

    /// The samples that the window reaches, at the decoded scale.
    fn grid(&self) -> Crop {
        let Crop { left, top, width, height } = self.window.reach;
        let from = |at: u32| at * self.eighths / 8;
        let length = |at: u32, length: u32| ((at + length) * self.eighths).div_ceil(8) - from(at);
        Crop { left: from(left), top: from(top), width: length(left, width), height: length(top, height) }
    }

    /// The window within [`Picture::grid`].
    fn within_grid(&self) -> Window {
        let (cut, grid) = (self.window.cut, self.grid());
        let scale = f64::from(self.eighths) / 8.0;
        let cut = Cut {
            left: cut.left * scale - f64::from(grid.left),
            top: cut.top * scale - f64::from(grid.top),
            width: cut.width * scale,
            height: cut.height * scale,
        };
        Window { cut, reach: Crop::whole((grid.width, grid.height)) }
    }

    fn converted(&self) -> RgbImage {
        let grid = self.grid();
        let icc = self.icc.as_deref().filter(|_| self.is_ink());
        let mut image = RgbImage::new(grid.width, grid.height);
        let mut lines: [Line; 4] = Default::default();
        for (row, to) in image.chunks_exact_mut(grid.width as usize * 3).enumerate() {
            for (plane, line) in self.planes.iter().zip(&mut lines) {
                plane.line(grid, row, line);
            }
            let lines: Vec<&[u8]> = lines.iter().take(self.planes.len()).map(|line| &line.samples[..]).collect();
            to_rgb(&lines, self.colour, icc, to);
        }
        image
    }

    fn planes_scaled(&self, scaling: &Scaling) -> Result<RgbImage, ImageError> {
        let (width, height) = scaling.size;
        let mut small = RgbImage::new(width, height);
        let planes = self.planes.iter().map(|plane| {
            resize::plane(&plane.samples, (plane.width, plane.height), &plane.within(&self.window), scaling)
        });
        let planes = planes.collect::<Result<Vec<Vec<u8>>, ImageError>>()?;
        let planes: Vec<&[u8]> = planes.iter().map(Vec::as_slice).collect();
        to_rgb(&planes, self.colour, None, &mut small);
        Ok(small)
    }
}

impl Plane {
    /// A window of the picture in this plane's samples.
    fn within(&self, window: &Window) -> Window {
        let scaled = |cut: Cut| Cut {
            left: cut.left * self.scale.0 - self.left as f64,
            top: cut.top * self.scale.1 - self.top as f64,
            width: cut.width * self.scale.0,
            height: cut.height * self.scale.1,
        };
        let size = |side: usize| u32::try_from(side).unwrap_or(u32::MAX);
        let reach = scaled(window.reach.into()).whole((size(self.width), size(self.height)));
        Window { cut: scaled(window.cut), reach }
    }

    /// A row of the grid, enlarged as libjpeg does by default ("fancy upsampling"): twice as many samples
    /// by a triangle filter, whose halves are rounded down and up in turn; other factors by repeating.
    fn line(&self, grid: Crop, row: usize, line: &mut Line) {
        let (from, y) = (grid.left as usize, grid.top as usize + row);
        let to = from + grid.width as usize;
        let ((h, most_h), (v, most_v)) = self.sampling;
        line.samples.clear();
        let twice = |own: usize, most: usize| own * 2 == most;
        if twice(h, most_h) && 2 < self.all.0 && (v == most_v || twice(v, most_v)) {
            // The samples under the crop and one more on each side, at the picture's edge the last one again.
            let last = self.all.0 - 1;
            let under = from / 2..to.div_ceil(2);
            let around = under.start.saturating_sub(1)..(under.end + 1).min(last + 1);
            line.sums.clear();
            line.sums.extend((under.start == 0).then_some(0));
            if v == most_v {
                line.sums.extend(self.samples(y, around).iter().map(|sample| u16::from(*sample)));
            } else {
                let (near, far) = self.neighbours(y);
                let pairs = self.samples(near, around.clone()).iter().zip(self.samples(far, around));
                line.sums.extend(pairs.map(|(near, far)| 3 * u16::from(*near) + u16::from(*far)));
            }
            if under.start == 0 {
                line.sums[0] = line.sums[1];
            }
            if last < under.end {
                line.sums.extend_from_within(line.sums.len() - 1..);
            }
            let (shift, even, odd) = if v == most_v { (2, 1, 2) } else { (4, 8, 7) };
            line.samples.resize(2 * under.len(), 0);
            for ([first, second], [left, middle, right]) in
                line.samples.as_chunks_mut().0.iter_mut().zip(line.sums.array_windows())
            {
                *first = byte((3 * middle + left + even) >> shift);
                *second = byte((3 * middle + right + odd) >> shift);
            }
            line.samples.drain(..from % 2);
            line.samples.truncate(to - from);
        } else if h == most_h && twice(v, most_v) {
            let (near, far) = self.neighbours(y);
            let bias = if y.is_multiple_of(2) { 1 } else { 2 };
            let pairs = self.samples(near, from..to).iter().zip(self.samples(far, from..to));
            line.samples.extend(pairs.map(|(near, far)| byte((3 * u16::from(*near) + u16::from(*far) + bias) >> 2)));
        } else if h == most_h {
            line.samples.extend_from_slice(self.samples(y * v / most_v, from..to));
        } else {
            let under = from * h / most_h..(to - 1) * h / most_h + 1;
            let samples = self.samples(y * v / most_v, under.clone());
            line.samples.extend((from..to).map(|x| samples[x * h / most_h - under.start]));
        }
    }

    /// Of the channel's rows, the one that a row of a grid twice as high lies in, and the next nearest one.
    fn neighbours(&self, y: usize) -> (usize, usize) {
        let near = y / 2;
        let far = if y.is_multiple_of(2) { near.saturating_sub(1) } else { (near + 1).min(self.all.1 - 1) };
        (near, far)
    }

    fn samples(&self, row: usize, columns: Range<usize>) -> &[u8] {
        let start = (row - self.top) * self.width;
        &self.samples[start + columns.start - self.left..start + columns.end - self.left]
    }
}

/// Buffers for a row.
#[derive(Default)]
struct Line {
    samples: Vec<u8>,
    sums: Vec<u16>,
}

fn byte(value: u16) -> u8 {
    value.to_le_bytes()[0]
}

/// Converts samples that lie at the same places. `icc` is the profile of the inks of a CMYK picture.
fn to_rgb(planes: &[&[u8]], colour: Colour, icc: Option<&[u8]>, rgb: &mut [u8]) {
    let pixels = rgb.as_chunks_mut::<3>().0.iter_mut();
    match (colour, planes) {
        (Colour::Grey, [grey, ..]) => pixels.zip(*grey).for_each(|(pixel, value)| *pixel = [*value; 3]),
        (Colour::Rgb, [r, g, b, ..]) => {
            pixels.zip(r.iter().zip(*g).zip(*b)).for_each(|(pixel, ((r, g), b))| *pixel = [*r, *g, *b]);
        }
        (Colour::YCbCr, [y, cb, cr, ..]) => {
            pixels.zip(y.iter().zip(*cb).zip(*cr)).for_each(|(pixel, ((y, cb), cr))| *pixel = from_ycc(*y, *cb, *cr));
        }
        (Colour::Cmyk | Colour::Ycck, [c, m, y, k]) => {
            let inks: Vec<u8> = (c.iter().zip(*m).zip(*y).zip(*k))
                .flat_map(|(((c, m), y), k)| {
                    // The colours behind YCCK's luma and chroma are those of the paper where ink is missing.
                    let [c, m, y] =
                        if colour == Colour::Ycck { from_ycc(*c, *m, *y) } else { [255 - c, 255 - m, 255 - y] };
                    [c, m, y, 255 - k]
                })
                .collect();
            rgb.copy_from_slice(&colour::cmyk(&inks, icc));
        }
        _ => {}
    }
}

/// JFIF 1.02, "Conversion to and from RGB", in 16 fractional bits as libjpeg rounds it.
#[inline(always)]
fn from_ycc(y: u8, cb: u8, cr: u8) -> [u8; 3] {
    let (y, cb, cr) = (i32::from(y), i32::from(cb) - 128, i32::from(cr) - 128);
    let half = 1 << 15;
    let red = y + ((91_881 * cr + half) >> 16);
    let green = y + ((-22_554 * cb - 46_802 * cr + half) >> 16);
    let blue = y + ((116_130 * cb + half) >> 16);
    [red, green, blue].map(|value| value.clamp(0, 255).to_le_bytes()[0])
}
