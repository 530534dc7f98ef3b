//! Pictures in HEIF files (AVIF, HEIC): items in, 8-bit RGB on white out.
//!
//! The codec is the caller's; this is what the formats share (ISO 23008-12): the primary item, or the grid of tiles that
//! makes it up, its alpha plane, its colour and its orientation. The EXIF orientation is ignored, since `irot` and `imir`
//! replace it. Sizes are checked before anything is decoded, and the time before every tile.

mod isobmff;
mod reader;
mod yuv;

use image::RgbImage;
use image::metadata::Orientation;

use super::decode::Decoded;
use super::limits::Deadline;
use super::{ImageError, Limits};
use isobmff::{Code, Container};
use reader::Reader;

pub(super) use yuv::{Chroma, Colour, Enlargement, Picture, Samples};

/// A way of coding pictures.
pub(super) struct Codec {
    /// What a result calls a kind of this format that is not decoded.
    pub(super) unusual: &'static str,
    /// Kind of the items, such as `av01`.
    pub(super) item: Code,
    /// Kind of the property that configures its decoder, such as `av1C`.
    pub(super) config: Code,
    /// What an item will decode to, from its configuration.
    pub(super) layout: fn(config: &[u8]) -> Option<Layout>,
    /// Whether the picture is cut to its clean aperture: libheif does so, libavif does not.
    pub(super) clean_aperture: bool,
    /// Decodes an item.
    pub(super) decode: fn(item: &Item<'_>) -> Result<Picture, ImageError>,
}

impl Codec {
    fn unusual(&self) -> ImageError {
        ImageError::UnsupportedFormat { format: self.unusual }
    }
}

/// What a decoder will allocate for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// Resolution of the colour planes.
    pub(super) chroma: Chroma,
    /// Bytes that the decoder takes for a sample.
    pub(super) sample_bytes: u64,
}

/// A coded item. Its decoder must refuse a picture of another size.
pub(super) struct Item<'a> {
    /// Body of the configuration property.
    #[cfg_attr(not(feature = "heic"), expect(dead_code, reason = "AV1 pictures bring what it says"))]
    pub(super) config: &'a [u8],
    /// The coded picture.
    pub(super) payload: &'a [u8],
    /// Width in pixels.
    pub(super) width: u32,
    /// Height in pixels.
    pub(super) height: u32,
}

const ALPHA: [&[u8]; 2] = [b"urn:mpeg:mpegB:cicp:systems:auxiliary:alpha", b"urn:mpeg:hevc:2015:auxid:1"];

/// Decodes the picture that a file wants shown.
pub(super) fn decode(bytes: &[u8], limits: &Limits, codec: &Codec) -> Result<Decoded, ImageError> {
    let container = Container::read(bytes)?;
    let file = File { container, codec, limits, deadline: Deadline::start(limits) };
    let primary = file.container.primary;
    let (width, height) = file.size(primary)?;
    file.check(primary, width, height)?;
    let alpha = file.container.referring(b"auxl", primary).find(|item| file.is_alpha(*item));
    let colour = file.colour(primary)?;
    let mut rgb = yuv::to_rgb(&file.picture(primary)?, colour).ok_or_else(|| codec.unusual())?;
    file.deadline.check()?;
    if let Some(alpha) = alpha {
        let premultiplied = file.container.referred(primary, b"prem").contains(&alpha);
        file.flatten(&mut rgb, alpha, premultiplied)?;
    }
    if codec.clean_aperture {
        rgb = file.cut(primary, rgb)?;
    }
    file.deadline.check()?;
    Ok(Decoded {
        rgb,
        icc: file.icc(primary),
        orientation: file.orientation(primary),
        truncated: file.container.ends_early,
    })
}

struct File<'a> {
    container: Container<'a>,
    codec: &'a Codec,
    limits: &'a Limits,
    deadline: Deadline,
}

impl<'a> File<'a> {
    /// Width and height as the file declares them, in pixels.
    fn size(&self, item: u32) -> Result<(u32, u32), ImageError> {
        let read = |body| {
            let mut body = Reader(body);
            body.version_and_flags()?;
            Some((body.id(true)?, body.id(true)?))
        };
        let size =
            self.container.property(item, b"ispe").and_then(read).ok_or_else(|| corrupt("it declares no size"))?;
        if size.0 == 0 || size.1 == 0 {
            return Err(corrupt(format!("a picture of {} × {} pixels", size.0, size.1)));
        }
        Ok(size)
    }

    /// Refuses what would take too much: the decoder's planes, a grid's own, the RGB picture and an alpha plane.
    fn check(&self, primary: u32, width: u32, height: u32) -> Result<(), ImageError> {
        let tiles = self.container.referred(primary, b"dimg");
        let coded = tiles.first().copied().unwrap_or(primary);
        let Layout { chroma, sample_bytes } = self.layout(coded)?;
        let pixels = u64::from(width) * u64::from(height);
        let alpha = if self.container.referring(b"auxl", primary).next().is_some() { sample_bytes + 2 } else { 0 };
        let canvas = if tiles.is_empty() { 0 } else { 2 };
        // In halves of a byte a pixel: 3 samples in 2 pixels of 4:2:0.
        let halves = chroma.half_samples() * (sample_bytes + canvas) + 2 * (3 + alpha);
        self.limits.check(width, height, pixels.saturating_mul(halves) / 2)
    }

