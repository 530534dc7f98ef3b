//! Writes the JPEGs that the benches decode: 4:2:0 as phones write it, baseline or progressive.
//!
//! No encoder that builds from the registry without C writes progressive files with refinement scans, as nearly all
//! in the wild have. ITU-T T.81 throughout; the ten progressive scans are those of libjpeg's
//! `jpeg_simple_progression`. Every Huffman table is made for its scan.

use super::huffman::{Table, Token};

/// Whether the picture comes in one scan or in ten of growing detail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Baseline,
    Progressive,
}

/// Encodes `width × height × 3` bytes of RGB; `quality` is libjpeg's, 1 to 100.
pub(super) fn encode(rgb: &[u8], width: usize, height: usize, quality: u32, kind: Kind) -> Vec<u8> {
    let tables = [scaled(&LUMA_STEPS, quality), scaled(&CHROMA_STEPS, quality)];
    let planes = components(rgb, width, height, &tables);
    let mut out = vec![0xFF, 0xD8];
    segment(&mut out, 0xE0, b"JFIF\0\x01\x01\0\0\x01\0\x01\0\0");
    for (id, table) in (0u8..).zip(&tables) {
        let steps = ZIGZAG.map(|place| table[place]);
        segment(&mut out, 0xDB, &[&[id][..], &steps].concat());
    }
    let [high, low] = u16::try_from(height).unwrap().to_be_bytes();
    let [left, right] = u16::try_from(width).unwrap().to_be_bytes();
    let frame = [8, high, low, left, right, 3, 1, 0x22, 0, 2, 0x11, 1, 3, 0x11, 1];
    segment(&mut out, if kind == Kind::Baseline { 0xC0 } else { 0xC2 }, &frame);
    let scans: &[Scan] = if kind == Kind::Baseline { &BASELINE } else { &PROGRESSIVE };
    for scan in scans {
        write_scan(&mut out, &planes, scan);
    }
    out.extend([0xFF, 0xD9]);
    out
}

/// What one scan sends: coefficients `from..=to` in zigzag order, down to bit `low`; `high` is the bit that came before.
struct Scan {
    components: &'static [usize],
    from: usize,
    to: usize,
    high: u8,
    low: u8,
}

const fn scan(components: &'static [usize], from: usize, to: usize, high: u8, low: u8) -> Scan {
    Scan { components, from, to, high, low }
}

const BASELINE: [Scan; 1] = [scan(&[0, 1, 2], 0, 63, 0, 0)];
const PROGRESSIVE: [Scan; 10] = [
    scan(&[0, 1, 2], 0, 0, 0, 1),
    scan(&[0], 1, 5, 0, 2),
    scan(&[2], 1, 63, 0, 1),
    scan(&[1], 1, 63, 0, 1),
    scan(&[0], 6, 63, 0, 2),
    scan(&[0], 1, 63, 2, 1),
    scan(&[0, 1, 2], 0, 0, 1, 0),
    scan(&[2], 1, 63, 1, 0),
    scan(&[1], 1, 63, 1, 0),
    scan(&[0], 1, 63, 1, 0),
];

/// Quantized coefficients of one component, each block in zigzag order.
struct Plane {
    blocks: Vec<[i16; 64]>,
    /// Blocks a row, with those that only fill up the last MCU.
    stride: usize,
    /// Blocks that hold picture, across and down: a scan of this component alone sends no others.
    used: (usize, usize),
    /// Blocks a side that an MCU of all components takes of this one.
    sampling: usize,
}

fn write_scan(out: &mut Vec<u8>, planes: &[Plane; 3], scan: &Scan) {
    let mut coder = Coder { tokens: Vec::new(), zero_blocks: 0, held: Vec::new() };
    let mut last = [0i16; 3];
    for (component, x, y) in order(planes, scan.components) {
        let plane = &planes[component];
        let block = &plane.blocks[y * plane.stride + x];
        let tables = u8::from(component > 0);
        if scan.from == 0 && scan.high == 0 {
            let value = block[0] >> scan.low;
            coder.amplitude(tables, 0, value - last[component]);
            last[component] = value;
        } else if scan.from == 0 {
            coder.bit(block[0] >> scan.low);
        }
        match (scan.from, scan.to, scan.high) {
            (0, 0, _) => {}
            (0, _, _) => coder.sequential(tables, block),
            (_, _, 0) => coder.first(block, scan),
            _ => coder.refine(block, scan),
        }
    }
    coder.end_of_blocks();
    let mut tables: [Option<Table>; 4] = [const { None }; 4];
    for (class_and_id, slot) in [0x00, 0x01, 0x10, 0x11].into_iter().zip(&mut tables) {
        *slot = Table::of(&coder.tokens, class_and_id);
        if let Some(table) = slot {
            segment(out, 0xC4, &table.definition(class_and_id));
        }
    }
    let mut head = vec![u8::try_from(scan.components.len()).unwrap()];
    for &component in scan.components {
        let alone = scan.from > 0;
        let tables = if component > 0 && !alone { 0x11 } else { 0 };
        head.extend([u8::try_from(component).unwrap() + 1, tables]);
    }
    head.extend([u8::try_from(scan.from).unwrap(), u8::try_from(scan.to).unwrap(), scan.high << 4 | scan.low]);
    segment(out, 0xDA, &head);
    super::huffman::write(out, &coder.tokens, &tables);
}

