//! Huffman tables made for one scan, and its bits written with them (T.81, annexes C and K.2).

/// A symbol of a table, none for bare bits, followed by `count` bits.
pub(super) struct Token {
    /// Class in the upper four bits (0 DC, 1 AC), number in the lower four, as in a DHT segment.
    pub(super) table: Option<u8>,
    pub(super) symbol: u8,
    pub(super) bits: u16,
    pub(super) count: u8,
}

/// The code of each symbol: its bits and their number, 0 for a symbol that does not occur.
pub(super) struct Table {
    codes: [(u16, u8); 256],
    symbols: Vec<u8>,
}

const LONGEST: usize = 16;

impl Table {
    /// The best table for the tokens that use it, if any do.
    pub(super) fn of(tokens: &[Token], class_and_id: u8) -> Option<Self> {
        let mut counts = [0u64; 257];
        for token in tokens.iter().filter(|token| token.table == Some(class_and_id)) {
            counts[usize::from(token.symbol)] += 1;
        }
        if counts.iter().all(|count| *count == 0) {
            return None;
        }
        // The code of all ones must stay free.
        counts[256] = 1;
        let lengths = limited(lengths(&counts));
        let mut symbols: Vec<usize> = (0..256).filter(|symbol| lengths[*symbol] > 0).collect();
        symbols.sort_by_key(|symbol| lengths[*symbol]);
        let mut codes = [(0, 0); 256];
        let (mut code, mut length) = (0u16, 0);
        for &symbol in &symbols {
            code <<= lengths[symbol] - length;
            length = lengths[symbol];
            codes[symbol] = (code, u8::try_from(length).unwrap());
            code = code.wrapping_add(1);
        }
        Some(Table { codes, symbols: symbols.into_iter().map(|symbol| u8::try_from(symbol).unwrap()).collect() })
    }

    /// The content of a DHT segment.
    pub(super) fn definition(&self, class_and_id: u8) -> Vec<u8> {
        let mut of_length = [0u8; LONGEST + 1];
        for symbol in &self.symbols {
            of_length[usize::from(self.codes[usize::from(*symbol)].1)] += 1;
        }
        [&[class_and_id], &of_length[1..], &self.symbols].concat()
    }
}

/// Lengths of the codes of a Huffman tree.
fn lengths(counts: &[u64; 257]) -> [usize; 257] {
    let mut trees: Vec<(u64, Vec<usize>)> = counts
        .iter()
        .enumerate()
        .filter(|(_, count)| **count > 0)
        .map(|(symbol, count)| (*count, vec![symbol]))
        .collect();
    let mut lengths = [0; 257];
    while trees.len() > 1 {
        // The reserved symbol, 256, joins first of its count: no code is longer than its own.
        trees.sort_by_key(|(count, symbols)| (std::cmp::Reverse(*count), symbols.iter().max().copied()));
        let (Some(rarest), Some(next)) = (trees.pop(), trees.pop()) else { break };
        let symbols = [rarest.1, next.1].concat();
        symbols.iter().for_each(|symbol| lengths[*symbol] += 1);
        trees.push((rarest.0 + next.0, symbols));
    }
    lengths
}

/// Shortens codes of more than 16 bits at the cost of others, and drops the reserved symbol.
fn limited(lengths: [usize; 257]) -> [usize; 257] {
    let mut of_length = [0usize; 64];
    lengths.iter().for_each(|length| of_length[*length] += 1);
    for long in (LONGEST + 1..64).rev() {
        while of_length[long] > 0 {
            let shorter = (1..long - 1).rev().find(|length| of_length[*length] > 0).unwrap();
            of_length[long] -= 2;
            of_length[long - 1] += 1;
            of_length[shorter + 1] += 2;
            of_length[shorter] -= 1;
        }
    }
    let longest = (1..=LONGEST).rev().find(|length| of_length[*length] > 0).unwrap();
    of_length[longest] -= 1;
    let mut symbols: Vec<usize> = (0..256).filter(|symbol| lengths[*symbol] > 0).collect();
    symbols.sort_by_key(|symbol| lengths[*symbol]);
    let by_length = (1..=LONGEST).flat_map(|length| std::iter::repeat_n(length, of_length[length]));
    let mut limited = [0; 257];
    symbols.into_iter().zip(by_length).for_each(|(symbol, length)| limited[symbol] = length);
    limited
}

/// Appends the tokens as entropy-coded bytes. `tables`: DC 0, DC 1, AC 0, AC 1.
pub(super) fn write(out: &mut Vec<u8>, tokens: &[Token], tables: &[Option<Table>; 4]) {
    let (mut held, mut count) = (0u64, 0);
    let mut put = |bits: u16, length: u8| {
        held = held << length | u64::from(bits);
        count += u32::from(length);
        while count >= 8 {
            count -= 8;
            let byte = (held >> count & 0xFF) as u8;
            out.push(byte);
            if byte == 0xFF {
                out.push(0);
            }
        }
    };
    for token in tokens {
        if let Some(table) = token.table {
            let table = tables[usize::from(table >> 4) * 2 + usize::from(table & 1)].as_ref().unwrap();
            let (code, length) = table.codes[usize::from(token.symbol)];
            put(code, length);
        }
        put(token.bits, token.count);
    }
    // Fills the last byte with ones.
    put(0x7F, 7);
}
