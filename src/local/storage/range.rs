//! The `Range` header (RFC 9110, section 14): one range of bytes.

use std::ops::Range;

use crate::local::error::Error;

/// The bytes that `header` asks for of `size`; `None` when it is to be ignored, because it is malformed or asks for
/// several ranges.
pub(super) fn parse(header: &str, size: usize) -> Result<Option<Range<usize>>, Error> {
    let Some((first, last)) = header.strip_prefix("bytes=").and_then(|range| range.split_once('-')) else {
        return Ok(None);
    };
    let range = match (first, first.parse::<usize>(), last.parse::<usize>()) {
        ("", _, Ok(suffix)) => size.saturating_sub(suffix)..size,
        (_, Ok(first), _) if last.is_empty() => first..size,
        (_, Ok(first), Ok(last)) if first <= last => first..size.min(last.saturating_add(1)),
        _ => return Ok(None),
    };
    if range.start >= size || range.is_empty() {
        return Err(Error::RangeNotSatisfiable(format!("{header} of {size} bytes")));
    }
    Ok(Some(range))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_the_standard_says() {
        let read = |header| parse(header, 10).unwrap();
        assert_eq!(read("bytes=2-4"), Some(2..5));
        assert_eq!(read("bytes=2-"), Some(2..10));
        assert_eq!(read("bytes=2-99"), Some(2..10));
        assert_eq!(read("bytes=-3"), Some(7..10));
        assert_eq!(read("bytes=-99"), Some(0..10));
        for ignored in ["bytes=4-2", "bytes=a-2", "bytes=0-1,3-4", "lines=1-2", "bytes=-"] {
            assert_eq!(read(ignored), None, "{ignored}");
        }
        for impossible in ["bytes=10-", "bytes=12-14", "bytes=-0"] {
            assert!(parse(impossible, 10).is_err(), "{impossible}");
        }
        assert!(parse("bytes=0-", 0).is_err());
    }
}