/// Component and place of each block in the order that a scan sends them.
fn order(planes: &[Plane; 3], components: &[usize]) -> Vec<(usize, usize, usize)> {
    if let [alone] = *components {
        let (across, down) = planes[alone].used;
        return (0..down).flat_map(|y| (0..across).map(move |x| (alone, x, y))).collect();
    }
    let chroma = &planes[1];
    let mut places = Vec::new();
    for (row, column) in (0..chroma.blocks.len()).map(|mcu| (mcu / chroma.stride, mcu % chroma.stride)) {
        for &component in components {
            let side = planes[component].sampling;
            for inner in 0..side * side {
                places.push((component, column * side + inner % side, row * side + inner / side));
            }
        }
    }
    places
}

struct Coder {
    tokens: Vec<Token>,
    /// Blocks in a row that are over: they are sent as one number.
    zero_blocks: u16,
    /// Refinement bits of those blocks.
    held: Vec<bool>,
}

const RUN_OF_16: u8 = 0xF0;
const MOST_ZERO_BLOCKS: u16 = 0x7FFF;
/// As many as a decoder that follows libjpeg's limits may be given.
const MOST_HELD: usize = 900;

impl Coder {
    fn symbol(&mut self, table: u8, symbol: u8, bits: u16, count: u8) {
        self.tokens.push(Token { table: Some(table), symbol, bits, count });
    }

    fn bit(&mut self, value: i16) {
        self.tokens.push(Token { table: None, symbol: 0, bits: u16::from(value & 1 == 1), count: 1 });
    }

    /// A value as its length in bits, joined with the run of zeros before it, and the bits.
    fn amplitude(&mut self, table: u8, run: u8, value: i16) {
        let count = u8::try_from(16 - value.unsigned_abs().leading_zeros()).unwrap();
        let bits = if value < 0 { value - 1 } else { value } as u16 & ((1 << count) - 1);
        self.symbol(table, run << 4 | count, bits, count);
    }

    fn sequential(&mut self, tables: u8, block: &[i16; 64]) {
        let mut run = 0;
        for &value in &block[1..] {
            if value == 0 {
                run += 1;
                continue;
            }
            for _ in 0..run / 16 {
                self.symbol(0x10 | tables, RUN_OF_16, 0, 0);
            }
            self.amplitude(0x10 | tables, run % 16, value);
            run = 0;
        }
        if run > 0 {
            self.symbol(0x10 | tables, 0, 0, 0);
        }
    }

    fn first(&mut self, block: &[i16; 64], scan: &Scan) {
        let mut run = 0;
        for &value in &block[scan.from..=scan.to] {
            // Towards zero, unlike DC.
            let value = value / (1 << scan.low);
            if value == 0 {
                run += 1;
                continue;
            }
            self.end_of_blocks();
            for _ in 0..run / 16 {
                self.symbol(0x10, RUN_OF_16, 0, 0);
            }
            self.amplitude(0x10, run % 16, value);
            run = 0;
        }
        if run > 0 {
            self.block_ends(Vec::new());
        }
    }

    fn refine(&mut self, block: &[i16; 64], scan: &Scan) {
        let sizes: Vec<u16> = block[scan.from..=scan.to].iter().map(|value| value.unsigned_abs() >> scan.low).collect();
        let last_new = sizes.iter().rposition(|size| *size == 1);
        let (mut run, mut corrections) = (0, Vec::new());
        for (place, &size) in sizes.iter().enumerate() {
            if size == 0 {
                run += 1;
                continue;
            }
            while run > 15 && last_new.is_some_and(|last| place <= last) {
                self.end_of_blocks();
                self.symbol(0x10, RUN_OF_16, 0, 0);
                run -= 16;
                self.corrections(&mut corrections);
            }
            if size > 1 {
                corrections.push(size & 1 == 1);
                continue;
            }
            self.end_of_blocks();
            self.symbol(0x10, run << 4 | 1, u16::from(block[scan.from + place] > 0), 1);
            self.corrections(&mut corrections);
            run = 0;
        }
        if run > 0 || !corrections.is_empty() {
            self.block_ends(corrections);
        }
    }

    fn corrections(&mut self, bits: &mut Vec<bool>) {
        for bit in bits.drain(..) {
            self.bit(i16::from(bit));
        }
    }

    fn block_ends(&mut self, corrections: Vec<bool>) {
        self.zero_blocks += 1;
        self.held.extend(corrections);
        if self.zero_blocks == MOST_ZERO_BLOCKS || self.held.len() > MOST_HELD {
            self.end_of_blocks();
        }
    }

