//! The photos of the demo: compiled-in samples, or a folder's.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use bytes::Bytes;

use crate::cli::source;

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
pub(super) fn find(dir: Option<&Path>) -> anyhow::Result<Vec<Photo>> {
    let Some(dir) = dir else {
        let photo =
            |(name, bytes): (&str, &'static [u8])| Photo { name: name.to_owned(), content: Content::Sample(bytes) };
        return Ok(SAMPLES.into_iter().map(photo).collect());
    };
    let mut photos = Vec::new();
    source::files(dir, &mut |path| {
        let below = path.strip_prefix(dir).ok().filter(|rest| !rest.as_os_str().is_empty()).unwrap_or(&path);
        let name = below.to_string_lossy().into_owned();
        photos.push(Photo { name, content: Content::File(path) });
    })?;
    ensure!(!photos.is_empty(), "there is no file in {}", dir.display());
    Ok(photos)
}

impl Photo {
    pub(super) async fn read(&self) -> anyhow::Result<Bytes> {
        match &self.content {
            Content::Sample(bytes) => Ok(Bytes::from_static(bytes)),
            Content::File(path) => {
                let read = tokio::fs::read(path).await;
                Ok(read.with_context(|| format!("cannot read {}", path.display()))?.into())
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
