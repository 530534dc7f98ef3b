//! Which shape a message has.
//!
//! The order matters: a shape that the attributes declare is taken at its word before the data is looked into.

use std::collections::HashMap;

use super::error::quoted;
use super::json::Object;
use super::{EventError, EventKind, Seen, audit, cloudevent, direct, notification};

/// A recognised shape, with the data where recognising it took reading the data.
pub(super) enum Shape {
    Notification,
    Structured(Object, &'static str),
    Binary,
    Audit(Object),
    Direct(Object),
}

impl Shape {
    pub(super) fn detect(attributes: &HashMap<String, String>, data: &[u8]) -> Result<Self, EventError> {
        let has = |key: &str| attributes.contains_key(key);
        if has("eventType") && has("bucketId") && has("objectId") {
            return Ok(Self::Notification);
        }
        let content_type = attributes.get("content-type").map(String::as_str).unwrap_or_default();
        if content_type.to_ascii_lowercase().starts_with("application/cloudevents") {
            let event = cloudevent::structured(content_type, data)?;
            return Ok(Self::Structured(event, "attribute content-type is application/cloudevents+json"));
        }
        if has("ce-type") {
            return Ok(Self::Binary);
        }
        if data.is_empty() {
            return Err(unrecognised(attributes, "there is no data".into()));
        }
        let object = match Object::parse(data) {
            Ok(object) => object,
            Err(error) => return Err(unrecognised(attributes, format!("the data is not a JSON object ({error})"))),
        };
        if object.has("specversion") {
            Ok(Self::Structured(object, "the data has specversion"))
        } else if object.has("protoPayload") {
            Ok(Self::Audit(object))
        } else if object.has("uri") || object.has("bucket") || object.has("name") {
            Ok(Self::Direct(object))
        } else {
            let found = "the data is a JSON object without specversion, protoPayload, uri, bucket and name";
            Err(unrecognised(attributes, found.into()))
        }
    }

    pub(super) fn read(&self, attributes: &HashMap<String, String>, data: &[u8]) -> Result<Seen, EventError> {
        match self {
            Self::Notification => notification::read(attributes, data),
            Self::Structured(event, _) => cloudevent::read_structured(event),
            Self::Binary => cloudevent::read_binary(attributes, data),
            Self::Audit(entry) => audit::read(entry),
            Self::Direct(message) => direct::read(message),
        }
    }

    /// The kind by its looks. A CloudEvent may turn out to hold an audit log entry.
    pub(super) fn kind(&self) -> EventKind {
        match self {
            Self::Notification => EventKind::GcsNotification,
            Self::Structured(..) => EventKind::CloudEventStructured,
            Self::Binary => EventKind::CloudEventBinary,
            Self::Audit(_) => EventKind::AuditLog,
            Self::Direct(_) => EventKind::Direct,
        }
    }

    /// What gave it away, for people.
    pub(super) fn evidence(&self) -> &'static str {
        match self {
            Self::Notification => "attributes eventType, bucketId and objectId are there",
            Self::Structured(_, evidence) => evidence,
            Self::Binary => "attribute ce-type is there",
            Self::Audit(_) => "the data has protoPayload",
            Self::Direct(_) => "the data has uri, bucket or name",
        }
    }
}

/// Names the part of a notification that is there, if one is: a forwarder that drops attributes is the usual cause.
fn unrecognised(attributes: &HashMap<String, String>, found: String) -> EventError {
    const MARKS: [&str; 3] = ["eventType", "bucketId", "objectId"];
    let (there, gone): (Vec<_>, Vec<_>) = MARKS.into_iter().partition(|key| attributes.contains_key(*key));
    let found = match there.first() {
        Some(_) => format!("{} without {} among the attributes, and {found}", there.join(", "), gone.join(", ")),
        None if attributes.is_empty() => format!("there are no attributes, and {found}"),
        None => {
            let mut keys: Vec<_> = attributes.keys().map(String::as_str).collect();
            keys.sort_unstable();
            format!("no attribute marks one (there is {}), and {found}", quoted(&keys.join(", ")))
        }
    };
    EventError::Unrecognised { found }
}
