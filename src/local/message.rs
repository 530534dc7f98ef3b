//! A published message and the limits that Pub/Sub sets to it.

use std::collections::BTreeMap;
use std::time::SystemTime;

use bytes::Bytes;

use super::error::Error;

/// Most bytes of one message, data and attributes together.
const MESSAGE_BYTES: usize = 10_000_000;
/// Most messages of one Publish.
const MESSAGES: usize = 1000;
/// Most attributes of a message.
const ATTRIBUTES: usize = 100;
/// Most bytes of an attribute's key.
const KEY_BYTES: usize = 256;
/// Most bytes of an attribute's value.
const VALUE_BYTES: usize = 1024;

/// A message that a topic accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The service's id for it.
    pub id: String,
    /// Its attributes.
    pub attributes: BTreeMap<String, String>,
    /// Its data; may be empty.
    pub data: Bytes,
    /// When it was accepted.
    pub published: SystemTime,
}

/// A message on its way to a topic.
#[derive(Clone, Debug, Default)]
pub(super) struct Draft {
    pub(super) attributes: BTreeMap<String, String>,
    pub(super) data: Bytes,
}

impl Draft {
    /// Bytes that count against the limits.
    pub(super) fn bytes(&self) -> usize {
        self.data.len() + self.attributes.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>()
    }

    fn check(&self) -> Result<(), Error> {
        let invalid = |what: String| Err(Error::Invalid(what));
        if self.data.is_empty() && self.attributes.is_empty() {
            return invalid("a message needs data or an attribute".to_owned());
        }
        if self.bytes() > MESSAGE_BYTES {
            return invalid(format!("a message of {} bytes is over {MESSAGE_BYTES}", self.bytes()));
        }
        if self.attributes.len() > ATTRIBUTES {
            return invalid(format!("{} attributes are over {ATTRIBUTES}", self.attributes.len()));
        }
        match self.attributes.iter().find(|(key, value)| !key_is_allowed(key) || value.len() > VALUE_BYTES) {
            Some((key, _)) => invalid(format!("attribute {key:?} is not allowed")),
            None => Ok(()),
        }
    }
}

/// Names that begin with `goog` are Google's; of them a publisher may set only the trace context.
fn key_is_allowed(key: &str) -> bool {
    (1..=KEY_BYTES).contains(&key.len()) && (!key.starts_with("goog") || key.starts_with("googclient_"))
}

/// Whether one Publish may carry these messages.
pub(super) fn check(drafts: &[Draft]) -> Result<(), Error> {
    if drafts.is_empty() || drafts.len() > MESSAGES {
        return Err(Error::Invalid(format!("{} messages: 1 to {MESSAGES} are allowed", drafts.len())));
    }
    drafts.iter().try_for_each(Draft::check)?;
    let bytes: usize = drafts.iter().map(Draft::bytes).sum();
    if bytes > MESSAGE_BYTES {
        return Err(Error::Invalid(format!("a request of {bytes} bytes is over {MESSAGE_BYTES}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(attributes: &[(&str, &str)], bytes: usize) -> Draft {
        let attributes = attributes.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Draft { attributes, data: vec![0; bytes].into() }
    }

    #[test]
    fn limits_are_those_of_the_service() {
        assert!(check(&[draft(&[], 10_000_000)]).is_ok());
        assert!(check(&[draft(&[], 10_000_001)]).is_err());
        assert!(check(&[draft(&[], 6_000_000), draft(&[], 6_000_000)]).is_err());
        assert!(check(&[draft(&[], 0)]).is_err());
        assert!(check(&[]).is_err());
        assert!(check(&vec![draft(&[], 1); 1001]).is_err());
        assert!(check(&[draft(&[("googclient_traceparent", "00-1-2-01"), ("a", "b")], 0)]).is_ok());
        assert!(check(&[draft(&[("google", "b")], 0)]).is_err());
        assert!(check(&[draft(&[("a", &"b".repeat(1025))], 0)]).is_err());
    }
}
