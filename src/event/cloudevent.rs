//! CloudEvents over Pub/Sub, binary and structured
//! (<https://github.com/googleapis/google-cloudevents/blob/main/docs/spec/pubsub.md>).
//!
//! Read are Cloud Storage's own types and audit log entries; any other type is something that the worker does not
//! label. The data names the object; where it is missing or not JSON, source and subject do, then without generation.

use std::collections::HashMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::draft::Draft;
use super::error::quoted;
use super::json::Object;
use super::{EventError, EventKind, EventType, Seen, Upload, audit, notification};

const AUDIT_LOG: &str = "google.cloud.audit.log.v1.written";
const BUCKET_SOURCE: &str = "//storage.googleapis.com/projects/_/buckets/";
const OBJECT_SUBJECT: &str = "objects/";
const JSON_REMEDY: &str = "send application/json (Eventarc: --event-data-content-type=application/json)";

/// Reads the data of a message whose content type says that it is a whole CloudEvent.
pub(super) fn structured(content_type: &str, data: &[u8]) -> Result<Object, EventError> {
    let kind = EventKind::CloudEventStructured;
    if !matches!(media_type(content_type).as_str(), "application/cloudevents+json" | "application/cloudevents") {
        let found = format!("content-type {}", quoted(content_type));
        return Err(EventError::Unsupported { kind, found, remedy: "send application/cloudevents+json" });
    }
    Object::parse(data).map_err(|source| EventError::NotJson { kind, source })
}

pub(super) fn read_structured(event: &Object) -> Result<Seen, EventError> {
    let kind = EventKind::CloudEventStructured;
    check_version(kind, "specversion", event.digits(kind, "specversion", "specversion")?)?;
    let Some(ce_type) = event.text(kind, "type", "type")? else {
        return Err(EventError::Missing { kind, field: "type" });
    };
    let context = || -> Result<Context<'_>, EventError> {
        Ok(Context {
            kind,
            bucket: event.text(kind, "bucket", "bucket")?,
            source: event.text(kind, "source", "source")?,
            subject: event.text(kind, "subject", "subject")?,
        })
    };
    let media = event.text(kind, "datacontenttype", "datacontenttype")?;
    if ce_type == AUDIT_LOG {
        return match StructuredData::of(event, media)? {
            StructuredData::Inline(entry) => audit::read(entry),
            StructuredData::Encoded(entry) => audit::read(&entry),
            StructuredData::None => Err(no_audit_entry(media)),
        };
    }
    let upload = || match StructuredData::of(event, media)? {
        StructuredData::Inline(payload) => context()?.upload(Some(payload)),
        StructuredData::Encoded(payload) => context()?.upload(Some(&payload)),
        StructuredData::None => context()?.upload(None),
    };
    Ok(Seen { kind, happened: ce_type.into(), event_type: storage_type(ce_type), upload: upload() })
}

pub(super) fn read_binary(attributes: &HashMap<String, String>, data: &[u8]) -> Result<Seen, EventError> {
    let kind = EventKind::CloudEventBinary;
    let attribute = |key: &str| attributes.get(key).map(String::as_str);
    check_version(kind, "attribute ce-specversion", attribute("ce-specversion"))?;
    let Some(ce_type) = attribute("ce-type") else {
        return Err(EventError::Missing { kind, field: "attribute ce-type" });
    };
    let media = attribute("content-type").or(attribute("ce-datacontenttype"));
    let payload = |kind| {
        if data.is_empty() || !is_json(media) {
            return Ok(None);
        }
        Object::parse(data).map(Some).map_err(|source| EventError::NotJson { kind, source })
    };
    if ce_type == AUDIT_LOG {
        return match payload(EventKind::AuditLog)? {
            Some(entry) => audit::read(&entry),
            None => Err(no_audit_entry(media)),
        };
    }
    let context = Context {
        kind,
        bucket: attribute("ce-bucket"),
        source: attribute("ce-source"),
        subject: attribute("ce-subject"),
    };
    let upload = || context.upload(payload(kind)?.as_ref());
    Ok(Seen { kind, happened: ce_type.into(), event_type: storage_type(ce_type), upload: upload() })
}

/// The attributes of a CloudEvent that may name the object.
struct Context<'a> {
    kind: EventKind,
    bucket: Option<&'a str>,
    source: Option<&'a str>,
    subject: Option<&'a str>,
}

impl Context<'_> {
    fn upload(&self, payload: Option<&Object>) -> Result<Upload, EventError> {
        let mut draft = Draft::new(self.kind);
        if let Some(payload) = payload {
            notification::object_resource(&mut draft, self.kind, payload)?;
        }
        draft.bucket("CloudEvents bucket", self.bucket)?;
        draft.bucket("CloudEvents source", self.source.and_then(|source| source.strip_prefix(BUCKET_SOURCE)))?;
        // Only where the data names no object: a subject that crossed HTTP may come percent-encoded.
        if !draft.has_name() {
            draft.name("CloudEvents subject", self.subject.and_then(|subject| subject.strip_prefix(OBJECT_SUBJECT)))?;
        }
        draft.finish("the bucket (data.bucket or CloudEvents source)", "the name (data.name or CloudEvents subject)")
    }
}

/// The data of a structured event: in place, in base64, or none that is JSON.
enum StructuredData<'a> {
    Inline(&'a Object),
    Encoded(Object),
    None,
}

impl<'a> StructuredData<'a> {
    fn of(event: &'a Object, media: Option<&str>) -> Result<Self, EventError> {
        let kind = EventKind::CloudEventStructured;
        if !is_json(media) {
            return Ok(Self::None);
        }
        if let Some(payload) = event.object(kind, "data", "data")? {
            return Ok(Self::Inline(payload));
        }
        let Some(encoded) = event.text(kind, "data_base64", "data_base64")? else { return Ok(Self::None) };
        let bytes = STANDARD.decode(encoded).map_err(|_| EventError::Malformed {
            kind,
            field: "data_base64",
            found: quoted(encoded),
            expected: "base64",
        })?;
        Object::parse(&bytes).map(Self::Encoded).map_err(|source| EventError::NotJson { kind, source })
    }
}

fn storage_type(ce_type: &str) -> Option<EventType> {
    match ce_type.strip_prefix("google.cloud.storage.object.v1.")? {
        "finalized" => Some(EventType::Finalize),
        "metadataUpdated" => Some(EventType::MetadataUpdate),
        "deleted" => Some(EventType::Delete),
        "archived" => Some(EventType::Archive),
        _ => None,
    }
}

/// A sender that leaves the version out is understood; another major version is not.
fn check_version(kind: EventKind, field: &'static str, version: Option<&str>) -> Result<(), EventError> {
    match version {
        Some(version) if version != "1" && !version.starts_with("1.") => {
            Err(EventError::Malformed { kind, field, found: quoted(version), expected: "\"1.0\"" })
        }
        _ => Ok(()),
    }
}

fn no_audit_entry(media: Option<&str>) -> EventError {
    let found = match media {
        Some(media) if !is_json(Some(media)) => format!("data of type {}", quoted(media)),
        _ => "an event without data".into(),
    };
    EventError::Unsupported { kind: EventKind::AuditLog, found, remedy: JSON_REMEDY }
}

/// Whether data of this type is JSON; a missing type means that it is.
fn is_json(media: Option<&str>) -> bool {
    let Some(media) = media else { return true };
    let media = media_type(media);
    media == "application/json" || media == "text/json" || media.ends_with("+json")
}

/// `Application/JSON; charset=utf-8` → `application/json`.
fn media_type(text: &str) -> String {
    text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}
