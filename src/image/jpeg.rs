//! Whether a JPEG reaches its end marker. Its decoder fills what is missing and does not say so.

const EOI: u8 = 0xD9;
const SOI: u8 = 0xD8;
const SOS: u8 = 0xDA;

/// Walks the markers of ITU-T T.81, annex B, from the start. Bytes that follow the end marker do not matter, and a
/// thumbnail's end marker lies inside its segment, which is skipped by length.
pub(super) fn is_complete(bytes: &[u8]) -> bool {
    let mut at = 0;
    while let Some(found) = bytes.get(at..).and_then(|rest| rest.windows(2).position(is_marker)) {
        let marker = bytes[at + found + 1];
        at += found + 2;
        match marker {
            EOI => return true,
            SOI => {}
            // After a scan's header come its coded bytes, in which only a real marker matches.
            _ => match bytes.get(at..at + 2) {
                Some(&[high, low]) => at += usize::from(u16::from_be_bytes([high, low])).max(2),
                _ => return false,
            },
        }
        if marker != SOS && bytes.len() <= at {
            return false;
        }
    }
    false
}

/// Not a marker: a stuffed zero, a fill byte, a restart marker or TEM, none of which starts a segment.
fn is_marker(pair: &[u8]) -> bool {
    pair[0] == 0xFF && !matches!(pair[1], 0x00 | 0x01 | 0xD0..=0xD7 | 0xFF)
}

#[cfg(test)]
mod tests {
    use super::is_complete;

    const JPEG: &[u8] = b"\xFF\xD8\xFF\xE1\x00\x06\xFF\xD8\xFF\xD9\xFF\xDA\x00\x02ab\xFF\x00c\xFF\xD0d\xFF\xD9";

    #[test]
    fn the_end_marker_of_a_thumbnail_is_not_the_end() {
        assert!(is_complete(JPEG));
        assert!(is_complete(&[JPEG, b"trailing"].concat()));
        for cut in 0..JPEG.len() {
            assert!(!is_complete(&JPEG[..cut]), "cut at {cut}");
        }
    }
}
