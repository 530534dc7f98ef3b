//! The closed lists by which events are told apart, each with its names in settings, results, logs and metrics.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The shape in which an event came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// A bucket's Pub/Sub notification.
    GcsNotification,
    /// A CloudEvent with its attributes in the message's.
    #[serde(rename = "cloudevent_binary")]
    CloudEventBinary,
    /// A CloudEvent that is all in the data.
    #[serde(rename = "cloudevent_structured")]
    CloudEventStructured,
    /// An audit log entry, bare or inside a CloudEvent of either mode.
    AuditLog,
    /// The worker's own message: an object's URI, or its bucket and name.
    Direct,
}

impl EventKind {
    /// Every kind.
    pub const ALL: [Self; 5] =
        [Self::GcsNotification, Self::CloudEventBinary, Self::CloudEventStructured, Self::AuditLog, Self::Direct];

    /// The name in results, logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::GcsNotification => "gcs_notification",
            Self::CloudEventBinary => "cloudevent_binary",
            Self::CloudEventStructured => "cloudevent_structured",
            Self::AuditLog => "audit_log",
            Self::Direct => "direct",
        }
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What happened to the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventType {
    /// New content: an upload, a copy, a composition, a rewrite or a restore.
    Finalize,
    /// New metadata on the same content.
    MetadataUpdate,
    /// The object is gone.
    Delete,
    /// The object became a noncurrent version.
    Archive,
}

impl EventType {
    /// Every type.
    pub const ALL: [Self; 4] = [Self::Finalize, Self::MetadataUpdate, Self::Delete, Self::Archive];

    /// The name in settings and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Finalize => "finalize",
            Self::MetadataUpdate => "metadata_update",
            Self::Delete => "delete",
            Self::Archive => "archive",
        }
    }

    /// The name in a notification's `eventType` attribute.
    pub(super) fn notification_name(self) -> &'static str {
        match self {
            Self::Finalize => "OBJECT_FINALIZE",
            Self::MetadataUpdate => "OBJECT_METADATA_UPDATE",
            Self::Delete => "OBJECT_DELETE",
            Self::Archive => "OBJECT_ARCHIVE",
        }
    }
}

impl fmt::Display for EventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A setting names no event type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown event type {0:?}: use finalize, metadata_update, delete or archive")]
pub struct UnknownEventType(String);

impl FromStr for EventType {
    type Err = UnknownEventType;

    /// Reads the name in settings, or Cloud Storage's own (`OBJECT_FINALIZE`).
    fn from_str(text: &str) -> Result<Self, UnknownEventType> {
        let known = Self::ALL.into_iter().find(|known| text == known.as_str() || text == known.notification_name());
        known.ok_or_else(|| UnknownEventType(text.into()))
    }
}

/// Why a message is acknowledged without a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SkipReason {
    /// Not one of the event types that the worker labels.
    EventType,
    /// An empty object whose name ends in `/`: how consoles draw folders.
    FolderPlaceholder,
    /// The object's name passes no prefix or no suffix of the filters.
    NameFilter,
    /// The object's content type passes none of the filters.
    ContentTypeFilter,
    /// The object's result was confirmed a moment ago: the event came again, or twice under different ids.
    Repeated,
}

impl SkipReason {
    /// Every reason.
    pub const ALL: [Self; 5] =
        [Self::EventType, Self::FolderPlaceholder, Self::NameFilter, Self::ContentTypeFilter, Self::Repeated];

    /// The name in logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::EventType => "event_type",
            Self::FolderPlaceholder => "folder_placeholder",
            Self::NameFilter => "name_filter",
            Self::ContentTypeFilter => "content_type_filter",
            Self::Repeated => "repeated",
        }
    }
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::EventType => "it is not an event of a type that is labelled",
            Self::FolderPlaceholder => "the object is an empty placeholder for a folder",
            Self::NameFilter => "the object's name does not pass the name filters",
            Self::ContentTypeFilter => "the object's content type does not pass the content type filters",
            Self::Repeated => "the object's result was confirmed a moment ago",
        })
    }
}
