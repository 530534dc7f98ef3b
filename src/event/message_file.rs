//! Messages in a file, as people have them at hand: printed by a tool, or written by hand.
//!
//! Accepted, one JSON document a file:
//! - a message `{"attributes": {…}, "data": …}`;
//! - a push request `{"message": {…}, "subscription": "…"}`;
//! - a list of either, which is what `gcloud pubsub subscriptions pull --format=json` prints;
//! - anything else, JSON or not: the data of a message without attributes.
//!
//! A message's data is a JSON object or array as it stands, or a string: base64 where it reads as base64 (Pub/Sub's
//! own form), else the text itself.

use std::collections::HashMap;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde_json::{Map, Value};

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A message from a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileMessage {
    /// The message's id in its topic, where the file tells it.
    pub id: Option<String>,
    /// The message's attributes.
    pub attributes: HashMap<String, String>,
    /// The message's data.
    pub data: Vec<u8>,
}

/// A file that begins like messages but holds none.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("message {number}: {problem}")]
pub struct MessageFileError {
    /// Which message of the file, from 1.
    pub number: usize,
    /// What is wrong with it.
    pub problem: &'static str,
}

/// Reads the messages of a file.
///
/// # Errors
/// Where a message has attributes that are not all strings, or an entry of a list is no message.
pub fn parse_message_file(bytes: &[u8]) -> Result<Vec<FileMessage>, MessageFileError> {
    let raw = || vec![FileMessage { id: None, attributes: HashMap::new(), data: bytes.into() }];
    match serde_json::from_slice(bytes) {
        Ok(Value::Array(entries)) => (1..).zip(entries).map(|(number, entry)| of_list(number, entry)).collect(),
        Ok(Value::Object(object)) => match message_of(object) {
            Some(message) => Ok(vec![read(1, message)?]),
            None => Ok(raw()),
        },
        Ok(_) | Err(_) => Ok(raw()),
    }
}

fn of_list(number: usize, entry: Value) -> Result<FileMessage, MessageFileError> {
    let problem = "it is no message: expected an object with message, attributes or data";
    let Value::Object(object) = entry else { return Err(MessageFileError { number, problem }) };
    let Some(message) = message_of(object) else { return Err(MessageFileError { number, problem }) };
    read(number, message)
}

/// The message in an envelope, or the message itself. A CloudEvent has data too, but is a message's data.
fn message_of(mut object: Map<String, Value>) -> Option<Map<String, Value>> {
    match object.remove("message") {
        Some(Value::Object(message)) => return Some(message),
        Some(_) => return None,
        None => {}
    }
    let is_message = object.contains_key("attributes") || object.contains_key("data");
    (is_message && !object.contains_key("specversion")).then_some(object)
}

fn read(number: usize, mut message: Map<String, Value>) -> Result<FileMessage, MessageFileError> {
    let id = ["messageId", "message_id"].into_iter().find_map(|key| match message.get(key) {
        Some(Value::String(id)) => Some(id.clone()),
        _ => None,
    });
    let attributes = match message.remove("attributes") {
        None | Some(Value::Null) => HashMap::new(),
        Some(Value::Object(entries)) => {
            let problem = "an attribute is not a string";
            let text = |(key, value)| match value {
                Value::String(value) => Ok((key, value)),
                _ => Err(MessageFileError { number, problem }),
            };
            entries.into_iter().map(text).collect::<Result<_, _>>()?
        }
        Some(_) => return Err(MessageFileError { number, problem: "its attributes are not an object of strings" }),
    };
    let data = match message.remove("data") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(text)) => BASE64.decode(&text).unwrap_or_else(|_| text.into_bytes()),
        Some(value) => value.to_string().into_bytes(),
    };
    Ok(FileMessage { id, attributes, data })
}
