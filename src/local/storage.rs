//! Cloud Storage's JSON API: uploads, reads, metadata, listings and deletions over HTTP.
//!
//! Names are opaque: the path is percent-decoded exactly once. An object is served as it is stored; compressed ones are
//! never decompressed on the way.

use std::sync::Arc;

use axum::extract::{ConnectInfo, Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::{Value, json};

use super::error::Error;
use super::fault::{Call, Fault, Faults};
use super::net::Connection;
use super::object::Object;
use super::store::{Conditions, Store};

mod multipart;
mod range;
mod read;
mod upload;

/// Objects of a page, unless the caller wants fewer.
const PAGE: usize = 1000;

/// The service; clones share it.
#[derive(Clone, Debug)]
pub(super) struct Storage {
    pub(super) store: Store,
    pub(super) faults: Faults,
}

impl Storage {
    pub(super) fn router(self) -> Router {
        Router::new()
            .route("/storage/v1/b", post(create_bucket))
            .route("/storage/v1/b/{bucket}", get(get_bucket))
            .route("/storage/v1/b/{bucket}/o", get(list))
            .route("/storage/v1/b/{bucket}/o/{object}", get(read::get_object).delete(delete))
            .route("/upload/storage/v1/b/{bucket}/o", post(upload::upload))
            .with_state(self)
    }

    /// Sends `reply`, unless a fault wants it lost.
    async fn reply(peer: &Connection, fault: Option<Fault>, reply: impl IntoResponse) -> Answer {
        if fault == Some(Fault::LoseReply) {
            return peer.reset().await;
        }
        Ok(reply.into_response())
    }
}

type Answer = Result<Response, Failure>;
type Peer = ConnectInfo<Connection>;

/// An error as Cloud Storage writes it.
struct Failure(Error);

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let code = self.0.http_status();
        let status = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        if status == StatusCode::NOT_MODIFIED {
            return status.into_response();
        }
        let message = self.0.to_string();
        let reason = status.canonical_reason().unwrap_or("error").replace(' ', "");
        let errors = json!([{"domain": "global", "reason": reason, "message": message}]);
        (status, Json(json!({"error": {"code": code, "message": message, "errors": errors}}))).into_response()
    }
}

async fn create_bucket(State(storage): State<Storage>, peer: Peer, Json(wanted): Json<Value>) -> Answer {
    let name = wanted["name"].as_str().unwrap_or_default();
    storage.faults.enter(Call::Metadata, name, &peer).await?;
    storage.store.create_bucket(name)?;
    Ok(Json(bucket_resource(name)).into_response())
}

async fn get_bucket(State(storage): State<Storage>, peer: Peer, Path(bucket): Path<String>) -> Answer {
    storage.faults.enter(Call::Metadata, &bucket, &peer).await?;
    storage.store.bucket_exists(&bucket)?;
    Ok(Json(bucket_resource(&bucket)).into_response())
}

fn bucket_resource(name: &str) -> Value {
    json!({"kind": "storage#bucket", "id": name, "name": name, "location": "LOCAL", "storageClass": "STANDARD"})
}

async fn delete(
    State(storage): State<Storage>,
    peer: Peer,
    Path((bucket, name)): Path<(String, String)>,
    Query(conditions): Query<Conditions>,
) -> Answer {
    let fault = storage.faults.enter(Call::Delete, &format!("{bucket}/{name}"), &peer).await?;
    storage.store.delete(&bucket, &name, conditions)?;
    Storage::reply(&peer, fault, StatusCode::NO_CONTENT).await
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Page {
    prefix: String,
    page_token: Option<String>,
    max_results: Option<usize>,
}

async fn list(
    State(storage): State<Storage>,
    peer: Peer,
    Path(bucket): Path<String>,
    Query(page): Query<Page>,
) -> Answer {
    storage.faults.enter(Call::List, &bucket, &peer).await?;
    let after = page.page_token.as_deref().map(decode_token).transpose()?;
    let most = page.max_results.unwrap_or(PAGE).clamp(1, PAGE);
    // One more than wanted tells whether there is another page.
    let mut objects = storage.store.list(&bucket, &page.prefix, after.as_deref(), most + 1)?;
    let more = objects.len() > most;
    objects.truncate(most);
    let items: Vec<Value> = objects.iter().map(|object| object.resource()).collect();
    let mut listing = json!({"kind": "storage#objects", "items": items});
    if let Some(last) = objects.last().filter(|_| more) {
        listing["nextPageToken"] = json!(BASE64_URL_SAFE_NO_PAD.encode(&last.name));
    }
    Ok(Json(listing).into_response())
}

/// A token is the last name of the page before.
fn decode_token(token: &str) -> Result<String, Error> {
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(token).ok();
    let name = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
    name.ok_or_else(|| Error::Invalid(format!("page token {token:?}")))
}

fn resource(object: &Arc<Object>) -> Json<Value> {
    Json(object.resource())
}
