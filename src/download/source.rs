//! Where a model comes from: `builtin`, a directory, or a place in Cloud Storage.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::event::printable;

/// Where a model comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelSource {
    /// Compiled in.
    Builtin,
    /// A directory that holds a bundle.
    Directory(PathBuf),
    /// A bundle in Cloud Storage.
    Bucket(Location),
}

/// A place in Cloud Storage that holds a bundle's files: `gs://BUCKET` or `gs://BUCKET/PREFIX`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    bucket: String,
    /// Without a slash at its end; empty for a bundle at the bucket's top.
    prefix: String,
}

/// No place that could hold a model.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no model: give builtin, a directory or gs://BUCKET/PREFIX")]
pub struct UnknownSource(String);

impl FromStr for ModelSource {
    type Err = UnknownSource;

    fn from_str(text: &str) -> Result<Self, UnknownSource> {
        match text {
            "" => Err(UnknownSource(text.to_owned())),
            "builtin" => Ok(Self::Builtin),
            _ if text.starts_with("gs://") => text.parse().map(Self::Bucket),
            _ => Ok(Self::Directory(PathBuf::from(text))),
        }
    }
}

impl fmt::Display for ModelSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Builtin => f.write_str("builtin"),
            Self::Directory(path) => path.display().fmt(f),
            Self::Bucket(location) => location.fmt(f),
        }
    }
}

impl FromStr for Location {
    type Err = UnknownSource;

    /// `gs://BUCKET/PREFIX`, with or without slashes at its end.
    fn from_str(text: &str) -> Result<Self, UnknownSource> {
        let unknown = || UnknownSource(text.to_owned());
        let rest = text.strip_prefix("gs://").ok_or_else(unknown)?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() || bucket.contains(char::is_whitespace) || prefix.starts_with('/') {
            return Err(unknown());
        }
        Ok(Self { bucket: bucket.to_owned(), prefix: prefix.trim_end_matches('/').to_owned() })
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gs://{}", printable(&self.bucket))?;
        if self.prefix.is_empty() { Ok(()) } else { write!(f, "/{}", printable(&self.prefix)) }
    }
}

impl Location {
    /// Name of the bucket.
    #[must_use]
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// Name of the object that holds the bundle's file at `path`.
    #[must_use]
    pub fn object(&self, path: &str) -> String {
        if self.prefix.is_empty() { path.to_owned() } else { format!("{}/{path}", self.prefix) }
    }
}

#[cfg(test)]
mod tests {
    use super::ModelSource;

    #[test]
    fn a_prefix_may_end_in_a_slash_or_be_none() {
        for (text, object, shown) in [
            ("gs://b/models/cat", "models/cat/model.json", "gs://b/models/cat"),
            ("gs://b/models/cat/", "models/cat/model.json", "gs://b/models/cat"),
            ("gs://b", "model.json", "gs://b"),
            ("gs://b/", "model.json", "gs://b"),
        ] {
            let source: ModelSource = text.parse().unwrap();
            let ModelSource::Bucket(location) = &source else { panic!("{source:?}") };
            assert_eq!((location.object("model.json").as_str(), source.to_string().as_str()), (object, shown));
        }
        assert_eq!("builtin".parse(), Ok(ModelSource::Builtin));
        assert_eq!("./gs".parse(), Ok(ModelSource::Directory("./gs".into())));
        for text in ["", "gs://", "gs:///x", "gs://b//x"] {
            assert!(text.parse::<ModelSource>().is_err(), "{text}");
        }
    }
}
