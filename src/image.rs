//! Object bytes in, the model's input pixels out.

/// An upright RGB image of the size the model takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pixels {
    /// Height in pixels.
    pub height: usize,
    /// Width in pixels.
    pub width: usize,
    /// `height × width × 3` bytes, row by row, red, green, blue.
    pub rgb: Vec<u8>,
}
