//! Model files on disk by their digest, so that a restart does not download them again.
//!
//! A file is looked at again in full before it is used: one that was changed or cut is removed and missing. Files appear by
//! a rename, whole or not at all, so that several workers may share a directory. The oldest go when the directory grows
//! over its limit. Nothing here fails a start: without a disk the model is in memory all the same.

use std::fs::{self, File, FileTimes};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use crate::model::FileSpec;

/// What a file is called while it is written.
const UNFINISHED: &str = "unfinished-";
/// A file that was not finished for this long belongs to a process that is gone.
const ABANDONED: Duration = Duration::from_secs(24 * 3600);

/// A directory of files by their digest.
#[derive(Clone, Debug)]
pub struct Cache {
    directory: Option<PathBuf>,
    max_bytes: u64,
}

/// A file of the directory.
struct Entry {
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
}

impl Cache {
    /// A cache in `directory`, which need not exist, of at most `max_bytes`; `None` keeps nothing.
    #[must_use]
    pub fn new(directory: Option<PathBuf>, max_bytes: u64) -> Self {
        Self { directory, max_bytes }
    }

    /// The file of this size and digest, read once.
    pub(super) fn get(&self, spec: &FileSpec) -> Option<Vec<u8>> {
        let path = self.directory.as_ref()?.join(&spec.sha256);
        match read(&path, spec) {
            Ok(bytes) => Some(bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!(file = %path.display(), %error, "cached model file is not usable; it is read again");
                remove(&path);
                None
            }
        }
    }

    /// Keeps a file of this digest, if it fits.
    pub(super) fn put(&self, spec: &FileSpec, bytes: &[u8]) {
        let Some(directory) = self.directory.as_ref().filter(|_| spec.size <= self.max_bytes) else { return };
        if let Err(error) = self.write(directory, spec, bytes) {
            let directory = directory.display();
            tracing::warn!(%directory, %error, "model file is not cached: the next start reads it again (--model-cache)");
        }
    }

    fn write(&self, directory: &Path, spec: &FileSpec, bytes: &[u8]) -> io::Result<()> {
        static WRITES: AtomicU64 = AtomicU64::new(0);
        fs::create_dir_all(directory)?;
        make_room(directory, self.max_bytes - spec.size)?;
        let write = WRITES.fetch_add(1, Ordering::Relaxed);
        // In another container the process may have the same number.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
        let unfinished = directory.join(format!("{UNFINISHED}{}-{now}-{write}-{}", std::process::id(), spec.sha256));
        let written = File::create_new(&unfinished)
            .and_then(|mut file| file.write_all(bytes))
            .and_then(|()| fs::rename(&unfinished, directory.join(&spec.sha256)));
        if written.is_err() {
            remove(&unfinished);
        }
        written
    }
}

fn read(path: &Path, spec: &FileSpec) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let mut bytes = Vec::new();
    let size = usize::try_from(spec.size).map_err(io::Error::other)?;
    bytes.try_reserve_exact(size)?;
    // One byte more shows a file that is too long.
    (&file).take(spec.size.saturating_add(1)).read_to_end(&mut bytes)?;
    spec.check("cached file", &bytes).map_err(io::Error::other)?;
    // The oldest is the one that was not used for longest. A directory that is read-only has no oldest.
    drop(file.set_times(FileTimes::new().set_modified(SystemTime::now())));
    Ok(bytes)
}

/// Removes the files that were not used for longest until the rest has at most `most` bytes.
fn make_room(directory: &Path, most: u64) -> io::Result<()> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        // What others put there is theirs.
        let digest = name.len() == 64 && name.bytes().all(|c| c.is_ascii_hexdigit());
        let Some(about) = entry.metadata().ok().filter(|about| about.is_file()) else { continue };
        let used = about.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        if digest {
            entries.push(Entry { path: entry.path(), bytes: about.len(), used });
        } else if name.starts_with(UNFINISHED) && used.elapsed().is_ok_and(|age| age > ABANDONED) {
            remove(&entry.path());
        }
    }
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.used));
    let mut kept = 0u64;
    for entry in entries {
        kept = kept.saturating_add(entry.bytes);
        if kept > most {
            tracing::info!(file = %entry.path.display(), bytes = entry.bytes, "removed from the model cache");
            remove(&entry.path);
        }
    }
    Ok(())
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(file = %path.display(), %error, "cannot be removed from the model cache");
    }
}
