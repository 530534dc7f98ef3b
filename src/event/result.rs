//! The result of one object, as it is published: JSON data and, in `result_attributes`, message attributes.
//!
//! `docs/results.md` documents it with examples that the tests read back. Subscribers depend on it: fields are added,
//! never renamed, and the codes of a failure are a closed list.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{EventKind, ObjectId};
use crate::image;
use crate::model::labels;

/// The outcome of one object: its labels, or why it has none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LabelResult {
    /// See [`result_id`](super::result_id) and [`unreadable_id`](super::unreadable_id).
    pub id: String,
    /// Whether there are labels.
    pub status: Status,
    /// The object; missing only when the event could not be read.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub object: Option<ObjectInfo>,
    /// The decoded image; missing when there was none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub image: Option<ImageInfo>,
    /// Labels, the most likely first; missing when the status is failed.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub labels: Vec<Label>,
    /// The features that the model's last layer reads, one value each; missing where its bundle asks for none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub embedding: Option<Vec<f32>>,
    /// What labelled it.
    pub model: ModelInfo,
    /// The message that asked for it.
    pub event: EventInfo,
    /// Where the time went.
    pub timing_ms: Timing,
    /// Who did the work.
    pub worker: WorkerInfo,
    /// Why there are no labels; missing when the status is labeled.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<Failure>,
}

impl LabelResult {
    /// The data of the published message. Scores must be finite.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain structs with string keys always serialise")
    }
}

/// Whether an object was labelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// There are labels.
    Labeled,
    /// There are none, and trying again would not help.
    Failed,
}

impl Status {
    /// The name in results, logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Labeled => "labeled",
            Self::Failed => "failed",
        }
    }
}

/// The object that a result is about. 64-bit numbers are strings: JSON readers lose digits of numbers over 2^53.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectInfo {
    /// Bucket name.
    pub bucket: String,
    /// Object name.
    pub name: String,
    /// The generation that was read; missing only when the event carried none and nothing was read.
    #[serde(skip_serializing_if = "Option::is_none", default, with = "text_of")]
    pub generation: Option<i64>,
    /// Bytes stored; missing when neither the event nor a read told.
    #[serde(skip_serializing_if = "Option::is_none", default, with = "text_of")]
    pub size: Option<u64>,
    /// Content type that the uploader declared; what the bytes are is in [`ImageInfo::format`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub content_type: Option<String>,
}

impl From<&ObjectId> for ObjectInfo {
    fn from(id: &ObjectId) -> Self {
        let ObjectId { bucket, name, generation } = id.clone();
        Self { bucket, name, generation, size: None, content_type: None }
    }
}

/// The image as it was found in the object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageInfo {
    /// Format by its content: `jpeg`, `png`, …
    pub format: String,
    /// Width in pixels as stored, before the orientation is applied.
    pub width: u32,
    /// Height in pixels as stored, before the orientation is applied.
    pub height: u32,
    /// EXIF orientation, 1 to 8; 1 where the image states none.
    pub orientation: u8,
    /// Whether the image ended early and what was left of it was labelled.
    pub truncated: bool,
}

/// One label.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Label {
    /// The class's name in the model's list.
    pub name: String,
    /// The class's index in the model's list, from 0.
    pub index: u32,
    /// Probability, 0 to 1.
    pub score: f32,
}

/// The model that a result comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelInfo {
    /// Name in the model's bundle.
    pub name: String,
    /// Digest of the bundle: `sha256:…`.
    pub digest: String,
    /// Device it ran on: `CPU`, `NVIDIA L4`.
    pub device: String,
}

/// The message that asked for a result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventInfo {
    /// Its shape; missing when it fits none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub kind: Option<EventKind>,
    /// Its id in its topic.
    pub message_id: String,
    /// When it was published: RFC 3339, UTC.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub published_at: Option<String>,
    /// The delivery attempt, from 1; missing where the subscription has no dead-letter policy.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub attempt: Option<u32>,
}

