//! Why a message cannot be read: which shape, which field, and what to do about it.

use super::{EventKind, MAX_ATTRIBUTES, MAX_ATTRIBUTES_BYTES, MAX_DATA_BYTES};

/// A message that is no readable event. Permanent: redelivery cannot mend it.
///
/// Values quoted from the message are cut to 80 characters.
#[derive(Debug, thiserror::Error)]
pub enum EventError {
    /// More data than Pub/Sub itself carries.
    #[error("the data is {bytes} bytes long, more than {MAX_DATA_BYTES}: send the object's name, not its content")]
    DataTooLarge {
        /// Length of the data.
        bytes: usize,
    },
    /// More attributes than Pub/Sub itself carries.
    #[error("there are {count} attributes, more than {MAX_ATTRIBUTES}")]
    TooManyAttributes {
        /// Number of attributes.
        count: usize,
    },
    /// Longer attributes than Pub/Sub itself carries.
    #[error("the attributes are {bytes} bytes long, more than {MAX_ATTRIBUTES_BYTES}")]
    AttributesTooLarge {
        /// Bytes of all keys and values.
        bytes: usize,
    },
    /// No shape fits.
    #[error("no event shape fits: {found}; the shapes are in docs/events.md")]
    Unrecognised {
        /// What there is instead.
        found: String,
    },
    /// The data of a recognised shape is not a JSON object.
    #[error("{kind}: the data is not a JSON object: {source}")]
    NotJson {
        /// The shape.
        kind: EventKind,
        /// Where and why reading stopped.
        source: serde_json::Error,
    },
    /// A variant of a shape that the worker does not read.
    #[error("{kind}: {found} cannot be read: {remedy}")]
    Unsupported {
        /// The shape.
        kind: EventKind,
        /// What the message uses.
        found: String,
        /// What the sender should do.
        remedy: &'static str,
    },
    /// A field that the shape needs is not there.
    #[error("{kind}: {field} is missing")]
    Missing {
        /// The shape.
        kind: EventKind,
        /// Where it would be.
        field: &'static str,
    },
    /// A field holds what it cannot hold.
    #[error("{kind}: {field} is {found}: expected {expected}")]
    Malformed {
        /// The shape.
        kind: EventKind,
        /// Where it is.
        field: &'static str,
        /// What it holds.
        found: String,
        /// What it may hold.
        expected: &'static str,
    },
    /// Two places of one message name different objects.
    #[error("{kind}: {first} is {first_value} but {second} is {second_value}: which object is meant?")]
    Disagreement {
        /// The shape.
        kind: EventKind,
        /// One place.
        first: &'static str,
        /// What it says.
        first_value: String,
        /// The other place.
        second: &'static str,
        /// What it says.
        second_value: String,
    },
}

impl EventError {
    /// The shape, where one was recognised.
    pub fn kind(&self) -> Option<EventKind> {
        match self {
            Self::DataTooLarge { .. }
            | Self::TooManyAttributes { .. }
            | Self::AttributesTooLarge { .. }
            | Self::Unrecognised { .. } => None,
            Self::NotJson { kind, .. }
            | Self::Unsupported { kind, .. }
            | Self::Missing { kind, .. }
            | Self::Malformed { kind, .. }
            | Self::Disagreement { kind, .. } => Some(*kind),
        }
    }
}

/// Foreign text in an error: quoted, escaped, cut.
pub(super) fn quoted(text: &str) -> String {
    const MOST: usize = 80;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{:?} (cut)", &text[..end]),
        None => format!("{text:?}"),
    }
}
