//! An audit log entry of Cloud Storage, as a log sink or an Eventarc trigger publishes it.
//!
//! `storage.objects.create` is logged for uploads and also for copies, rewrites and compositions, each of which is
//! logged as reads and one create (<https://cloud.google.com/storage/docs/audit-logging>). An entry carries no
//! generation, so the object is read as it is when its turn comes. An entry also records requests that were refused:
//! those uploaded nothing.

use super::draft::Draft;
use super::error::quoted;
use super::json::Object;
use super::{EventError, EventKind, EventType, Seen, Upload};

const KIND: EventKind = EventKind::AuditLog;

pub(super) fn read(entry: &Object) -> Result<Seen, EventError> {
    let Some(payload) = entry.object(KIND, "protoPayload", "protoPayload")? else {
        return Err(EventError::Missing { kind: KIND, field: "protoPayload" });
    };
    let Some(method) = payload.text(KIND, "methodName", "protoPayload.methodName")? else {
        return Err(EventError::Missing { kind: KIND, field: "protoPayload.methodName" });
    };
    let Some(service) = payload.text(KIND, "serviceName", "protoPayload.serviceName")? else {
        return Err(EventError::Missing { kind: KIND, field: "protoPayload.serviceName" });
    };
    let refusal = refusal(payload)?;
    let created = service == "storage.googleapis.com" && method == "storage.objects.create" && refusal.is_none();
    let happened = match refusal {
        None => format!("{method} of {service}"),
        Some(code) => format!("{method} of {service}, refused with status {code}"),
    };
    Ok(Seen { kind: KIND, happened, event_type: created.then_some(EventType::Finalize), upload: upload(payload) })
}

/// The status code of a request that failed.
fn refusal(payload: &Object) -> Result<Option<&str>, EventError> {
    let Some(status) = payload.object(KIND, "status", "protoPayload.status")? else { return Ok(None) };
    let code = status.digits(KIND, "code", "protoPayload.status.code")?;
    Ok(code.filter(|code| *code != "0"))
}

fn upload(payload: &Object) -> Result<Upload, EventError> {
    const FIELD: &str = "protoPayload.resourceName";
    let Some(resource) = payload.text(KIND, "resourceName", FIELD)? else {
        return Err(EventError::Missing { kind: KIND, field: FIELD });
    };
    let Some((bucket, name)) = split(resource) else {
        let expected = "projects/_/buckets/BUCKET/objects/NAME";
        return Err(EventError::Malformed { kind: KIND, field: FIELD, found: quoted(resource), expected });
    };
    let mut draft = Draft::new(KIND);
    draft.bucket(FIELD, Some(bucket))?;
    draft.name(FIELD, Some(name))?;
    draft.finish(FIELD, FIELD)
}

/// The name is all that follows: it may hold slashes, and any of the words before it.
fn split(resource: &str) -> Option<(&str, &str)> {
    let (_project, rest) = resource.strip_prefix("projects/")?.split_once('/')?;
    let (bucket, rest) = rest.strip_prefix("buckets/")?.split_once('/')?;
    Some((bucket, rest.strip_prefix("objects/")?))
}