    fn layout(&self, item: u32) -> Result<Layout, ImageError> {
        if self.container.kind(item) != Some(self.codec.item) {
            return Err(self.codec.unusual());
        }
        let config = self.container.property(item, &self.codec.config);
        config.and_then(self.codec.layout).ok_or_else(|| corrupt("a picture without its decoder's configuration"))
    }

    fn picture(&self, item: u32) -> Result<Picture, ImageError> {
        let (width, height) = self.size(item)?;
        if self.container.kind(item) == Some(*b"grid") {
            return self.grid(item, width, height);
        }
        self.layout(item)?;
        let config = self.container.property(item, &self.codec.config).unwrap_or_default();
        let payload = self.container.payload(item)?;
        if payload.is_empty() {
            return Err(ImageError::Truncated("a picture of no bytes".to_owned()));
        }
        let picture = (self.codec.decode)(&Item { config, payload: &payload, width, height })?;
        if (picture.width(), picture.height()) != (width as usize, height as usize) {
            let found = (picture.width(), picture.height());
            return Err(corrupt(format!("{} × {} pixels, declared as {width} × {height}", found.0, found.1)));
        }
        Ok(picture)
    }

    /// Puts a grid's tiles together. They are of one size and may reach over its right and lower edges.
    fn grid(&self, item: u32, width: u32, height: u32) -> Result<Picture, ImageError> {
        let payload = self.container.payload(item)?;
        let (rows, columns, grid_size) = grid(&payload).ok_or_else(|| corrupt("a grid without its measures"))?;
        let tiles = self.container.referred(item, b"dimg");
        if grid_size != (width, height) || tiles.len() != rows * columns {
            return Err(corrupt("a grid whose measures contradict each other"));
        }
        let first = tiles.first().copied().ok_or_else(|| corrupt("a grid of no tiles"))?;
        let (tile_width, tile_height) = self.size(first)?;
        // Tiles of one size, of which none is left over.
        let fits = |tile: u32, count: usize, whole: u32| {
            let (tile, count, whole) = (u64::from(tile), count as u64, u64::from(whole));
            tile * count >= whole && tile * (count - 1) < whole
        };
        if !fits(tile_width, columns, width) || !fits(tile_height, rows, height) {
            return Err(corrupt(format!(
                "a grid of {width} × {height} pixels, a tile of {tile_width} × {tile_height}"
            )));
        }
        self.check_tiles(self.layout(first)?, (width, height), (tile_width, tile_height), tiles.len() as u64)?;
        let mut canvas: Option<Picture> = None;
        for (index, tile) in tiles.iter().enumerate() {
            self.deadline.check()?;
            if self.container.kind(*tile) != Some(self.codec.item) {
                return Err(corrupt("a grid of something else than pictures"));
            }
            if self.size(*tile)? != (tile_width, tile_height) {
                return Err(corrupt("a grid of tiles of several sizes"));
            }
            let picture = self.picture(*tile)?;
            let canvas = canvas.get_or_insert_with(|| picture.canvas(width as usize, height as usize));
            let left = index % columns * tile_width as usize;
            let top = index / columns * tile_height as usize;
            if !canvas.place(&picture, left, top) {
                return Err(corrupt("a grid of unlike tiles"));
            }
        }
        canvas.ok_or_else(|| corrupt("a grid of no tiles"))
    }

    /// Refuses tiles that together have too many pixels, however few of them the grid shows, or of which one takes too
    /// much beside the grid's planes and the RGB picture.
    fn check_tiles(
        &self,
        Layout { chroma, sample_bytes }: Layout,
        grid: (u32, u32),
        tile: (u32, u32),
        tiles: u64,
    ) -> Result<(), ImageError> {
        let pixels = |(width, height): (u32, u32)| u64::from(width) * u64::from(height);
        let (found, limit) = (pixels(tile).saturating_mul(tiles), self.limits.pixels);
        if found > limit {
            return Err(ImageError::TooManyPixels { what: "pixels", found, limit });
        }
        let planes = |pixels: u64, sample_bytes| pixels.saturating_mul(chroma.half_samples() * sample_bytes) / 2;
        let rgb = pixels(grid).saturating_mul(3);
        let bytes = planes(pixels(tile), sample_bytes).saturating_add(planes(pixels(grid), 2)).saturating_add(rgb);
        self.limits.check(tile.0, tile.1, bytes)
    }

    fn is_alpha(&self, item: u32) -> bool {
        let kind = self.container.property(item, b"auxC").and_then(|body| body.get(4..));
        kind.is_some_and(|kind| ALPHA.iter().any(|alpha| kind.strip_suffix(b"\0").unwrap_or(kind).starts_with(alpha)))
    }

