//! What `stoker label` and `stoker demo` take: files, folders, objects.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use bytes::Bytes;

use stoker::app::AppError;
use stoker::clients::Connector;
use stoker::config::LabelConfig;
use stoker::event::{Failure, FailureCode, ObjectId};
use stoker::pipeline::Fetcher;

/// One image to label.
#[derive(Clone, Debug)]
pub(super) enum Source {
    File(PathBuf),
    Object(ObjectId),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Object(object) => object.fmt(f),
        }
    }
}

impl Source {
    /// What people named, folders replaced by the files below them, in the order of their names.
    pub(super) fn expand(named: &[String]) -> anyhow::Result<Vec<Self>> {
        let mut sources = Vec::new();
        for name in named {
            match name.strip_prefix("gs://") {
                Some(rest) => sources.push(Self::object(name, rest)?),
                None => files(Path::new(name), &mut |file| sources.push(Self::File(file)))?,
            }
        }
        Ok(sources)
    }

    fn object(name: &str, rest: &str) -> anyhow::Result<Self> {
        match rest.split_once('/') {
            Some((bucket, object)) if !bucket.is_empty() && !object.is_empty() && !object.ends_with('/') => {
                Ok(Self::Object(ObjectId { bucket: bucket.into(), name: object.into(), generation: None }))
            }
            _ => bail!("{name} names no object: give gs://BUCKET/NAME"),
        }
    }
}

/// Calls `found` with `path` if it is a file, or with every file below it; hidden ones are left out.
pub(super) fn files(path: &Path, found: &mut impl FnMut(PathBuf)) -> anyhow::Result<()> {
    let shown = path.display();
    if !path.metadata().with_context(|| format!("cannot read {shown}"))?.is_dir() {
        found(path.to_owned());
        return Ok(());
    }
    let listed = path.read_dir().with_context(|| format!("cannot list {shown}"))?;
    let mut entries = listed.collect::<Result<Vec<_>, _>>().with_context(|| format!("cannot list {shown}"))?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        // A folder linked to is left out: it may lead back here.
        let linked_folder = entry.file_type().is_ok_and(|kind| kind.is_symlink()) && entry.path().is_dir();
        if !entry.file_name().as_encoded_bytes().starts_with(b".") && !linked_folder {
            files(&entry.path(), found)?;
        }
    }
    Ok(())
}

/// Reads sources, each within the size limit.
pub(super) struct Reader {
    fetcher: Option<Fetcher>,
    max_bytes: u64,
}

impl Reader {
    /// A reader with a Cloud Storage client if any source needs one.
    pub(super) async fn new(sources: &[Source], config: &LabelConfig) -> anyhow::Result<Self> {
        let fetcher = if sources.iter().any(|source| matches!(source, Source::Object(_))) {
            let connector = Connector::for_storage(config.services.clone()).await.map_err(AppError::from)?;
            Some(Fetcher::new(connector.storage().await.map_err(AppError::from)?, &config.fetch))
        } else {
            None
        };
        Ok(Self { fetcher, max_bytes: config.fetch.max_object_bytes })
    }

    /// The source's bytes; or the failure that its result shows; or an error that ends the command.
    pub(super) async fn read(&self, source: &Source) -> Result<Bytes, anyhow::Result<Failure>> {
        match (source, &self.fetcher) {
            (Source::File(path), _) => read_file(path, self.max_bytes).await,
            (Source::Object(object), Some(fetcher)) => match fetcher.fetch(object).await {
                Ok(fetched) => Ok(fetched.bytes),
                Err(error) => Err(match error.failure_code() {
                    Some(code) => Ok(Failure::new(code, error.to_string())),
                    None => Err(anyhow::Error::new(error).context(format!("cannot read {object}"))),
                }),
            },
            (Source::Object(object), None) => Err(Err(anyhow::anyhow!("no Cloud Storage client for {object}"))),
        }
    }
}

async fn read_file(path: &Path, limit: u64) -> Result<Bytes, anyhow::Result<Failure>> {
    let unreadable = |error| Err(anyhow::Error::new(error).context(format!("cannot read {}", path.display())));
    let bytes = tokio::fs::metadata(path).await.map_err(unreadable)?.len();
    match bytes {
        0 => Err(Ok(Failure::new(FailureCode::EmptyObject, "the file is empty"))),
        _ if bytes > limit => {
            let problem = format!("the file has {bytes} bytes, over the limit of {limit} (--max-object-bytes)");
            Err(Ok(Failure::new(FailureCode::ObjectTooLarge, problem)))
        }
        _ => Ok(tokio::fs::read(path).await.map_err(unreadable)?.into()),
    }
}
