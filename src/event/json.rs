//! The few JSON fields that events are made of.
//!
//! In: foreign bytes. Out: an [`Object`] that holds the fields named in [`KNOWN`] and nothing else. Other fields cost
//! no memory and no stack, known ones nest at most 128 deep (serde_json's limit), and a known field given twice is an
//! error: which one is meant cannot be told.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::error::quoted;
use super::{EventError, EventKind};

/// Every field that any shape reads.
const KNOWN: [&str; 20] = [
    "bucket",
    "code",
    "contentType",
    "content_type",
    "data",
    "data_base64",
    "datacontenttype",
    "generation",
    "methodName",
    "name",
    "protoPayload",
    "resourceName",
    "serviceName",
    "size",
    "source",
    "specversion",
    "status",
    "subject",
    "type",
    "uri",
];

/// The known fields of a JSON object.
#[derive(Debug, Default)]
pub(super) struct Object(BTreeMap<&'static str, Value>);

/// What a field holds.
#[derive(Debug)]
enum Value {
    Text(String),
    /// A number, as decimal digits.
    Number(String),
    Object(Object),
    /// Something no field of an event holds, in words.
    Other(&'static str),
}

impl Object {
    /// Reads data that must be one JSON object.
    pub(super) fn parse(data: &[u8]) -> Result<Self, serde_json::Error> {
        match serde_json::from_slice(data)? {
            Value::Object(object) => Ok(object),
            other => Err(serde_json::Error::custom(format_args!("it is {}", other.describe()))),
        }
    }

    /// Whether the field is there and not null.
    pub(super) fn has(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    /// A field that must be a string if it is there; `field` is its name in an error.
    pub(super) fn text(&self, kind: EventKind, key: &str, field: &'static str) -> Result<Option<&str>, EventError> {
        match self.0.get(key) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(other) => Err(EventError::Malformed { kind, field, found: other.describe(), expected: "a string" }),
        }
    }

    /// A field that must be a number, or a string, if it is there: its text.
    pub(super) fn digits(&self, kind: EventKind, key: &str, field: &'static str) -> Result<Option<&str>, EventError> {
        match self.0.get(key) {
            None => Ok(None),
            Some(Value::Text(text) | Value::Number(text)) => Ok(Some(text)),
            Some(other) => {
                Err(EventError::Malformed { kind, field, found: other.describe(), expected: "a number or a string" })
            }
        }
    }

    /// A field that must be an object if it is there.
    pub(super) fn object(&self, kind: EventKind, key: &str, field: &'static str) -> Result<Option<&Self>, EventError> {
        match self.0.get(key) {
            None => Ok(None),
            Some(Value::Object(object)) => Ok(Some(object)),
            Some(other) => Err(EventError::Malformed { kind, field, found: other.describe(), expected: "an object" }),
        }
    }
}

impl Value {
    fn describe(&self) -> String {
        match self {
            Self::Text(text) => quoted(text),
            Self::Number(digits) => digits.clone(),
            Self::Object(_) => "an object".into(),
            Self::Other(what) => (*what).into(),
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.into()))
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(Value::Text(text))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Number(number.to_string()))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Number(number.to_string()))
    }

    /// Some senders write every number as a float (`1.796057584033775e15`), which is exact up to 2^53.
    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        const EXACT: f64 = 9_007_199_254_740_992.0;
        if number.abs() < EXACT {
            Ok(Value::Number(number.to_string()))
        } else {
            Ok(Value::Other("a float too large to be exact"))
        }
    }

    fn visit_bool<E>(self, _: bool) -> Result<Value, E> {
        Ok(Value::Other("a boolean"))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Other("null"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Value::Other("an array"))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut fields = BTreeMap::new();
        while let Some(Key(key)) = entries.next_key()? {
            let Some(key) = key else {
                entries.next_value::<IgnoredAny>()?;
                continue;
            };
            let Some(value) = entries.next_value::<Option<Value>>()? else { continue };
            if fields.insert(key, value).is_some() {
                return Err(A::Error::custom(format_args!("field {key} is given twice")));
            }
        }
        Ok(Value::Object(Object(fields)))
    }
}

/// A field's name, if it is a known one.
struct Key(Option<&'static str>);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(KeyVisitor)
    }
}

struct KeyVisitor;

impl Visitor<'_> for KeyVisitor {
    type Value = Key;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Key, E> {
        Ok(Key(KNOWN.into_iter().find(|known| *known == name)))
    }
}
