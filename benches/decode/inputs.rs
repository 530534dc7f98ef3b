//! The pictures that the benches decode, made of the photos that the repository ships.
//!
//! Large ones are mosaics at the photos' own detail: an enlarged photo would be smoother than a camera's, and a
//! decoder's time goes with the bits a pixel takes.

use std::path::Path;

use image::codecs::png::PngEncoder;
use image::{ImageEncoder, RgbImage, imageops};

use super::alternatives::zune;
use super::jpeg::{Kind, encode};

const PHOTOS: [&[u8]; 4] = [
    include_bytes!("../../fixtures/photos/astronaut.jpg"),
    include_bytes!("../../fixtures/photos/chelsea.jpg"),
    include_bytes!("../../fixtures/photos/coffee.jpg"),
    include_bytes!("../../fixtures/photos/rocket.jpg"),
];
const QUALITY: u32 = 90;
const ROW_HEIGHT: u32 = 300;

/// A file to decode.
pub(super) struct Input {
    pub(super) name: String,
    pub(super) bytes: Vec<u8>,
}

/// Name, width and height in pixels.
const MOSAICS: [(&str, u32, u32); 5] =
    [("1mp", 1152, 864), ("2mp", 1632, 1224), ("4mp", 2304, 1728), ("12mp", 4032, 3024), ("24mp", 6000, 4000)];

/// The pictures whose name holds one of `names`, or those files; all pictures if there are no names.
pub(super) fn chosen(names: &[String]) -> Vec<Input> {
    let (files, names): (Vec<&String>, Vec<&String>) = names.iter().partition(|name| Path::new(name).is_file());
    let mut inputs: Vec<Input> =
        files.iter().map(|path| Input { name: (*path).clone(), bytes: std::fs::read(path).unwrap() }).collect();
    if files.is_empty() || !names.is_empty() {
        inputs.extend(made(|name| names.is_empty() || names.iter().any(|wanted| name.contains(*wanted))));
    }
    inputs
}

/// Puts the pictures into a folder.
pub(super) fn write(folder: &Path, inputs: &[Input]) {
    std::fs::create_dir_all(folder).unwrap();
    for input in inputs {
        std::fs::write(folder.join(&input.name), &input.bytes).unwrap();
        println!("{}: {} bytes", input.name, input.bytes.len());
    }
}

fn made(wanted: impl Fn(&str) -> bool) -> Vec<Input> {
    let photos = PHOTOS.map(zune);
    let mut inputs = Vec::new();
    let mut add = |name: String, bytes: &dyn Fn() -> Vec<u8>| {
        if wanted(&name) {
            inputs.push(Input { name, bytes: bytes() });
        }
    };
    for (name, width, height) in MOSAICS {
        let picture = || mosaic(&photos, width, height);
        add(format!("{name}.jpg"), &|| jpeg(&picture(), Kind::Baseline));
        add(format!("{name}-progressive.jpg"), &|| jpeg(&picture(), Kind::Progressive));
        if name == "1mp" {
            add(format!("{name}.png"), &|| png(&picture()));
            // No encoder without C writes lossy WebP. Made by Pillow from 1mp.png, at quality 75.
            add(format!("{name}.webp"), &|| include_bytes!("1mp.webp").to_vec());
        }
    }
    let thumbnail = || imageops::resize(&photos[2], 64, 64, imageops::FilterType::CatmullRom);
    add("thumbnail.jpg".to_owned(), &|| jpeg(&thumbnail(), Kind::Baseline));
    inputs
}

/// Photos side by side, cut to rows of one height; each round of them is mirrored or turned over.
fn mosaic(photos: &[RgbImage; 4], width: u32, height: u32) -> RgbImage {
    let mut picture = RgbImage::new(width, height);
    let mut number = 0;
    for top in (0..height).step_by(ROW_HEIGHT as usize) {
        let mut left = 0;
        while left < width {
            let mut tile = imageops::crop_imm(&photos[number % 4], 0, 0, u32::MAX, ROW_HEIGHT).to_image();
            if number / 4 % 2 == 1 {
                imageops::flip_horizontal_in_place(&mut tile);
            }
            if number / 8 % 2 == 1 {
                imageops::flip_vertical_in_place(&mut tile);
            }
            imageops::replace(&mut picture, &tile, i64::from(left), i64::from(top));
            left += tile.width();
            number += 1;
        }
        number += 1;
    }
    picture
}

fn jpeg(picture: &RgbImage, kind: Kind) -> Vec<u8> {
    encode(picture.as_raw(), picture.width() as usize, picture.height() as usize, QUALITY, kind)
}

fn png(picture: &RgbImage) -> Vec<u8> {
    let mut bytes = Vec::new();
    let colour = image::ExtendedColorType::Rgb8;
    PngEncoder::new(&mut bytes).write_image(picture, picture.width(), picture.height(), colour).unwrap();
    bytes
}