    /// Puts the picture on white.
    fn flatten(&self, rgb: &mut RgbImage, alpha: u32, premultiplied: bool) -> Result<(), ImageError> {
        let size = self.size(alpha)?;
        if size != rgb.dimensions() {
            return Err(corrupt(format!("an alpha plane of {} × {} pixels", size.0, size.1)));
        }
        yuv::put_on_white(rgb, &self.picture(alpha)?, premultiplied);
        Ok(())
    }

    /// Cuts the picture to its clean aperture, which takes off what an encoder added to reach an even size.
    fn cut(&self, item: u32, rgb: RgbImage) -> Result<RgbImage, ImageError> {
        let Some(body) = self.container.property(item, b"clap") else { return Ok(rgb) };
        let side = |at: usize, whole: u32| {
            // A length, and the distance of its middle from the picture's: fractions, the latter signed.
            let fields: Vec<i128> =
                body.get(at..)?.as_chunks().0.iter().map(|field| i128::from(i32::from_be_bytes(*field))).collect();
            let (length, distance) = (fields.first()?.checked_div(*fields.get(1)?)?, (fields.get(4)?, fields.get(5)?));
            let start =
                ((i128::from(whole) - length) * distance.1 + 2 * distance.0).checked_div_euclid(2 * distance.1)?;
            let (start, length) = (u32::try_from(start).ok()?, u32::try_from(length).ok()?);
            (length > 0 && start.checked_add(length)? <= whole).then_some((start, length))
        };
        let sides = side(0, rgb.width()).zip(side(8, rgb.height()));
        let ((left, width), (top, height)) = sides.ok_or_else(|| corrupt("a clean aperture outside of the picture"))?;
        Ok(image::imageops::crop_imm(&rgb, left, top, width, height).to_image())
    }

    /// The meaning of the samples, where the file states it; it goes before what the coded picture says.
    fn colour(&self, item: u32) -> Result<Option<Colour>, ImageError> {
        let Some(mut nclx) = self.colour_box(item, b"nclx").map(Reader) else { return Ok(None) };
        let read = nclx.take(4).and_then(|_| Some((nclx.uint(2)?, nclx.uint(1)?)));
        let (matrix, range) = read.ok_or_else(|| corrupt("a colour description without its end"))?;
        Ok(Some(Colour { matrix: u8::try_from(matrix).unwrap_or(u8::MAX), full_range: range & 0x80 != 0 }))
    }

    fn icc(&self, item: u32) -> Option<Vec<u8>> {
        self.colour_box(item, b"prof").or_else(|| self.colour_box(item, b"rICC")).map(<[u8]>::to_vec)
    }

    /// The body of the item's colour property of a kind; a grid may leave it to its tiles.
    fn colour_box(&self, item: u32, kind: &Code) -> Option<&'a [u8]> {
        let tile = self.container.referred(item, b"dimg").first().copied();
        [Some(item), tile].into_iter().flatten().find_map(|item| {
            self.container.properties(item).find_map(|(property, body)| match (&property, body.split_first_chunk()) {
                (b"colr", Some((found, body))) if found == kind => Some(body),
                _ => None,
            })
        })
    }

    /// What `irot` and `imir` come to, in the order in which they apply.
    fn orientation(&self, item: u32) -> Orientation {
        // The picture is turned clockwise by quarters, then mirrored left to right.
        let (mut quarters, mut mirrored) = (0, false);
        for (kind, body) in self.container.properties(item) {
            let value = body.first().copied().unwrap_or(0);
            match &kind {
                // Anticlockwise; in a mirrored picture it is the other way round.
                b"irot" => quarters += if mirrored { value & 3 } else { 4 - (value & 3) },
                b"imir" => {
                    // Axis 0 exchanges top and bottom, which is left and right after half a turn.
                    quarters += if value & 1 == 0 { 2 } else { 0 };
                    mirrored = !mirrored;
                }
                _ => {}
            }
            quarters %= 4;
        }
        match (quarters, mirrored) {
            (0, false) => Orientation::NoTransforms,
            (1, false) => Orientation::Rotate90,
            (2, false) => Orientation::Rotate180,
            (_, false) => Orientation::Rotate270,
            (0, true) => Orientation::FlipHorizontal,
            (1, true) => Orientation::Rotate90FlipH,
            (2, true) => Orientation::FlipVertical,
            (_, true) => Orientation::Rotate270FlipH,
        }
    }
}

/// Rows, columns, width and height of a grid's payload.
fn grid(payload: &[u8]) -> Option<(usize, usize, (u32, u32))> {
    let mut payload = Reader(payload);
    payload.uint(1)?;
    let wide = payload.uint(1)? & 1 == 1;
    let rows = usize::try_from(payload.uint(1)?).ok()? + 1;
    let columns = usize::try_from(payload.uint(1)?).ok()? + 1;
    Some((rows, columns, (payload.id(wide)?, payload.id(wide)?)))
}

fn corrupt(problem: impl Into<String>) -> ImageError {
    ImageError::Corrupt(problem.into())
}
