//! The pointer object: what it says, and how it is read.

use std::time::Duration;

use google_cloud_gax::retry_policy::{NeverRetry, RetryPolicyExt};
use google_cloud_storage::builder::storage::ReadObject;
use google_cloud_storage::client::Storage;
use google_cloud_storage::retry_policy::RetryableErrors;
use serde::Deserialize;
use tokio::time::timeout;

use super::Refusal;
use crate::download::Location;
use crate::event::ObjectId;

/// Largest pointer that is read, in bytes.
const MAX_BYTES: usize = 4096;

/// How long a read may take.
const DEADLINE: Duration = Duration::from_secs(10);

/// A model by its place and its digest.
///
/// ```json
/// {"model": "gs://models/cats/v3", "digest": "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"}
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pointer {
    /// Where the bundle is.
    pub model: Location,
    /// The digest of its `model.json`, `sha256:` and 64 lower-case hexadecimal digits.
    pub digest: String,
}

/// A pointer object that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PointerError {
    /// There is no such object.
    #[error("{object} does not exist")]
    Missing {
        /// The pointer object.
        object: ObjectId,
    },
    /// Cloud Storage does not give it out.
    #[error("{object} cannot be read")]
    Unreadable {
        /// The pointer object.
        object: ObjectId,
        /// What Cloud Storage answered.
        source: google_cloud_storage::Error,
    },
    /// It did not come in time.
    #[error("{object} was not read within {DEADLINE:?}")]
    TimedOut {
        /// The pointer object.
        object: ObjectId,
    },
    /// It is no pointer.
    #[error("{object} is no pointer: {problem}")]
    Invalid {
        /// The pointer object.
        object: ObjectId,
        /// What is wrong with it.
        problem: String,
    },
}

impl PointerError {
    /// Whether the object was read: another version of it may do, the same one will not.
    pub(super) fn is_about_content(&self) -> bool {
        match self {
            Self::Invalid { .. } => true,
            Self::Missing { .. } | Self::Unreadable { .. } | Self::TimedOut { .. } => false,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    model: String,
    digest: String,
}

impl Pointer {
    /// Reads a pointer: both fields and no other.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let Fields { model, digest } = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let hexadecimal = |digits: &str| digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
        let plain = digest.strip_prefix("sha256:").is_some_and(|digits| digits.len() == 64 && hexadecimal(digits));
        if !plain {
            return Err("`digest` is not sha256: and 64 lower-case hexadecimal digits".to_owned());
        }
        let model = model.parse().map_err(|_| "`model` is not gs://BUCKET/PREFIX".to_owned())?;
        Ok(Self { model, digest })
    }

    /// # Errors
    /// What is found at the pointer's place has another digest.
    pub(super) fn check(&self, found: &str) -> Result<(), Refusal> {
        if self.digest == found {
            return Ok(());
        }
        let (place, expected) = (self.model.to_string(), self.digest.clone());
        Err(Refusal::Digest { place, expected, found: found.to_owned() })
    }
}

/// Reads the pointer object when it has changed.
#[derive(Debug)]
pub(super) struct Reader {
    storage: Storage,
    object: ObjectId,
    quota_project: Option<String>,
    /// Generation that was read last.
    seen: Option<i64>,
}

impl Reader {
    pub(super) fn new(storage: Storage, object: ObjectId, quota_project: Option<String>) -> Self {
        Self { storage, object, quota_project, seen: None }
    }

    pub(super) fn object(&self) -> &ObjectId {
        &self.object
    }

    /// Reads the pointer at the start, through errors that pass.
    pub(super) async fn first(&mut self) -> Result<Pointer, PointerError> {
        let request = self.request().with_retry_policy(RetryableErrors.with_time_limit(DEADLINE));
        let changed = self.read(request).await?;
        changed.ok_or_else(|| PointerError::Missing { object: self.object.clone() })
    }

    /// What the pointer says, if it has changed since the last time. One attempt: the caller has its own pauses.
    pub(super) async fn changed(&mut self) -> Result<Option<Pointer>, PointerError> {
        let request = self.request().with_retry_policy(NeverRetry);
        self.read(request).await
    }

    fn request(&self) -> ReadObject {
        let mut read =
            self.storage.read_object(format!("projects/_/buckets/{}", self.object.bucket), &self.object.name);
        if let Some(seen) = self.seen {
            read = read.set_if_generation_not_match(seen);
        }
        if let Some(project) = &self.quota_project {
            read = read.with_quota_project(project);
        }
        read
    }

    async fn read(&mut self, request: ReadObject) -> Result<Option<Pointer>, PointerError> {
        let object = || self.object.clone();
        let read = async {
            let mut response = match request.send().await {
                Err(error) if error.http_status_code() == Some(304) => return Ok(None),
                response => response?,
            };
            let generation = response.object().generation;
            // A server that knows no preconditions.
            if self.seen == Some(generation) {
                return Ok(None);
            }
            let mut bytes = Vec::new();
            while let Some(chunk) = response.next().await.transpose()? {
                bytes.extend_from_slice(&chunk);
                if bytes.len() > MAX_BYTES {
                    break;
                }
            }
            Ok(Some((generation, bytes)))
        };
        let read = timeout(DEADLINE, read).await.map_err(|_| PointerError::TimedOut { object: object() })?;
        let read = read.map_err(|source: google_cloud_storage::Error| match source.http_status_code() {
            Some(404) => PointerError::Missing { object: object() },
            _ => PointerError::Unreadable { object: object(), source },
        })?;
        let Some((generation, bytes)) = read else { return Ok(None) };
        let pointer = match bytes.len() {
            over if over > MAX_BYTES => Err(format!("it has over {MAX_BYTES} bytes")),
            _ => Pointer::parse(&bytes),
        };
        let pointer = pointer.map_err(|problem| PointerError::Invalid { object: object(), problem });
        self.seen = Some(generation);
        pointer.map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::Pointer;

    const DIGEST: &str = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

    #[test]
    fn a_pointer_is_two_fields_and_nothing_else() {
        let pointer = Pointer::parse(format!(r#"{{"model": "gs://m/cats/v3/", "digest": "{DIGEST}"}}"#).as_bytes());
        let pointer = pointer.unwrap();
        assert_eq!((pointer.model.to_string().as_str(), pointer.digest.as_str()), ("gs://m/cats/v3", DIGEST));
        let digest = |digest: &str| format!(r#"{{"model": "gs://m/v3", "digest": "{digest}"}}"#);
        for (text, told) in [
            (String::new(), "EOF"),
            ("[]".to_owned(), "expected"),
            (format!(r#"{{"digest": "{DIGEST}"}}"#), "missing field `model`"),
            (r#"{"model": "gs://m/v3"}"#.to_owned(), "missing field `digest`"),
            (format!(r#"{{"model": "gs://m/v3", "digest": "{DIGEST}", "at": 1}}"#), "unknown field `at`"),
            (format!(r#"{{"model": "gs://m/v3", "model": "gs://m/v4", "digest": "{DIGEST}"}}"#), "duplicate field"),
            (format!(r#"{{"model": "models/v3", "digest": "{DIGEST}"}}"#), "`model`"),
            (format!("{} x", digest(DIGEST)), "trailing"),
            (digest(&DIGEST.to_uppercase()), "`digest`"),
            (digest(&DIGEST[..70]), "`digest`"),
            (digest(&DIGEST[7..]), "`digest`"),
        ] {
            let error = Pointer::parse(text.as_bytes()).unwrap_err();
            assert!(error.contains(told), "{text}: {error}");
        }
    }
}
