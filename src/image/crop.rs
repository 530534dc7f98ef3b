//! What of a picture becomes the model's input: the arithmetic of the training code, rounding included.
//!
//! Training code either cuts first and scales the cut, or scales the picture and cuts the result. Both are one fractional
//! rectangle of the picture ([`Window::cut`]); they differ in what the filter reads beside it ([`Window::reach`]).

use std::ops::Sub;

use super::{Preprocess, Resize};

/// A rectangle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rect<T> {
    pub(super) left: T,
    pub(super) top: T,
    pub(super) width: T,
    pub(super) height: T,
}

/// A rectangle of whole pixels.
pub(super) type Crop = Rect<u32>;

/// A rectangle that may begin and end within a sample.
pub(super) type Cut = Rect<f64>;

/// A part of a picture and what is read for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// What the scaled picture shows.
    pub(super) cut: Cut,
    /// Pixels that may be read; the filter takes what lies outside of them as not there.
    pub(super) reach: Crop,
}

impl Crop {
    /// All of a picture.
    pub(super) fn whole((width, height): (u32, u32)) -> Self {
        Crop { left: 0, top: 0, width, height }
    }
}

impl Cut {
    /// The whole samples that it touches, of a picture of this size.
    pub(super) fn whole(&self, (width, height): (u32, u32)) -> Crop {
        let span = |from: f64, length: f64, most: u32| {
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to the picture")]
            let (first, last) = (from.floor().max(0.0) as u32, (from + length).ceil().clamp(0.0, most.into()) as u32);
            (first.min(most), last.saturating_sub(first))
        };
        let (left, width) = span(self.left, self.width, width);
        let (top, height) = span(self.top, self.height, height);
        Crop { left, top, width, height }
    }
}

impl From<Crop> for Cut {
    fn from(crop: Crop) -> Self {
        Cut { left: crop.left.into(), top: crop.top.into(), width: crop.width.into(), height: crop.height.into() }
    }
}

impl<T: Copy + Sub<Output = T>> Rect<T> {
    /// Distance from the right and from the bottom of a picture of this size.
    pub(super) fn far_corner(&self, (width, height): (T, T)) -> (T, T) {
        (width - self.left - self.width, height - self.top - self.height)
    }
}

impl Window {
    /// All of a picture.
    pub(super) fn whole(size: (u32, u32)) -> Self {
        Crop::whole(size).into()
    }

    /// The part of an upright picture of `size` pixels that the model looks at.
    pub(super) fn of(size: (u32, u32), preprocess: &Preprocess) -> Self {
        match preprocess.resize {
            Resize::CropFraction(fraction) => central_crop(size, fraction).into(),
            Resize::ShortSide(pixels) => short_side(size, pixels, preprocess),
            Resize::Squash => Self::whole(size),
        }
    }
}

/// Cut first: nothing beside the cut is read.
impl From<Crop> for Window {
    fn from(crop: Crop) -> Self {
        Window { cut: crop.into(), reach: crop }
    }
}

/// The central square that keeps `fraction` of the short side, rounded as TensorFlow's EfficientNet code rounds it
/// (`preprocessing.py`, `_decode_and_center_crop`): the side down, the offsets up.
fn central_crop((width, height): (u32, u32), fraction: f64) -> Crop {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within 0 and the short side")]
    let side = ((fraction * f64::from(width.min(height))) as u32).max(1);
    Crop { left: (width - side).div_ceil(2), top: (height - side).div_ceil(2), width: side, height: side }
}

