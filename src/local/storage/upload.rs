//! Uploads in one request: `uploadType=multipart` and `uploadType=media`. Resumable ones are not offered.

use axum::body::{Body, to_bytes};
use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use serde::Deserialize;

use super::{Answer, Peer, Storage, multipart, resource};
use crate::local::error::Error;
use crate::local::fault::Call;
use crate::local::object::Content;
use crate::local::store::Conditions;

/// What surrounds the media in a multipart body, at most.
const ENVELOPE_BYTES: usize = 64 << 10;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Wanted {
    upload_type: String,
    name: String,
}

/// The object resource as far as an upload may set it; the trailing checksums have the same fields.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    name: String,
    content_type: String,
    content_encoding: String,
    metadata: std::collections::BTreeMap<String, String>,
    crc32c: Option<String>,
}

pub(super) async fn upload(
    State(storage): State<Storage>,
    peer: Peer,
    Path(bucket): Path<String>,
    Query(wanted): Query<Wanted>,
    Query(conditions): Query<Conditions>,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let body = collect(body, storage.store.capacity().object).await?;
    let (name, content) = match wanted.upload_type.as_str() {
        "multipart" => from_parts(content_type, &body)?,
        "media" => (String::new(), Content::new(body, content_type)),
        other => return Err(Error::Invalid(format!("uploadType {other:?} is not offered here")).into()),
    };
    let name = if wanted.name.is_empty() { name } else { wanted.name };
    let fault = storage.faults.enter(Call::Upload, &format!("{bucket}/{name}"), &peer).await?;
    let object = storage.store.put(&bucket, &name, content, conditions)?;
    Storage::reply(&peer, fault, resource(&object)).await
}

/// Reads a body of which at most `most` bytes are media.
async fn collect(body: Body, most: usize) -> Result<Bytes, Error> {
    let most = most.saturating_add(ENVELOPE_BYTES);
    // A peer that breaks off gets no answer anyway, so every failure counts as a body that is too large.
    to_bytes(body, most).await.map_err(|error| Error::TooLarge(format!("upload of more than {most} bytes: {error}")))
}

/// Metadata, media and, maybe, checksums.
fn from_parts(content_type: &str, body: &Bytes) -> Result<(String, Content), Error> {
    let parts = multipart::parse(content_type, body)?;
    let [metadata, media, rest @ ..] = &parts[..] else {
        return Err(Error::Invalid("an upload has metadata and media".to_owned()));
    };
    let metadata = json(&metadata.body)?;
    let trailing = rest.first().map(|part| json(&part.body)).transpose()?;
    let promised = metadata.crc32c.or(trailing.and_then(|trailing| trailing.crc32c));
    check(promised.as_deref(), &media.body)?;
    let content_type = if metadata.content_type.is_empty() { &media.content_type } else { &metadata.content_type };
    let content = Content {
        data: media.body.clone(),
        content_type: content_type.clone(),
        content_encoding: metadata.content_encoding,
        metadata: metadata.metadata,
    };
    Ok((metadata.name, content))
}

fn json(body: &[u8]) -> Result<Metadata, Error> {
    serde_json::from_slice(body).map_err(|error| Error::Invalid(format!("object metadata: {error}")))
}

/// Refuses media that arrived damaged.
fn check(promised: Option<&str>, media: &[u8]) -> Result<(), Error> {
    let found = BASE64_STANDARD.encode(crc32c::crc32c(media).to_be_bytes());
    match promised {
        Some(promised) if promised != found => {
            Err(Error::Invalid(format!("crc32c {promised} promised, {found} found")))
        }
        Some(_) | None => Ok(()),
    }
}
