//! What `stoker label` and `stoker demo` take: files, folders, objects.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail, ensure};
use bytes::Bytes;

use stoker::app::AppError;
use stoker::clients::Connector;
use stoker::config::LabelConfig;
use stoker::event::{Failure, FailureCode, ObjectId, printable};
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
            Self::File(path) => printable(&path.to_string_lossy()).fmt(f),
            Self::Object(object) => object.fmt(f),
        }
    }
}

/// What people named, folders replaced by the files below them, in the order of their names.
pub(super) struct Listing<T> {
    pub(super) found: Vec<T>,
    /// Entries below a named folder that cannot be used, and why.
    pub(super) left_out: Vec<String>,
}

impl Listing<Source> {
    /// What people named. What they named themselves must be there.
    pub(super) fn of(named: &[String]) -> anyhow::Result<Self> {
        let mut sources = Self { found: Vec::new(), left_out: Vec::new() };
        for name in named {
            match name.strip_prefix("gs://") {
                Some(rest) => sources.found.push(object(name, rest)?),
                None => {
                    let below = Listing::below(Path::new(name))?;
                    sources.found.extend(below.found.into_iter().map(Source::File));
                    sources.left_out.extend(below.left_out);
                }
            }
        }
        Ok(sources)
    }
}

impl Listing<PathBuf> {
    /// The file at `path`, or all files below the folder at `path` but hidden ones.
    pub(super) fn below(path: &Path) -> anyhow::Result<Self> {
        let mut files = Self { found: Vec::new(), left_out: Vec::new() };
        let about = path.metadata().with_context(|| format!("cannot read {}", path.display()))?;
        if about.is_dir() {
            files.list(path).with_context(|| format!("cannot list {}", path.display()))?;
            ensure!(!files.found.is_empty() || !files.left_out.is_empty(), "there is no file in {}", path.display());
        } else {
            files.found.push(path.to_owned());
        }
        Ok(files)
    }

    fn list(&mut self, folder: &Path) -> std::io::Result<()> {
        let mut entries = folder.read_dir()?.collect::<Result<Vec<_>, _>>()?;
        entries.sort_by_key(std::fs::DirEntry::file_name);
        for entry in entries {
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let path = entry.path();
            let linked = entry.file_type().is_ok_and(|kind| kind.is_symlink());
            let listed = match path.metadata() {
                Ok(about) if about.is_file() => {
                    self.found.push(path);
                    continue;
                }
                Ok(about) if about.is_dir() && linked => Err("a link to a folder is not followed".to_owned()),
                Ok(about) if about.is_dir() => self.list(&path).map_err(|error| error.to_string()),
                Ok(_) => Err("it is no regular file".to_owned()),
                Err(error) => Err(error.to_string()),
            };
            if let Err(problem) = listed {
                self.left_out.push(format!("{}: {problem}", path.display()));
            }
        }
        Ok(())
    }
}

/// Tells of an entry that is left out.
pub(super) fn warn(problem: &str) {
    eprintln!("warning: left out {}", printable(problem));
}

fn object(name: &str, rest: &str) -> anyhow::Result<Source> {
    match rest.split_once('/') {
        Some((bucket, object)) if !bucket.is_empty() && !object.is_empty() && !object.ends_with('/') => {
            Ok(Source::Object(ObjectId { bucket: bucket.into(), name: object.into(), generation: None }))
        }
        _ => bail!("{name} names no object: give gs://BUCKET/NAME"),
    }
}

/// Why there is nothing to decode.
pub(super) enum Unread {
    /// The source's own failed result.
    Failed(Failure),
    /// No result: it could not be read now.
    Unreadable(anyhow::Error),
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

    pub(super) async fn read(&self, source: &Source) -> Result<Bytes, Unread> {
        match (source, &self.fetcher) {
            (Source::File(path), _) => read_file(path, self.max_bytes).await,
            (Source::Object(object), Some(fetcher)) => match fetcher.fetch(object).await {
                Ok(fetched) => Ok(fetched.bytes),
                Err(error) => Err(match error.failure_code() {
                    Some(code) => Unread::Failed(Failure::new(code, error.to_string())),
                    None => Unread::Unreadable(anyhow!("{object}: {error}")),
                }),
            },
            (Source::Object(object), None) => Err(Unread::Unreadable(anyhow!("{object}: no Cloud Storage client"))),
        }
    }
}

/// A file's bytes, its size checked first.
pub(super) async fn read_file(path: &Path, limit: u64) -> Result<Bytes, Unread> {
    let unreadable = |error| Unread::Unreadable(anyhow!("{}: {error}", path.display()));
    match tokio::fs::metadata(path).await.map_err(unreadable)?.len() {
        0 => Err(Unread::Failed(Failure::new(FailureCode::EmptyObject, "the file is empty"))),
        bytes if bytes > limit => {
            let problem = format!("the file has {bytes} bytes, over the limit of {limit} (--max-object-bytes)");
            Err(Unread::Failed(Failure::new(FailureCode::ObjectTooLarge, problem)))
        }
        _ => Ok(tokio::fs::read(path).await.map_err(unreadable)?.into()),
    }
}
