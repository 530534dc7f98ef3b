use std::io::Cursor;

use proptest::prelude::*;

use super::{LENGTH_ORDER, Overfull, Tables, read};
use crate::image::decode::decode;
use crate::image::{Format, ImageError, Limits};

/// Made with `cwebp -lossless -m 6 -q 100 -crop 100 100 96 96` from `fixtures/photos/coffee.jpg`.
const THREE_GROUPS: &[u8] = include_bytes!("three-groups.webp");
const LOSSLESS: &[u8] = include_bytes!("../../../../../fixtures/formats/webp/lossless.webp");
const PALETTE: &[u8] = include_bytes!("../../../../../fixtures/formats/webp/lossless-palette.webp");
const ALPHA: &[u8] = include_bytes!("../../../../../fixtures/formats/webp/lossy-alpha.webp");
const ANIMATED: &[u8] = include_bytes!("../../../../../fixtures/formats/webp/animated-alpha.webp");
const LOSSY: &[u8] = include_bytes!("../../../../../fixtures/formats/webp/lossy.webp");

#[derive(Default)]
struct Writer(Vec<bool>);

impl Writer {
    fn number(&mut self, value: u32, bits: u32) {
        self.0.extend((0..bits).map(|bit| value >> bit & 1 == 1));
    }

    /// A code of one symbol.
    fn one(&mut self, symbol: u32) {
        self.number(0b101, 3);
        self.number(symbol, 8);
    }

    /// A code whose first symbols, this many, all have the same length.
    fn many(&mut self, symbols: u32, length: usize) {
        self.number(0, 1);
        self.number(15, 4);
        for at in LENGTH_ORDER {
            self.number(u32::from(at == length), 3);
        }
        self.number(1, 1);
        self.number(4, 3);
        self.number(symbols - 2, 10);
    }

    /// A picture of 4 × 4 pixels whose entropy image has one pixel, which names this group.
    fn picture(group: u32) -> Writer {
        let mut bits = Writer::default();
        bits.number(0x2f, 8);
        bits.number(3, 14);
        bits.number(3, 14);
        // No alpha, version, transform or cache; an entropy image of blocks of four pixels, without a cache.
        bits.number(0, 6);
        bits.number(1, 1);
        bits.number(0, 4);
        for symbol in [group & 255, group >> 8, 0, 0, 0] {
            bits.one(symbol);
        }
        bits
    }

    fn file(mut self) -> Vec<u8> {
        self.0.resize(self.0.len().next_multiple_of(16) + 160, false);
        let byte = |bits: &[bool]| bits.iter().rev().fold(0, |byte, bit| byte << 1 | u8::from(*bit));
        let data: Vec<u8> = self.0.chunks(8).map(byte).collect();
        let length = |bytes: usize| u32::try_from(bytes).unwrap().to_le_bytes();
        [b"RIFF", &length(data.len() + 12)[..], b"WEBPVP8L", &length(data.len()), &data].concat()
    }
}

fn bomb(groups: u32) -> Vec<u8> {
    let mut bits = Writer::picture(groups - 1);
    for _ in 0..groups {
        // A green code of 256 symbols, of which the decoder makes a table of 1 KiB.
        bits.many(256, 8);
        (0..4).for_each(|_| bits.one(0));
    }
    bits.file()
}

fn tables(file: &[u8], canvas: (u32, u32)) -> Result<Tables, Overfull> {
    read(Cursor::new(file), canvas, u64::MAX)
}

fn size(file: &[u8]) -> (u32, u32) {
    let decoded = decode(file, Format::WebP, &Limits::default()).unwrap();
    decoded.rgb.dimensions()
}

/// The numbers of groups are what `image-webp` says when it is made to print them.
#[test]
fn groups_of_real_files_are_counted() {
    for (file, groups) in [(THREE_GROUPS, 3), (LOSSLESS, 1), (PALETTE, 1), (ALPHA, 1), (ANIMATED, 1), (LOSSY, 0)] {
        let found = tables(file, size(file)).unwrap();
        assert_eq!(found.groups, groups);
        assert_eq!(found.bytes > 0, groups > 0);
        assert!(found.bytes <= u64::from(groups) * 120_000);
    }
}

#[test]
fn tables_are_counted_for_each_group() {
    let found = tables(&bomb(700), (4, 4)).unwrap();
    assert_eq!(found, Tables { groups: 700, bytes: 700 * (840 + 96 + 1024) });
    // Of another size, the decoder refuses it.
    assert_eq!(tables(&bomb(700), (4, 5)), Ok(Tables::default()));
    let few = read(Cursor::new(bomb(700)), (4, 4), 10_000).unwrap();
    assert_eq!(few.bytes, 6 * (840 + 96 + 1024));
}

#[test]
fn groups_count_as_decoder_memory() {
    let limits = Limits { decoder_bytes: 4 << 20, ..Limits::default() };
    assert!(decode(&bomb(1000), Format::WebP, &limits).is_ok());
    let refused = |file: &[u8]| {
        let error = decode(file, Format::WebP, &limits).map(|_| ()).unwrap_err();
        assert!(matches!(error, ImageError::TooManyPixels { what: "decoder memory", .. }), "{error}");
    };
    let file = bomb(4000);
    refused(&file);
    // Cut where too many groups came, and where too many would come with what stands for the missing bytes.
    refused(&file[..file.len() - 100]);
}

#[test]
fn a_code_with_too_many_symbols_is_refused() {
    let mut bits = Writer::picture(0);
    bits.many(256, 7);
    let file = bits.file();
    assert_eq!(tables(&file, (4, 4)), Err(Overfull));
    assert!(matches!(decode(&file, Format::WebP, &Limits::default()), Err(ImageError::Corrupt(_))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_bytes_are_read_in_bounds(
        file in prop::sample::select(vec![THREE_GROUPS, LOSSLESS, PALETTE, ALPHA, ANIMATED]),
        changes in prop::collection::vec((0_usize..200, any::<u8>()), 1..8),
        length in 0_usize..4000,
    ) {
        let canvas = size(file);
        let mut file = file[..length.min(file.len())].to_vec();
        for (at, byte) in changes {
            file.iter_mut().skip(at).take(1).for_each(|old| *old = byte);
        }
        if let Ok(found) = tables(&file, canvas) {
            prop_assert!(found.groups <= 65_536 && found.bytes <= u64::from(found.groups) * 120_000);
        }
    }
}
