//! Colour profiles: from what a picture's numbers mean to sRGB, which models were trained on.
//!
//! Conversion comes after the resize, on the model's input, where it costs a hundredth of what it would cost on a
//! camera's picture. The intent is perceptual, as by default in Pillow's `ImageCms`. A profile that is broken, or of
//! another kind than the pixels, is ignored: people see such pictures as if they had none.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use image::RgbImage;
use moxcms::{ColorProfile, DataColorSpace, Layout, TransformExecutor, TransformOptions};

/// Converts a picture with an RGB profile, or a grey picture with a grey one, to sRGB.
pub(super) fn rgb(image: &mut RgbImage, icc: &[u8]) {
    let Some(Conversion { layout, executor }) = conversion(icc) else {
        return;
    };
    let from: Vec<u8> = match layout {
        Layout::Rgb => image.as_raw().clone(),
        Layout::Gray if image.pixels().all(|pixel| pixel.0 == [pixel.0[0]; 3]) => {
            image.pixels().map(|pixel| pixel.0[0]).collect()
        }
        _ => return,
    };
    if let Some(converted) = apply(&*executor, &from, image.as_raw().len()) {
        image.as_flat_samples_mut().samples.copy_from_slice(&converted);
    }
}

/// Converts inks to sRGB: cyan, magenta, yellow and black, 0 for none, four bytes a pixel to three. Without a CMYK
/// profile each ink takes its share of the light, as in Pillow's `convert`.
pub(super) fn cmyk(pixels: &[u8], icc: Option<&[u8]>) -> Vec<u8> {
    let (pixels, _) = pixels.as_chunks::<4>();
    let found = icc.and_then(conversion).filter(|conversion| conversion.layout == Layout::Rgba);
    let converted = found.and_then(|found| apply(&*found.executor, pixels.as_flattened(), pixels.len() * 3));
    converted.unwrap_or_else(|| pixels.iter().flat_map(|[c, m, y, k]| [c, m, y].map(|ink| light(*ink, *k))).collect())
}

/// What ink and black leave of the light, rounded to the nearest.
fn light(ink: u8, black: u8) -> u8 {
    let left = u32::from(255 - ink) * u32::from(255 - black);
    u8::try_from((left + 127) / 255).unwrap_or(u8::MAX)
}

/// From a profile's pixels to sRGB.
#[derive(Clone)]
struct Conversion {
    /// Of the profile's side. [`Layout::Rgba`] stands for any four channels.
    layout: Layout,
    executor: Arc<dyn TransformExecutor<u8> + Send + Sync>,
}

thread_local! {
    /// The last profile and its conversion: phones of one kind send the same one over and over, and it takes longer to
    /// build than to apply.
    static LAST: RefCell<Option<(Vec<u8>, Option<Conversion>)>> = const { RefCell::new(None) };
}

/// The conversion for a profile, or none if there is nothing to do or nothing that can be done.
fn conversion(icc: &[u8]) -> Option<Conversion> {
    let known = LAST.with_borrow(|last| last.as_ref().filter(|(profile, _)| profile == icc).map(|(_, it)| it.clone()));
    known.unwrap_or_else(|| {
        let built = catch_unwind(|| build(icc)).ok().flatten();
        LAST.set(Some((icc.to_vec(), built.clone())));
        built
    })
}

fn build(icc: &[u8]) -> Option<Conversion> {
    let profile = ColorProfile::new_from_slice(icc).ok()?;
    let layout = match profile.color_space {
        DataColorSpace::Rgb => Layout::Rgb,
        DataColorSpace::Gray => Layout::Gray,
        DataColorSpace::Cmyk => Layout::Rgba,
        _ => return None,
    };
    let options = TransformOptions { prefer_fixed_point: false, ..TransformOptions::default() };
    let srgb = ColorProfile::new_srgb();
    let executor = profile.create_transform_8bit(layout, &srgb, Layout::Rgb, options).ok()?;
    let conversion = Conversion { layout, executor };
    (layout == Layout::Rgba || changes_colours(&conversion)).then_some(conversion)
}

/// Most profiles are sRGB under one of its many names. What they do tells better than how they say it: none of a set
/// of colours moves by more than a level.
fn changes_colours(conversion: &Conversion) -> bool {
    let steps = || (0..=255u8).step_by(51);
    let greys = (0..=255u8).map(|grey| [grey; 3]);
    let colours = steps().flat_map(|red| steps().flat_map(move |green| steps().map(move |blue| [red, green, blue])));
    let colours: Vec<u8> = match conversion.layout {
        Layout::Gray => (0..=255).collect(),
        _ => greys.chain(colours).flatten().collect(),
    };
    let expected = match conversion.layout {
        Layout::Gray => colours.iter().flat_map(|grey| [*grey; 3]).collect(),
        _ => colours.clone(),
    };
    let converted = apply(&*conversion.executor, &colours, expected.len());
    converted.is_some_and(|converted| converted.iter().zip(&expected).any(|(a, b)| a.abs_diff(*b) > 1))
}

fn apply(executor: &(dyn TransformExecutor<u8> + Send + Sync), from: &[u8], length: usize) -> Option<Vec<u8>> {
    let mut to = vec![0; length];
    catch_unwind(AssertUnwindSafe(|| executor.transform(from, &mut to).ok())).ok().flatten()?;
    Some(to)
}
