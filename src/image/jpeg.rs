//! A JPEG decoder (ITU-T T.81: baseline, extended sequential and progressive, Huffman-coded, 8 bits) that does no more
//! than a small picture needs.
//!
//! Object bytes and the wanted crop in, the crop's colour channels out, each as a plane of its own at the smallest scale
//! that still covers the model's input. What that leaves out is most of the work: at 1/8 only the first coefficient of
//! a block is needed, the bits of the others are passed over several at a time, and of a progressive file whole scans
//! are not read. Blocks outside of the crop are not transformed, rows below it not decoded. `docs/decoding.md` has the
//! figures against other decoders.
//!
//! A file that ends early or is damaged gives what could be decoded, grey where nothing came, and the share that came.
//!
//! `markers → bits, huffman → mcus → sequential or progressive → idct → planes`

mod bits;
mod channel;
mod huffman;
mod idct;
mod markers;
mod mcus;
mod planes;
mod progressive;
mod sequential;
mod standard;

use image::metadata::Orientation;

use super::crop::Window;
use super::limits::Deadline;
use super::{ImageError, Limits, decode};
use channel::Channel;
use markers::Jpeg;
pub(super) use planes::Picture;

/// A JPEG file whose headers are read and within the limits.
pub(super) struct Header<'a> {
    deadline: Deadline,
    jpeg: Jpeg<'a>,
}

/// A decoded crop.
pub(super) struct Decoded {
    pub(super) picture: Picture,
    /// Part of it is missing.
    pub(super) truncated: bool,
}

/// Decodes a whole file at full scale, to sRGB.
pub(super) fn decode_whole(bytes: &[u8], limits: &Limits) -> Result<decode::Decoded, ImageError> {
    let header = Header::read(bytes, limits)?;
    let (window, orientation) = (Window::whole(header.dimensions()), header.orientation());
    let Decoded { picture, truncated } = header.decode(&window, (f64::INFINITY, f64::INFINITY), limits)?;
    Ok(decode::Decoded { rgb: picture.rgb(), icc: None, orientation, truncated })
}

impl<'a> Header<'a> {
    /// Reads everything but the pictures' coded bytes.
    pub(super) fn read(bytes: &'a [u8], limits: &Limits) -> Result<Self, ImageError> {
        Ok(Self { deadline: Deadline::start(limits), jpeg: markers::read(bytes, limits)? })
    }

    /// Width and height in pixels, as stored.
    pub(super) fn dimensions(&self) -> (u32, u32) {
        (self.jpeg.frame.width, self.jpeg.frame.height)
    }

    pub(super) fn orientation(&self) -> Orientation {
        self.jpeg.orientation
    }

    /// Decodes what a window reaches, at the smallest scale that gives its cut at least this size in pixels, else at full
    /// scale.
    pub(super) fn decode(self, window: &Window, size: (f64, f64), limits: &Limits) -> Result<Decoded, ImageError> {
        let Self { deadline, jpeg: Jpeg { frame, scans, colour, icc, complete, .. } } = self;
        // Of a file that ends early all rows are counted, those below the crop too.
        let rows = if complete { 0 } else { frame.height };
        let eighths = channel::eighths(window.cut, size);
        let reach = window.reach;
        let mut channels = Channel::of(&frame, reach, eighths as usize, rows);
        let memory: u64 = channels.iter().map(|channel| channel.memory(frame.progressive)).sum();
        let converted = u64::from(reach.width) * u64::from(reach.height) * 3 * u64::from(eighths * eighths) / 64;
        limits.check(frame.width, frame.height, memory + converted)?;
        channels.iter_mut().for_each(Channel::allocate);
        let came = if frame.progressive {
            progressive::decode(&scans, &mut channels, colour, &deadline)?
        } else {
            sequential::decode(&scans, &mut channels, colour, &deadline)?
        };
        if came.share < limits.min_rows || came.share == 0.0 {
            let came =
                format!("{:.0} % of the picture came, {:.0} % are needed", came.share * 100.0, limits.min_rows * 100.0);
            return Err(if complete { ImageError::Corrupt(came) } else { ImageError::Truncated(came) });
        }
        let planes = channels.into_iter().map(|channel| channel.plane).collect();
        Ok(Decoded {
            picture: Picture { planes, colour, icc, window: *window, eighths },
            truncated: !complete || !came.whole,
        })
    }
}
