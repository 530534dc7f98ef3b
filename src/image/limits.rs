//! What an image may cost, checked before a pixel is allocated.

use super::ImageError;

/// Bounds on one image. A file of a few bytes can declare billions of pixels (image-rs/image#1748).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest width in pixels.
    pub width: u32,
    /// Largest height in pixels.
    pub height: u32,
    /// Largest width × height.
    pub pixels: u64,
    /// Most memory in bytes that a decoder may take for one image.
    pub decoder_bytes: u64,
}

impl Default for Limits {
    /// 100 megapixels, which holds any phone's and most cameras' pictures, and 512 MiB of decoder memory.
    fn default() -> Self {
        Limits { width: 65_535, height: 65_535, pixels: 100_000_000, decoder_bytes: 512 << 20 }
    }
}

impl Limits {
    /// Refuses dimensions (pixels) or a decoded size (bytes) above the limits.
    pub(super) fn check(&self, width: u32, height: u32, decoded_bytes: u64) -> Result<(), ImageError> {
        let pixels = u64::from(width) * u64::from(height);
        for (what, found, limit) in [
            ("width", u64::from(width), u64::from(self.width)),
            ("height", u64::from(height), u64::from(self.height)),
            ("pixels", pixels, self.pixels),
            ("decoder memory", decoded_bytes, self.decoder_bytes),
        ] {
            if found > limit {
                return Err(ImageError::TooManyPixels { what, found, limit });
            }
        }
        Ok(())
    }
}
