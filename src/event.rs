//! Upload events in, results out.

use std::fmt;

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

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gs://{}/{}", self.bucket, self.name)?;
        match self.generation {
            Some(generation) => write!(f, "#{generation}"),
            None => Ok(()),
        }
    }
}
