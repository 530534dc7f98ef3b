//! The photos of the demo: compiled-in samples, or a folder's.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use bytes::Bytes;

use crate::cli::source::Listing;

/// Sample photos, with their licences in `fixtures/README.md`.
const SAMPLES: [(&str, &[u8]); 7] = [
    ("astronaut.jpg", include_bytes!("../../../fixtures/photos/astronaut.jpg")),
    ("camera.jpg", include_bytes!("../../../fixtures/photos/camera.jpg")),
    ("chelsea.jpg", include_bytes!("../../../fixtures/photos/chelsea.jpg")),
    ("chelsea-rotated.jpg", include_bytes!("../../../fixtures/photos/chelsea-rotated.jpg")),
    ("coffee.jpg", include_bytes!("../../../fixtures/photos/coffee.jpg")),
    ("coffee-alpha.png", include_bytes!("../../../fixtures/photos/coffee-alpha.png")),
    ("rocket.jpg", include_bytes!("../../../fixtures/photos/rocket.jpg")),
];

/// A photo and the name its object gets.
pub(super) struct Photo {
    pub(super) name: String,
    content: Content,
}

enum Content {
    Sample(&'static [u8]),
    File(PathBuf),
}

/// All files below `dir`, or the samples. Files are read when their turn comes.
pub(super) fn find(dir: Option<&Path>) -> anyhow::Result<Listing<Photo>> {
    let Some(dir) = dir else {
        let found = SAMPLES.map(|(name, bytes)| Photo { name: name.to_owned(), content: Content::Sample(bytes) });
        return Ok(Listing { found: found.into(), left_out: Vec::new() });
    };
    let Listing { found: paths, mut left_out } = Listing::below(dir)?;
    let mut found = Vec::new();
    for path in paths {
        let below = path.strip_prefix(dir).ok().filter(|rest| !rest.as_os_str().is_empty()).unwrap_or(&path);
        match below.to_str() {
            Some(name) => found.push(Photo { name: name.to_owned(), content: Content::File(path) }),
            None => left_out.push(format!("{}: an object's name is UTF-8", path.display())),
        }
    }
    Ok(Listing { found, left_out })
}

impl Photo {
    /// The photo's bytes, if there are at most `limit`.
    pub(super) async fn read(&self, limit: usize) -> anyhow::Result<Bytes> {
        match &self.content {
            Content::Sample(bytes) => Ok(Bytes::from_static(bytes)),
            Content::File(path) => {
                let unreadable = || format!("{}: cannot be read", path.display());
                let size = tokio::fs::metadata(path).await.with_context(unreadable)?.len();
                ensure!(
                    size <= limit as u64,
                    "{}: over {limit} bytes, which is too large for the demo",
                    path.display()
                );
                Ok(tokio::fs::read(path).await.with_context(unreadable)?.into())
            }
        }
    }

    /// What an uploader would declare, by the name's ending.
    pub(super) fn content_type(&self) -> &'static str {
        let ending = Path::new(&self.name).extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        match ending.to_ascii_lowercase().as_str() {
            "jpg" | "jpeg" => "image/jpeg",
            "png" => "image/png",
            "webp" => "image/webp",
            "gif" => "image/gif",
            "bmp" => "image/bmp",
            "tif" | "tiff" => "image/tiff",
            _ => "application/octet-stream",
        }
    }
}
