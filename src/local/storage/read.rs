//! Reading an object: its contents with `alt=media`, its metadata otherwise.

use std::io;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, RANGE,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use serde::Deserialize;
use tokio_stream::StreamExt as _;

use super::{Answer, Peer, Storage, range, resource};
use crate::local::error::Error;
use crate::local::fault::{Call, Fault};
use crate::local::object::Object;
use crate::local::store::Conditions;

/// What a truncated body waits before it ends, so that the bytes before the end have left.
const FLUSH: Duration = Duration::from_millis(50);

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct View {
    alt: String,
}

pub(super) async fn get_object(
    State(storage): State<Storage>,
    peer: Peer,
    Path((bucket, name)): Path<(String, String)>,
    Query(view): Query<View>,
    Query(conditions): Query<Conditions>,
    headers: HeaderMap,
) -> Answer {
    let media = view.alt == "media";
    let call = if media { Call::Read } else { Call::Metadata };
    let fault = storage.faults.enter(call, &format!("{bucket}/{name}"), &peer).await?;
    let object = storage.store.get(&bucket, &name, conditions)?;
    if media { Ok(contents(&object, &headers, fault)?) } else { Ok(resource(&object).into_response()) }
}

fn contents(object: &Object, headers: &HeaderMap, fault: Option<Fault>) -> Result<Response, Error> {
    let data = &object.content.data;
    let asked = headers.get(RANGE).and_then(|value| value.to_str().ok());
    let range = asked.map(|header| range::parse(header, data.len())).transpose()?.flatten();
    let (status, bytes) = match &range {
        Some(range) => (StatusCode::PARTIAL_CONTENT, data.slice(range.clone())),
        None => (StatusCode::OK, data.clone()),
    };
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    let answer = response.headers_mut();
    describe(object, answer);
    answer.insert(CONTENT_LENGTH, bytes.len().into());
    if let Some(range) = range {
        insert(answer, CONTENT_RANGE, &format!("bytes {}-{}/{}", range.start, range.end - 1, data.len()));
    }
    *response.body_mut() = body(bytes, fault);
    Ok(response)
}

/// The headers that tell a reader about the object.
fn describe(object: &Object, headers: &mut HeaderMap) {
    let content = &object.content;
    let encoding = if content.content_encoding.is_empty() { "identity" } else { &content.content_encoding };
    insert(headers, CONTENT_TYPE, &content.content_type);
    insert(headers, ETAG, &object.etag());
    insert(headers, CACHE_CONTROL, "no-cache");
    insert(headers, ACCEPT_RANGES, "bytes");
    if !content.content_encoding.is_empty() {
        insert(headers, CONTENT_ENCODING, &content.content_encoding);
    }
    let google = [
        ("x-goog-generation", object.generation.to_string()),
        ("x-goog-metageneration", "1".to_owned()),
        ("x-goog-storage-class", "STANDARD".to_owned()),
        ("x-goog-stored-content-length", content.data.len().to_string()),
        ("x-goog-stored-content-encoding", encoding.to_owned()),
        ("x-goog-hash", format!("crc32c={}", object.crc32c_text())),
    ];
    for (name, value) in google {
        insert(headers, HeaderName::from_static(name), &value);
    }
    for (key, value) in &content.metadata {
        if let Ok(name) = HeaderName::from_bytes(format!("x-goog-meta-{key}").as_bytes()) {
            insert(headers, name, value);
        }
    }
}

/// Leaves out what no header can carry.
fn insert(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

fn body(bytes: Bytes, fault: Option<Fault>) -> Body {
    match fault {
        Some(Fault::Corrupt) => {
            let mut bytes = bytes.to_vec();
            if let Some(middle) = bytes.len().checked_sub(1).map(|last| last / 2) {
                bytes[middle] ^= 0x55;
            }
            bytes.into()
        }
        Some(Fault::Truncate(most)) => {
            let end = tokio_stream::once(()).then(|()| async {
                tokio::time::sleep(FLUSH).await;
                Err(io::Error::from(io::ErrorKind::UnexpectedEof))
            });
            Body::from_stream(first(bytes, most).chain(end))
        }
        Some(Fault::StallBody(most)) => Body::from_stream(first(bytes, most).chain(tokio_stream::pending())),
        Some(_) | None => bytes.into(),
    }
}

fn first(mut bytes: Bytes, most: usize) -> impl tokio_stream::Stream<Item = io::Result<Bytes>> {
    bytes.truncate(most);
    tokio_stream::once(Ok(bytes))
}