/// Milliseconds by stage; a stage that was not reached is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timing {
    /// Reading the object.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub fetch: Option<u64>,
    /// Decoding and resizing the image.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub decode: Option<u64>,
    /// Waiting for a batch to leave.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub wait: Option<u64>,
    /// The batch on the device.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub infer: Option<u64>,
    /// From the message's arrival to this result.
    pub total: u64,
}

/// The worker that made a result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerInfo {
    /// Version of the program.
    pub version: String,
    /// Which instance of the pool.
    pub instance: String,
}

/// Why an object has no labels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// For programs.
    pub code: FailureCode,
    /// For people, at most [`Failure::MAX_MESSAGE_BYTES`].
    pub message: String,
}

impl Failure {
    /// Most bytes of a message: some quote foreign text.
    pub const MAX_MESSAGE_BYTES: usize = 1024;

    /// Keeps as many whole characters of the message as fit.
    pub fn new(code: FailureCode, message: impl Into<String>) -> Self {
        let mut message = message.into();
        message.truncate(message.floor_char_boundary(Self::MAX_MESSAGE_BYTES));
        Self { code, message }
    }
}

/// The closed list of reasons why an object has no labels. All are permanent for this generation of the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureCode {
    /// The message fits no event shape, or contradicts itself.
    UnreadableEvent,
    /// The object, or the generation that the event is about, does not exist any more.
    ObjectGone,
    /// The object holds no bytes.
    EmptyObject,
    /// The object is larger than the worker reads.
    ObjectTooLarge,
    /// The object's Content-Encoding is unknown, or its bytes are not encoded that way.
    BadContentEncoding,
    /// The bytes are no image.
    NotAnImage,
    /// The bytes are an image of a format that is not decoded.
    UnsupportedFormat,
    /// The image has more pixels than the worker decodes.
    TooManyPixels,
    /// The image has more frames, metadata or scans than the worker reads, or takes too long to decode.
    TooComplex,
    /// The image ends before enough of it to label.
    TruncatedImage,
    /// The image cannot be decoded.
    CorruptImage,
    /// The model's answer is no number: its arithmetic overflows on this image.
    NotFinite,
}

impl FailureCode {
    /// Every code.
    pub const ALL: [Self; 12] = [
        Self::UnreadableEvent,
        Self::ObjectGone,
        Self::EmptyObject,
        Self::ObjectTooLarge,
        Self::BadContentEncoding,
        Self::NotAnImage,
        Self::UnsupportedFormat,
        Self::TooManyPixels,
        Self::TooComplex,
        Self::TruncatedImage,
        Self::CorruptImage,
        Self::NotFinite,
    ];

    /// The name in results, logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UnreadableEvent => "unreadable_event",
            Self::ObjectGone => "object_gone",
            Self::EmptyObject => "empty_object",
            Self::ObjectTooLarge => "object_too_large",
            Self::BadContentEncoding => "bad_content_encoding",
            Self::NotAnImage => "not_an_image",
            Self::UnsupportedFormat => "unsupported_format",
            Self::TooManyPixels => "too_many_pixels",
            Self::TooComplex => "too_complex",
            Self::TruncatedImage => "truncated_image",
            Self::CorruptImage => "corrupt_image",
            Self::NotFinite => "not_finite",
        }
    }
}

impl From<image::ImageInfo> for ImageInfo {
    fn from(info: image::ImageInfo) -> Self {
        let image::ImageInfo { format, width, height, orientation, truncated } = info;
        Self { format: format.to_string(), width, height, orientation, truncated }
    }
}

impl From<labels::Label> for Label {
    fn from(label: labels::Label) -> Self {
        let labels::Label { name, index, score } = label;
        Self { name, index: u32::try_from(index).unwrap_or(u32::MAX), score }
    }
}

impl fmt::Display for FailureCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A number as a JSON string.
mod text_of {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<N: Display, S: Serializer>(number: &Option<N>, to: S) -> Result<S::Ok, S::Error> {
        match number {
            Some(number) => to.collect_str(number),
            None => to.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, N, D>(from: D) -> Result<Option<N>, D::Error>
    where
        N: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| text.parse().map_err(D::Error::custom)).transpose()
    }
}
