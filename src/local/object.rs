//! One stored object and its JSON resource.

use std::collections::BTreeMap;
use std::time::SystemTime;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use prost_types::Timestamp;
use serde_json::{Value, json};

/// What an upload says about an object, besides its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// The stored bytes.
    pub data: Bytes,
    /// `image/jpeg`; empty: `application/octet-stream`.
    pub content_type: String,
    /// `gzip` when `data` is compressed; empty otherwise. Never acted on: objects are served as they are stored.
    pub content_encoding: String,
    /// Metadata of the user's own.
    pub metadata: BTreeMap<String, String>,
}

impl Content {
    /// Bytes with a content type and nothing else.
    #[must_use]
    pub fn new(data: impl Into<Bytes>, content_type: &str) -> Self {
        Self { data: data.into(), content_type: content_type.to_owned(), ..Self::default() }
    }
}

/// A generation of an object.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) bucket: String,
    pub(super) name: String,
    pub(super) generation: i64,
    pub(super) created: SystemTime,
    pub(super) content: Content,
    pub(super) crc32c: u32,
}

impl Object {
    pub(super) fn new(bucket: &str, name: &str, generation: i64, mut content: Content) -> Self {
        if content.content_type.is_empty() {
            "application/octet-stream".clone_into(&mut content.content_type);
        }
        let crc32c = crc32c::crc32c(&content.data);
        Self {
            bucket: bucket.to_owned(),
            name: name.to_owned(),
            generation,
            created: SystemTime::now(),
            content,
            crc32c,
        }
    }

    /// The checksum as Cloud Storage writes it: base64 of the big-endian bytes.
    pub(super) fn crc32c_text(&self) -> String {
        BASE64_STANDARD.encode(self.crc32c.to_be_bytes())
    }

    pub(super) fn etag(&self) -> String {
        BASE64_STANDARD.encode(self.generation.to_be_bytes())
    }

    /// The object resource of the JSON API, which is also the payload of a notification. There is no `md5Hash`, as
    /// with composite objects.
    pub(super) fn resource(&self) -> Value {
        let (bucket, name, generation) = (&self.bucket, &self.name, self.generation);
        let encoded = utf8_percent_encode(name, NON_ALPHANUMERIC);
        let link = format!("https://www.googleapis.com/storage/v1/b/{bucket}/o/{encoded}");
        let created = Timestamp::from(self.created).to_string();
        let mut resource = json!({
            "kind": "storage#object",
            "id": format!("{bucket}/{name}/{generation}"),
            "selfLink": link,
            "mediaLink": format!("{link}?generation={generation}&alt=media"),
            "name": name,
            "bucket": bucket,
            "generation": generation.to_string(),
            "metageneration": "1",
            "contentType": self.content.content_type,
            "storageClass": "STANDARD",
            "size": self.content.data.len().to_string(),
            "crc32c": self.crc32c_text(),
            "etag": self.etag(),
            "timeCreated": created,
            "updated": created,
            "timeStorageClassUpdated": created,
            "timeFinalized": created,
        });
        if !self.content.content_encoding.is_empty() {
            resource["contentEncoding"] = json!(self.content.content_encoding);
        }
        if !self.content.metadata.is_empty() {
            resource["metadata"] = json!(self.content.metadata);
        }
        resource
    }
}
