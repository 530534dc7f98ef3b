//! A bucket's own Pub/Sub notification (<https://cloud.google.com/storage/docs/pubsub-notifications>).
//!
//! The attributes name the object; the data, where the notification has any, adds size and content type and must
//! name the same object.

use std::collections::HashMap;

use super::draft::Draft;
use super::json::Object;
use super::{EventError, EventKind, EventType, Seen, Upload};

const KIND: EventKind = EventKind::GcsNotification;

pub(super) fn read(attributes: &HashMap<String, String>, data: &[u8]) -> Result<Seen, EventError> {
    let happened = attributes.get("eventType").cloned().unwrap_or_default();
    let event_type = EventType::ALL.into_iter().find(|known| happened == known.notification_name());
    Ok(Seen { kind: KIND, happened, event_type, upload: upload(attributes, data) })
}

fn upload(attributes: &HashMap<String, String>, data: &[u8]) -> Result<Upload, EventError> {
    let attribute = |key: &str| attributes.get(key).map(String::as_str);
    let mut draft = Draft::new(KIND);
    draft.bucket("attribute bucketId", attribute("bucketId"))?;
    draft.name("attribute objectId", attribute("objectId"))?;
    draft.generation("attribute objectGeneration", attribute("objectGeneration"))?;
    if attribute("payloadFormat") != Some("NONE") && !data.is_empty() {
        let payload = Object::parse(data).map_err(|source| EventError::NotJson { kind: KIND, source })?;
        object_resource(&mut draft, KIND, &payload)?;
    }
    draft.finish("attribute bucketId", "attribute objectId")
}

/// Cloud Storage's description of an object, which notifications and CloudEvents share.
pub(super) fn object_resource(draft: &mut Draft, kind: EventKind, payload: &Object) -> Result<(), EventError> {
    draft.bucket("data.bucket", payload.text(kind, "bucket", "data.bucket")?)?;
    draft.name("data.name", payload.text(kind, "name", "data.name")?)?;
    draft.generation("data.generation", payload.digits(kind, "generation", "data.generation")?)?;
    draft.size("data.size", payload.digits(kind, "size", "data.size")?)?;
    draft.content_type(payload.text(kind, "contentType", "data.contentType")?);
    Ok(())
}
