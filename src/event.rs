//! Upload events in, results out.
//!
//! In: the attributes and the data of a Pub/Sub message, written by others. Out: the upload it announces, a reason
//! to skip it, or an [`EventError`] that says what is wrong with it; and, at the far end of the pipeline, the
//! [`LabelResult`] of an object.
//!
//! Everything here is pure: no input or output, no clock, no panic on any bytes. Memory is bounded by the size of the
//! message. Object names are opaque: never decoded, trimmed or normalised.
//!
//! A shape is recognised in `shape`, read in the file of its name, and judged by [`Filters`]. `intake` calls
//! [`read`], `publish` writes [`LabelResult`], `stoker explain` prints [`explain`]. The shapes are documented in
//! `docs/events.md`, the results in `docs/results.md`.

mod audit;
mod cloudevent;
mod direct;
mod draft;
mod error;
mod explain;
mod filters;
mod id;
mod json;
mod kinds;
mod message_file;
mod notification;
mod result;
mod result_attributes;
mod shape;

use std::collections::HashMap;
use std::fmt;

pub use error::EventError;
pub use explain::{Explanation, Verdict, explain};
pub use filters::Filters;
pub use id::{result_id, unreadable_id};
pub use kinds::{EventKind, EventType, SkipReason, UnknownEventType};
pub use message_file::{FileMessage, MessageFileError, parse_message_file};
pub use result::{
    EventInfo, Failure, FailureCode, ImageInfo, Label, LabelResult, ModelInfo, ObjectInfo, Status, Timing, WorkerInfo,
};

use shape::Shape;

/// Most bytes of message data that are looked at: the most that Pub/Sub carries.
pub const MAX_DATA_BYTES: usize = 10_000_000;
/// Most attributes of a message: Pub/Sub's own limit.
pub const MAX_ATTRIBUTES: usize = 100;
/// Most bytes of all keys and values together: Pub/Sub's limits of 100 attributes of 256 and 1024 bytes.
pub const MAX_ATTRIBUTES_BYTES: usize = MAX_ATTRIBUTES * (256 + 1024);

/// Reads a message: an upload to label, or a reason to skip it.
///
/// # Errors
/// [`EventError`] when the message is no event that the worker can read. It is permanent: the same message read again
/// gives the same error.
pub fn read(attributes: &HashMap<String, String>, data: &[u8], filters: &Filters) -> Result<Reading, EventError> {
    check_limits(attributes, data)?;
    let shape = Shape::detect(attributes, data)?;
    filters.judge(shape.read(attributes, data)?)
}

/// What a readable message means to the worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading {
    /// An object to label.
    Upload(Upload),
    /// Nothing to label; the message is acknowledged and counted by reason.
    Skip {
        /// Why.
        reason: SkipReason,
        /// The shape of the message.
        kind: EventKind,
        /// The object, where the message names one.
        object: Option<ObjectId>,
    },
}

/// An object that was uploaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upload {
    /// Which object. Its generation, where known, is the one to read: a newer one is another upload.
    pub object: ObjectId,
    /// The shape of the message that said so.
    pub kind: EventKind,
    /// Size in bytes, where the event tells it.
    pub size: Option<u64>,
    /// Content type as the uploader declared it, where the event tells it.
    pub content_type: Option<String>,
}

/// One version of one object in Cloud Storage.
///
/// The name is opaque: it is never decoded, trimmed or normalised.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ObjectId {
    /// Bucket name, without `gs://`.
    pub bucket: String,
    /// Object name, exactly as the event gives it.
    pub name: String,
    /// Generation that the event is about; `None` when its shape carries none (audit log, some direct messages).
    pub generation: Option<i64>,
}

/// For people: `gs://bucket/name#generation`, control characters escaped, so that a name can neither break a log line
/// nor steer a terminal.
impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gs://{}/{}", printable(&self.bucket), printable(&self.name))?;
        match self.generation {
            Some(generation) => write!(f, "#{generation}"),
            None => Ok(()),
        }
    }
}

/// What a shape says, before the filters judge it.
struct Seen {
    kind: EventKind,
    /// What happened, in the shape's own words.
    happened: String,
    /// `None` when it is nothing that happens to an object.
    event_type: Option<EventType>,
    upload: Result<Upload, EventError>,
}

fn check_limits(attributes: &HashMap<String, String>, data: &[u8]) -> Result<(), EventError> {
    if data.len() > MAX_DATA_BYTES {
        return Err(EventError::DataTooLarge { bytes: data.len() });
    }
    if attributes.len() > MAX_ATTRIBUTES {
        return Err(EventError::TooManyAttributes { count: attributes.len() });
    }
    let bytes = attributes.iter().map(|(key, value)| key.len() + value.len()).sum();
    if bytes > MAX_ATTRIBUTES_BYTES {
        return Err(EventError::AttributesTooLarge { bytes });
    }
    Ok(())
}

/// Foreign text for people: control characters escaped, so that it can neither break a line nor steer a terminal.
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}