/// `Resize(pixels)`, then `CenterCrop` of the input's size, as torchvision rounds them (`transforms/functional.py`): the
/// long side down, the offsets to the nearest, halves to the even one. timm's `crop_pct` comes to the same.
fn short_side((width, height): (u32, u32), pixels: u32, preprocess: &Preprocess) -> Window {
    let long = |side: u32, short: u32| (f64::from(pixels) * f64::from(side) / f64::from(short)).trunc();
    let (scaled_width, scaled_height) = if width <= height {
        (f64::from(pixels), long(height, width))
    } else {
        (long(width, height), f64::from(pixels))
    };
    let support = preprocess.filter.support();
    // Along one side: where the cut begins, its length, and where what is read for it begins and ends.
    let along = |side: u32, scaled: f64, wanted: u32| {
        let (side, wanted) = (f64::from(side), f64::from(wanted));
        let scaled = scaled.max(wanted);
        let scale = side / scaled;
        let (from, length) = (((scaled - wanted) / 2.0).round_ties_even() * scale, wanted * scale);
        // Chroma of half the resolution has a wider filter where the luma is hardly reduced.
        let margin = 1.5 * support * scale.max(1.0) + 2.0;
        let (first, last) = ((from - margin).max(0.0), (from + length + margin).min(side));
        (from, length.min(side - from), first, last - first)
    };
    let (left, cut_width, reach_left, reach_width) = along(width, scaled_width, preprocess.width);
    let (top, cut_height, reach_top, reach_height) = along(height, scaled_height, preprocess.height);
    let reach = Cut { left: reach_left, top: reach_top, width: reach_width, height: reach_height };
    Window { cut: Cut { left, top, width: cut_width, height: cut_height }, reach: reach.whole((width, height)) }
}

#[cfg(test)]
mod tests {
    use super::super::{Filter, Preprocess, Resize};
    use super::{Crop, Cut, Window, central_crop};

    #[test]
    fn crop_rounds_as_tensorflow() {
        // int(0.875 × 300) = 262; (451 − 262 + 1) // 2 = 95; (300 − 262 + 1) // 2 = 19
        assert_eq!(central_crop((451, 300), 0.875), Crop { left: 95, top: 19, width: 262, height: 262 });
        assert_eq!(central_crop((1, 1), 0.875), Crop { left: 0, top: 0, width: 1, height: 1 });
    }

    #[test]
    fn short_side_rounds_as_torchvision() {
        let torchvision =
            |short| Preprocess { width: 224, height: 224, resize: Resize::ShortSide(short), filter: Filter::Bilinear };
        // Scaled to int(256 × 451 / 300) = 384 × 256; round(80.0) = 80 and round(16.0) = 16 are cut off.
        let Window { cut, reach } = Window::of((451, 300), &torchvision(256));
        let (across, down) = (451.0 / 384.0, 300.0 / 256.0);
        let expected = Cut { left: 80.0 * across, top: 16.0 * down, width: 224.0 * across, height: 224.0 * down };
        assert_eq!(cut, expected);
        assert!(reach.left < 93 && reach.left > 85 && reach.top < 18 && reach.left + reach.width < 451, "{reach:?}");
        // 229 × 229: round(2.5) = 2, not 3. 231 × 231: round(3.5) = 4.
        assert_eq!(Window::of((229, 229), &torchvision(229)).cut, Cut { left: 2.0, top: 2.0, ..TINY });
        assert_eq!(Window::of((231, 231), &torchvision(231)).cut, Cut { left: 4.0, top: 4.0, ..TINY });
    }

    const TINY: Cut = Cut { left: 0.0, top: 0.0, width: 224.0, height: 224.0 };

    #[test]
    fn any_picture_has_a_window_within_it() {
        for (width, height) in [(1, 1), (1, 65_535), (65_535, 1), (3, 224), (224, 224), (1001, 333)] {
            for resize in [Resize::CropFraction(0.001), Resize::ShortSide(1), Resize::ShortSide(300), Resize::Squash] {
                let preprocess = Preprocess { width: 224, height: 96, resize, filter: Filter::Lanczos };
                let Window { cut, reach } = Window::of((width, height), &preprocess);
                assert!(cut.width > 0.0 && cut.height > 0.0 && cut.left >= 0.0 && cut.top >= 0.0, "{cut:?}");
                assert!(reach.left + reach.width <= width && reach.top + reach.height <= height, "{reach:?}");
                let reach = Cut::from(reach);
                assert!(cut.left >= reach.left && cut.left + cut.width <= reach.left + reach.width + 1e-6, "{cut:?}");
            }
        }
    }
}
