//! EXIF orientation 1 to 8: where an upright crop lies in the stored picture, and how to turn the result.

use std::ops::Sub;

use image::metadata::Orientation;
use image::{DynamicImage, RgbImage};

use super::Pixels;
use super::crop::{Rect, Window};
use super::resize::First;

/// Size in pixels of the picture as people see it, from its stored size.
pub(super) fn upright_size((width, height): (u32, u32), orientation: Orientation) -> (u32, u32) {
    if swaps_sides(orientation) { (height, width) } else { (width, height) }
}

/// Stored size of a picture that is to have this size once turned: the inverse of [`upright_size`].
pub(super) fn stored_size(upright: (u32, u32), orientation: Orientation) -> (u32, u32) {
    upright_size(upright, orientation)
}

/// Where a window of the upright picture of `(width, height)` lies in the stored one.
pub(super) fn stored_window(window: Window, (width, height): (u32, u32), orientation: Orientation) -> Window {
    Window {
        cut: stored_rect(window.cut, (width.into(), height.into()), orientation),
        reach: stored_rect(window.reach, (width, height), orientation),
    }
}

fn stored_rect<T: Copy + Sub<Output = T>>(crop: Rect<T>, upright: (T, T), orientation: Orientation) -> Rect<T> {
    let (from_right, from_bottom) = crop.far_corner(upright);
    let (left, top) = match orientation {
        Orientation::NoTransforms => (crop.left, crop.top),
        Orientation::FlipHorizontal => (from_right, crop.top),
        Orientation::Rotate180 => (from_right, from_bottom),
        Orientation::FlipVertical => (crop.left, from_bottom),
        Orientation::Rotate90FlipH => (crop.top, crop.left),
        Orientation::Rotate90 => (crop.top, from_right),
        Orientation::Rotate270FlipH => (from_bottom, from_right),
        Orientation::Rotate270 => (from_bottom, crop.left),
    };
    let (width, height) = if swaps_sides(orientation) { (crop.height, crop.width) } else { (crop.width, crop.height) };
    Rect { left, top, width, height }
}

/// The stored side that is the width once the picture is upright.
pub(super) fn upright_width(orientation: Orientation) -> First {
    if swaps_sides(orientation) { First::Height } else { First::Width }
}

/// Turns a picture upright.
pub(super) fn turn(image: RgbImage, orientation: Orientation) -> Pixels {
    let mut image = DynamicImage::ImageRgb8(image);
    image.apply_orientation(orientation);
    let rgb = image.into_rgb8();
    let (width, height) = rgb.dimensions();
    Pixels { height: height as usize, width: width as usize, rgb: rgb.into_raw() }
}

fn swaps_sides(orientation: Orientation) -> bool {
    matches!(
        orientation,
        Orientation::Rotate90 | Orientation::Rotate270 | Orientation::Rotate90FlipH | Orientation::Rotate270FlipH
    )
}