    fn end_of_blocks(&mut self) {
        if self.zero_blocks == 0 {
            return;
        }
        let count = u8::try_from(self.zero_blocks.ilog2()).unwrap();
        self.symbol(0x10, count << 4, self.zero_blocks & ((1 << count) - 1), count);
        self.zero_blocks = 0;
        let mut held = std::mem::take(&mut self.held);
        self.corrections(&mut held);
        self.held = held;
    }
}

fn segment(out: &mut Vec<u8>, marker: u8, content: &[u8]) {
    out.extend([0xFF, marker]);
    out.extend(u16::try_from(content.len() + 2).unwrap().to_be_bytes());
    out.extend(content);
}

fn components(rgb: &[u8], width: usize, height: usize, tables: &[[u8; 64]; 2]) -> [Plane; 3] {
    let mcus = (width.div_ceil(16), height.div_ceil(16));
    [0, 1, 2].map(|component| {
        let sampling = if component == 0 { 2 } else { 1 };
        let step = 2 / sampling;
        let stride = mcus.0 * sampling;
        let sample = |x: usize, y: usize| {
            let mut sum = 0.0;
            for place in 0..step * step {
                let (x, y) = ((x * step + place % step).min(width - 1), (y * step + place / step).min(height - 1));
                let pixel = &rgb[(y * width + x) * 3..][..3];
                sum +=
                    COLOURS[component].iter().zip(pixel).map(|(share, value)| share * f32::from(*value)).sum::<f32>();
            }
            sum / (step * step) as f32
        };
        let block = |number: usize| {
            let (left, top) = (number % stride * 8, number / stride * 8);
            let mut samples: [f32; 64] = std::array::from_fn(|place| sample(left + place % 8, top + place / 8));
            if component == 0 {
                samples = samples.map(|luma| luma - 128.0);
            }
            quantized(&transformed(&samples), &tables[usize::from(component > 0)])
        };
        Plane {
            blocks: (0..stride * mcus.1 * sampling).map(block).collect(),
            stride,
            used: (width.div_ceil(8 * step), height.div_ceil(8 * step)),
            sampling,
        }
    })
}

/// Rows of the JFIF conversion from red, green and blue to luma, blue and red difference around 0.
const COLOURS: [[f32; 3]; 3] = [[0.299, 0.587, 0.114], [-0.168_736, -0.331_264, 0.5], [0.5, -0.418_688, -0.081_312]];

fn transformed(samples: &[f32; 64]) -> [f32; 64] {
    let basis: [[f32; 8]; 8] = std::array::from_fn(|frequency| {
        std::array::from_fn(|x| {
            let angle = std::f32::consts::PI / 16.0 * (2 * x + 1) as f32 * frequency as f32;
            angle.cos() * if frequency == 0 { 0.125f32.sqrt() } else { 0.5 }
        })
    });
    let rows: [f32; 64] = std::array::from_fn(|at| (0..8).map(|x| basis[at % 8][x] * samples[at / 8 * 8 + x]).sum());
    std::array::from_fn(|at| (0..8).map(|y| basis[at / 8][y] * rows[y * 8 + at % 8]).sum())
}

fn quantized(coefficients: &[f32; 64], steps: &[u8; 64]) -> [i16; 64] {
    ZIGZAG.map(|place| (coefficients[place] / f32::from(steps[place])).round() as i16)
}

/// libjpeg's meaning of quality.
fn scaled(steps: &[u8; 64], quality: u32) -> [u8; 64] {
    let percent = if quality < 50 { 5000 / quality } else { 200 - 2 * quality };
    steps.map(|step| u8::try_from(((u32::from(step) * percent + 50) / 100).clamp(1, 255)).unwrap())
}

/// Place in the block of each coefficient in the order that they are sent.
#[rustfmt::skip]
const ZIGZAG: [usize; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14, 21, 28,
    35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55,
    62, 63,
];

/// T.81, table K.1.
#[rustfmt::skip]
const LUMA_STEPS: [u8; 64] = [
    16, 11, 10, 16, 24, 40, 51, 61, 12, 12, 14, 19, 26, 58, 60, 55, 14, 13, 16, 24, 40, 57, 69, 56, 14, 17, 22, 29, 51, 87,
    80, 62, 18, 22, 37, 56, 68, 109, 103, 77, 24, 35, 55, 64, 81, 104, 113, 92, 49, 64, 78, 87, 103, 121, 120, 101, 72, 92,
    95, 98, 112, 100, 103, 99,
];

/// T.81, table K.2.
#[rustfmt::skip]
const CHROMA_STEPS: [u8; 64] = [
    17, 18, 24, 47, 99, 99, 99, 99, 18, 21, 26, 66, 99, 99, 99, 99, 24, 26, 56, 99, 99, 99, 99, 99, 47, 66, 99, 99, 99, 99,
    99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99,
    99, 99, 99, 99,
];
