//! `multipart/related` bodies: metadata, media and, from Google's client, checksums that follow the media.

use std::ops::Range;

use bytes::Bytes;

use crate::local::error::Error;

/// One part.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Its `content-type`; empty when it has none.
    pub(super) content_type: String,
    /// Its body, not copied.
    pub(super) body: Bytes,
}

/// Takes a body apart; `content_type` is the request's, with the boundary.
pub(super) fn parse(content_type: &str, body: &Bytes) -> Result<Vec<Part>, Error> {
    let invalid = |what: &str| Error::Invalid(format!("multipart body: {what}"));
    let boundary = boundary(content_type).ok_or_else(|| invalid("no boundary"))?;
    let delimiter = [b"\r\n--", boundary.as_bytes()].concat();
    // The first delimiter needs no line break before it.
    let mut at = match body.strip_prefix(&delimiter[2..]) {
        Some(_) => delimiter.len() - 2,
        None => find(body, 0..body.len(), &delimiter).ok_or_else(|| invalid("no part"))? + delimiter.len(),
    };
    let mut parts = Vec::new();
    while !body[at..].starts_with(b"--") {
        let end = find(body, at..body.len(), &delimiter).ok_or_else(|| invalid("a part without an end"))?;
        parts.push(part(body, at..end).ok_or_else(|| invalid("a part without a header"))?);
        at = end + delimiter.len();
    }
    Ok(parts)
}

fn part(body: &Bytes, range: Range<usize>) -> Option<Part> {
    // From the line break that ends the delimiter, so that a part without headers has its empty line too.
    let split = find(body, range.clone(), b"\r\n\r\n")?;
    let headers = std::str::from_utf8(&body[range.start..split]).ok()?;
    let mut fields = headers.lines().filter_map(|line| line.split_once(':'));
    let content_type = fields.find(|(name, _)| name.eq_ignore_ascii_case("content-type"));
    Some(Part {
        content_type: content_type.map_or("", |(_, value)| value.trim()).to_owned(),
        body: body.slice(split + 4..range.end),
    })
}

fn boundary(content_type: &str) -> Option<&str> {
    let mut parameters = content_type.split(';').map(str::trim);
    let value = parameters.find_map(|parameter| {
        parameter.split_at_checked("boundary=".len()).filter(|(name, _)| name.eq_ignore_ascii_case("boundary="))
    });
    value.map(|(_, value)| value.trim_matches('"')).filter(|value| !value.is_empty())
}

fn find(body: &[u8], range: Range<usize>, needle: &[u8]) -> Option<usize> {
    let start = range.start;
    body[range].windows(needle.len()).position(|window| window == needle).map(|at| at + start)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parts_come_apart_with_their_types() {
        let body = Bytes::from_static(
            b"--b\r\nContent-Type: application/json\r\n\r\n{}\r\n--b\r\n\r\n\r\nraw\r\n\r\n--b--\r\n",
        );
        let parts = parse("multipart/related; boundary=\"b\"", &body).unwrap();
        let seen: Vec<_> = parts.iter().map(|part| (part.content_type.as_str(), &part.body[..])).collect();
        assert_eq!(seen, [("application/json", &b"{}"[..]), ("", &b"\r\nraw\r\n"[..])]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken_apart_or_refused(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let body = Bytes::from([b"--b\r\n", &body[..]].concat());
            drop(parse("multipart/related; boundary=b", &body));
        }
    }
}
