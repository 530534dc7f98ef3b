//! The worker's own message, for pipelines that publish one themselves.
//!
//! `{"uri": "gs://bucket/name"}` or `{"bucket": "…", "name": "…"}`, with `generation`, `size` and `content_type` where
//! the sender knows them. Cloud Storage's object resource reads the same way. A URI is split at the first slash after
//! the bucket and the rest is the name, as it stands: `%20` and `#` are part of it.

use super::draft::Draft;
use super::error::quoted;
use super::json::Object;
use super::{EventError, EventKind, EventType, Seen, Upload};

const KIND: EventKind = EventKind::Direct;

/// A direct message asks for a label, so it counts as an upload.
pub(super) fn read(message: &Object) -> Result<Seen, EventError> {
    let happened = "asked for by its sender".into();
    Ok(Seen { kind: KIND, happened, event_type: Some(EventType::Finalize), upload: upload(message) })
}

fn upload(message: &Object) -> Result<Upload, EventError> {
    let mut draft = Draft::new(KIND);
    if let Some(uri) = message.text(KIND, "uri", "uri")? {
        let parts = uri.strip_prefix("gs://").and_then(|rest| rest.split_once('/'));
        let Some((bucket, name)) = parts else {
            let expected = "gs://BUCKET/NAME";
            return Err(EventError::Malformed { kind: KIND, field: "uri", found: quoted(uri), expected });
        };
        draft.bucket("uri", Some(bucket))?;
        draft.name("uri", Some(name))?;
    }
    draft.bucket("bucket", message.text(KIND, "bucket", "bucket")?)?;
    draft.name("name", message.text(KIND, "name", "name")?)?;
    draft.generation("generation", message.digits(KIND, "generation", "generation")?)?;
    draft.size("size", message.digits(KIND, "size", "size")?)?;
    let declared = message.text(KIND, "content_type", "content_type")?;
    draft.content_type(declared.or(message.text(KIND, "contentType", "contentType")?));
    draft.finish("bucket", "name")
}
