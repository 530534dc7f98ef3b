//! An upload while it is put together from the places of a message that name it.
//!
//! Each shape states what it finds and where; the draft refuses places that disagree, then checks the whole.

use super::error::quoted;
use super::{EventError, EventKind, ObjectId, Upload};

/// The upload so far, each fact with the place it came from.
pub(super) struct Draft {
    kind: EventKind,
    bucket: Option<Fact>,
    name: Option<Fact>,
    generation: Option<Fact>,
    size: Option<u64>,
    content_type: Option<String>,
}

struct Fact {
    place: &'static str,
    value: String,
}

impl Draft {
    pub(super) fn new(kind: EventKind) -> Self {
        Self { kind, bucket: None, name: None, generation: None, size: None, content_type: None }
    }

    pub(super) fn bucket(&mut self, place: &'static str, value: Option<&str>) -> Result<(), EventError> {
        state(self.kind, &mut self.bucket, place, value)
    }

    pub(super) fn name(&mut self, place: &'static str, value: Option<&str>) -> Result<(), EventError> {
        state(self.kind, &mut self.name, place, value)
    }

    pub(super) fn has_name(&self) -> bool {
        self.name.is_some()
    }

    pub(super) fn generation(&mut self, place: &'static str, value: Option<&str>) -> Result<(), EventError> {
        state(self.kind, &mut self.generation, place, value)
    }

    pub(super) fn size(&mut self, place: &'static str, value: Option<&str>) -> Result<(), EventError> {
        if let Some(text) = value {
            let expected = "a number of bytes";
            self.size = Some(number(text).ok_or_else(|| self.malformed(place, text, expected))?);
        }
        Ok(())
    }

    pub(super) fn content_type(&mut self, value: Option<&str>) {
        self.content_type = value.filter(|text| !text.is_empty()).map(Into::into);
    }

    /// Checks the whole. `bucket` and `name` say where the shape should have named them.
    pub(super) fn finish(self, bucket: &'static str, name: &'static str) -> Result<Upload, EventError> {
        let kind = self.kind;
        let generation = match &self.generation {
            None => None,
            Some(fact) => Some(
                number(&fact.value)
                    .filter(|generation| *generation > 0)
                    .ok_or_else(|| self.malformed(fact.place, &fact.value, "a positive number"))?,
            ),
        };
        let Some(bucket) = &self.bucket else { return Err(EventError::Missing { kind, field: bucket }) };
        let Some(name) = &self.name else { return Err(EventError::Missing { kind, field: name }) };
        if !is_bucket(&bucket.value) {
            return Err(self.malformed(bucket.place, &bucket.value, "a bucket name"));
        }
        if !is_name(&name.value) {
            return Err(self.malformed(
                name.place,
                &name.value,
                "an object name of 1 to 1024 bytes without line breaks, not . or ..",
            ));
        }
        let object = ObjectId { bucket: bucket.value.clone(), name: name.value.clone(), generation };
        Ok(Upload { object, kind, size: self.size, content_type: self.content_type })
    }

    fn malformed(&self, field: &'static str, text: &str, expected: &'static str) -> EventError {
        EventError::Malformed { kind: self.kind, field, found: quoted(text), expected }
    }
}

fn state(
    kind: EventKind,
    known: &mut Option<Fact>,
    place: &'static str,
    value: Option<&str>,
) -> Result<(), EventError> {
    let Some(value) = value else { return Ok(()) };
    match known {
        Some(fact) if fact.value == value => Ok(()),
        Some(fact) => Err(EventError::Disagreement {
            kind,
            first: fact.place,
            first_value: quoted(&fact.value),
            second: place,
            second_value: quoted(value),
        }),
        None => {
            *known = Some(Fact { place, value: value.into() });
            Ok(())
        }
    }
}

/// Decimal digits and nothing else.
fn number<N: std::str::FromStr>(text: &str) -> Option<N> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

/// The outer bounds of Cloud Storage's rule (<https://cloud.google.com/storage/docs/buckets#naming>): what passes is
/// safe in a path, whether it exists is the server's to say.
fn is_bucket(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_' | b'.');
    let outer = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let bytes = name.as_bytes();
    (3..=222).contains(&bytes.len())
        && bytes.iter().all(|byte| inner(*byte))
        && outer(bytes.first())
        && outer(bytes.last())
}

/// Any text that Cloud Storage may hold (<https://cloud.google.com/storage/docs/objects#naming>). Line breaks, `.` and
/// `..` are not allowed there, and the latter would change the path of a request.
fn is_name(name: &str) -> bool {
    (1..=1024).contains(&name.len()) && !matches!(name, "." | "..") && !name.contains(['\r', '\n'])
}
