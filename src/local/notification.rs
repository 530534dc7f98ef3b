//! What a bucket tells its topics about an object: the attributes and payload of a Cloud Storage notification.

use std::collections::BTreeMap;
use std::time::SystemTime;

use prost_types::Timestamp;

use super::message::Draft;
use super::object::Object;

/// What a notification carries besides its attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// The object's JSON resource.
    JsonApiV1,
    /// Nothing.
    None,
}

impl Payload {
    fn format(self) -> &'static str {
        match self {
            Self::JsonApiV1 => "JSON_API_V1",
            Self::None => "NONE",
        }
    }
}

/// A bucket's tie to a topic.
#[derive(Clone, Debug)]
pub(super) struct Config {
    /// `projects/_/buckets/B/notificationConfigs/N`.
    pub(super) name: String,
    pub(super) topic: String,
    pub(super) payload: Payload,
}

/// What happened to a generation of an object.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// It is there, in place of another one or not.
    Finalized { overwrote: Option<i64> },
    /// It is gone, because another one took its place or not.
    Deleted { overwritten_by: Option<i64> },
}

/// The message that `config` wants about `object`.
pub(super) fn notification(config: &Config, object: &Object, event: Event) -> Draft {
    let (kind, other) = match event {
        Event::Finalized { overwrote } => ("OBJECT_FINALIZE", overwrote.map(|other| ("overwroteGeneration", other))),
        Event::Deleted { overwritten_by } => {
            ("OBJECT_DELETE", overwritten_by.map(|other| ("overwrittenByGeneration", other)))
        }
    };
    let mut attributes = BTreeMap::new();
    let mut add = |key: &str, value: String| _ = attributes.insert(key.to_owned(), value);
    add("notificationConfig", config.name.clone());
    add("eventType", kind.to_owned());
    add("payloadFormat", config.payload.format().to_owned());
    add("bucketId", object.bucket.clone());
    add("objectId", object.name.clone());
    add("objectGeneration", object.generation.to_string());
    add("eventTime", Timestamp::from(SystemTime::now()).to_string());
    if let Some((key, generation)) = other {
        add(key, generation.to_string());
    }
    let data = match config.payload {
        Payload::JsonApiV1 => object.resource().to_string().into(),
        Payload::None => bytes::Bytes::new(),
    };
    Draft { attributes, data }
}
