//! The in-process Cloud Storage, through Google's own client over loopback, and over plain HTTP where it has no call.

use std::time::{Duration, Instant};

use google_cloud_auth::credentials::anonymous;
use google_cloud_gax::retry_policy::NeverRetry;
use google_cloud_storage::client::Storage;
use google_cloud_storage::model_ext::ReadRange;
use google_cloud_storage::read_object::ReadObjectResponse;
use google_cloud_storage::read_resume_policy::NeverResume;
use serde_json::Value;
use stoker::local::{Call, Content, Error, Fault, Payload, Rule, Services, Settings, SubscriptionSettings};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const BUCKET: &str = "projects/_/buckets/uploads";
const TOPIC: &str = "projects/p/topics/uploads";
const SUBSCRIPTION: &str = "projects/p/subscriptions/uploads";

type Read = google_cloud_storage::Result<Vec<u8>>;

/// Services with a bucket, and a client that neither retries nor resumes.
async fn services() -> (Services, Storage) {
    let services = Services::start(Settings::default()).await.unwrap();
    services.create_bucket("uploads").unwrap();
    let storage = client(&services, false).await;
    (services, storage)
}

async fn client(services: &Services, patient: bool) -> Storage {
    let builder = Storage::builder().with_endpoint(services.storage_endpoint());
    let builder = builder.with_credentials(anonymous::Builder::new().build());
    let builder =
        if patient { builder } else { builder.with_retry_policy(NeverRetry).with_read_resume_policy(NeverResume) };
    builder.build().await.unwrap()
}

async fn bytes(mut response: ReadObjectResponse) -> Read {
    let mut bytes = Vec::new();
    while let Some(chunk) = response.next().await.transpose()? {
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

async fn read(storage: &Storage, name: &str) -> Read {
    bytes(storage.read_object(BUCKET, name).send().await?).await
}

fn http_status<T: std::fmt::Debug>(result: google_cloud_storage::Result<T>) -> Option<u16> {
    result.unwrap_err().http_status_code()
}

/// One request of its own; returns the status and the body.
async fn http(services: &Services, method: &str, path: &str, head: &str, body: &[u8]) -> (u16, Vec<u8>) {
    let endpoint = services.storage_endpoint();
    let mut stream = TcpStream::connect(endpoint.strip_prefix("http://").unwrap()).await.unwrap();
    let length = body.len();
    let head =
        format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n{head}\r\n");
    stream.write_all(&[head.as_bytes(), body].concat()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let split = answer.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
    let status = std::str::from_utf8(&answer[9..12]).unwrap().parse().unwrap();
    (status, answer[split + 4..].to_vec())
}

async fn get_json(services: &Services, path: &str) -> Value {
    let (status, body) = http(services, "GET", path, "", b"").await;
    assert_eq!(status, 200, "{path}");
    serde_json::from_slice(&body).unwrap()
}

/// Every wait for an event is under this one.
async fn within<T>(test: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), test).await.expect("the event comes in time")
}

#[tokio::test]
async fn an_uploaded_object_is_read_as_it_was_written() {
    within(async {
        let (services, storage) = services().await;
        let data: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
        let write = storage.write_object(BUCKET, "a/b.jpg", bytes::Bytes::from(data.clone()));
        let written =
            write.set_content_type("image/jpeg").set_metadata([("camera", "box")]).send_buffered().await.unwrap();
        assert_eq!((written.name.as_str(), written.bucket.as_str(), written.size), ("a/b.jpg", BUCKET, 800_000));
        let response = storage.read_object(BUCKET, "a/b.jpg").send().await.unwrap();
        let object = response.object();
        assert_eq!((object.generation, object.size), (written.generation, 800_000));
        assert_eq!((object.content_type.as_str(), object.content_encoding.as_str()), ("image/jpeg", "identity"));
        assert_eq!(object.metadata["camera"], "box");
        assert_eq!(object.checksums.unwrap().crc32c, Some(crc32c::crc32c(&data)));
        assert_eq!(bytes(response).await.unwrap(), data);
        let resource = get_json(&services, "/storage/v1/b/uploads/o/a%2Fb.jpg").await;
        assert_eq!(resource["generation"], written.generation.to_string());
        assert_eq!(resource["contentType"], "image/jpeg");
    })
    .await;
}

#[tokio::test]
async fn an_upload_without_its_length_known_carries_its_checksum_behind() {
    within(async {
        let (_services, storage) = services().await;
        let write = storage.write_object(BUCKET, "a", "contents").with_checksum_precomputation(false);
        write.send_unbuffered().await.unwrap();
        assert_eq!(read(&storage, "a").await.unwrap(), b"contents");
    })
    .await;
}

#[tokio::test]
async fn ranges_are_served() {
    within(async {
        let (services, storage) = services().await;
        services.put_object("uploads", "a", Content::new("0123456789", "text/plain")).unwrap();
        let ranges = [
            (ReadRange::head(4), "0123"),
            (ReadRange::segment(2, 3), "234"),
            (ReadRange::offset(7), "789"),
            (ReadRange::tail(2), "89"),
            (ReadRange::tail(99), "0123456789"),
            (ReadRange::segment(8, 99), "89"),
        ];
        for (range, expected) in ranges {
            let response = storage.read_object(BUCKET, "a").set_read_range(range.clone()).send().await.unwrap();
            assert_eq!(response.object().size, 10, "the size of the object, whatever the range");
            assert_eq!(bytes(response).await.unwrap(), expected.as_bytes(), "{range:?}");
        }
        let beyond = storage.read_object(BUCKET, "a").set_read_range(ReadRange::offset(10)).send().await;
        assert_eq!(http_status(beyond), Some(416));
    })
    .await;
}

#[tokio::test]
async fn an_overwritten_generation_is_gone() {
    within(async {
        let (services, storage) = services().await;
        let old = services.put_object("uploads", "a", Content::new("old", "")).unwrap();
        let new = services.put_object("uploads", "a", Content::new("new", "")).unwrap();
        assert!(new > old);
        let pinned = async |generation| storage.read_object(BUCKET, "a").set_generation(generation).send().await;
        assert_eq!(http_status(pinned(old).await), Some(404));
        assert_eq!(bytes(pinned(new).await.unwrap()).await.unwrap(), b"new");
        services.delete_object("uploads", "a").unwrap();
        assert_eq!(http_status(pinned(new).await), Some(404));
        let nowhere = storage.read_object("projects/_/buckets/nowhere", "a").send().await;
        assert_eq!(http_status(nowhere), Some(404));
    })
    .await;
}

#[tokio::test]
async fn preconditions_hold_for_reads_and_uploads() {
    within(async {
        let (services, storage) = services().await;
        let live = services.put_object("uploads", "a", Content::new("x", "")).unwrap();
        let object = || storage.read_object(BUCKET, "a");
        assert!(object().set_if_generation_match(live).send().await.is_ok());
        assert_eq!(http_status(object().set_if_generation_match(live - 1).send().await), Some(412));
        assert!(object().set_if_generation_not_match(live - 1).send().await.is_ok());
        assert_eq!(http_status(object().set_if_generation_not_match(live).send().await), Some(304));
        let create = |name| storage.write_object(BUCKET, name, "y").set_if_generation_match(0).send_buffered();
        assert_eq!(http_status(create("a").await), Some(412), "there is one already");
        assert!(create("b").await.is_ok());
        let replace = storage.write_object(BUCKET, "a", "y").set_if_generation_match(live).send_buffered().await;
        assert!(replace.unwrap().generation > live);
    })
    .await;
}

#[tokio::test]
async fn names_are_opaque() {
    within(async {
        let (services, storage) = services().await;
        let names = ["a/b", "a%2Fb", "a%252Fb", "a b+c&d=e?f#g", "ünïcode/猫.jpg", "../a", "folder/", "100%"];
        for name in names {
            let written = storage.write_object(BUCKET, name, name).send_buffered().await.unwrap();
            assert_eq!(written.name, name);
        }
        for name in names {
            assert_eq!(read(&storage, name).await.unwrap(), name.as_bytes(), "{name}");
        }
        let listed = get_json(&services, "/storage/v1/b/uploads/o").await;
        assert_eq!(listed["items"].as_array().unwrap().len(), names.len());
    })
    .await;
}

#[tokio::test]
async fn a_compressed_object_is_served_as_it_is_stored() {
    within(async {
        let (_services, storage) = services().await;
        let stored = b"\x1f\x8b not really gzip";
        let payload = bytes::Bytes::from_static(stored);
        let write = storage.write_object(BUCKET, "a", payload).set_content_encoding("gzip");
        write.send_buffered().await.unwrap();
        let response = storage.read_object(BUCKET, "a").send().await.unwrap();
        assert_eq!(response.object().content_encoding, "gzip");
        assert_eq!(bytes(response).await.unwrap(), stored);
    })
    .await;
}

#[tokio::test]
async fn a_damaged_upload_is_refused() {
    within(async {
        let (services, _storage) = services().await;
        let body =
            "--b\r\n\r\n{\"name\":\"a\",\"crc32c\":\"AAAAAA==\"}\r\n--b\r\ncontent-type: image/png\r\n\r\nx\r\n--b--";
        let path = "/upload/storage/v1/b/uploads/o?uploadType=multipart";
        let head = "content-type: multipart/related; boundary=b\r\n";
        assert_eq!(http(&services, "POST", path, head, body.as_bytes()).await.0, 400);
        let sound = body.replace(",\"crc32c\":\"AAAAAA==\"", "");
        assert_eq!(http(&services, "POST", path, head, sound.as_bytes()).await.0, 200);
        let resource = get_json(&services, "/storage/v1/b/uploads/o/a").await;
        assert_eq!(resource["contentType"], "image/png", "the part's type, for want of the metadata's");
    })
    .await;
}

#[tokio::test]
async fn objects_are_listed_by_prefix_and_page() {
    within(async {
        let (services, _storage) = services().await;
        for name in ["a/1", "b/1", "b/2", "b/3", "b/4", "b/5", "c/1"] {
            services.put_object("uploads", name, Content::new("x", "")).unwrap();
        }
        let mut names = Vec::new();
        let mut path = "/storage/v1/b/uploads/o?prefix=b/&maxResults=2".to_owned();
        for page in 1..=3 {
            let listed = get_json(&services, &path).await;
            let items = listed["items"].as_array().unwrap();
            names.extend(items.iter().map(|item| item["name"].as_str().unwrap().to_owned()));
            match listed["nextPageToken"].as_str() {
                Some(token) => path = format!("/storage/v1/b/uploads/o?prefix=b/&maxResults=2&pageToken={token}"),
                None => assert_eq!(page, 3),
            }
        }
        assert_eq!(names, ["b/1", "b/2", "b/3", "b/4", "b/5"]);
    })
    .await;
}

#[tokio::test]
async fn buckets_are_made_and_found_over_http() {
    within(async {
        let (services, _storage) = services().await;
        let json = "content-type: application/json\r\n";
        let create = async || http(&services, "POST", "/storage/v1/b?project=p", json, b"{\"name\":\"new\"}").await.0;
        assert_eq!(http(&services, "GET", "/storage/v1/b/new", "", b"").await.0, 404);
        assert_eq!((create().await, create().await), (200, 409));
        assert_eq!(http(&services, "GET", "/storage/v1/b/new", "", b"").await.0, 200);
    })
    .await;
}

#[tokio::test]
async fn what_is_stored_is_bounded() {
    within(async {
        let settings = Settings { max_object_bytes: 10, max_stored_bytes: 15, ..Settings::default() };
        let services = Services::start(settings).await.unwrap();
        services.create_bucket("uploads").unwrap();
        let storage = client(&services, false).await;
        let put = |name, bytes| storage.write_object(BUCKET, name, bytes::Bytes::from(vec![0; bytes])).send_buffered();
        assert_eq!(http_status(put("a", 11).await), Some(413));
        assert_eq!(http_status(put("a", 1 << 20).await), Some(413));
        put("a", 10).await.unwrap();
        assert_eq!(http_status(put("b", 6).await), Some(413));
        put("a", 9).await.expect("an overwrite counts once");
        put("b", 6).await.unwrap();
        services.delete_object("uploads", "a").unwrap();
        put("c", 9).await.expect("a deletion makes room");
    })
    .await;
}

/// Services whose bucket notifies [`TOPIC`].
async fn notifying(payload: Payload) -> (Services, Storage) {
    let (services, storage) = services().await;
    services.create_topic(TOPIC).unwrap();
    services.create_subscription(SubscriptionSettings::new(SUBSCRIPTION, TOPIC)).unwrap();
    services.notify("uploads", TOPIC, payload).unwrap();
    (services, storage)
}

#[tokio::test]
async fn an_upload_sends_the_notification_of_the_service() {
    within(async {
        let (services, storage) = notifying(Payload::JsonApiV1).await;
        let write = storage.write_object(BUCKET, "a b/ü.jpg", "x").set_content_type("image/jpeg");
        let generation = write.send_buffered().await.unwrap().generation.to_string();
        let sent = services.receive(SUBSCRIPTION, 1).await.unwrap().remove(0);
        let expected = [
            ("bucketId", "uploads"),
            ("eventType", "OBJECT_FINALIZE"),
            ("notificationConfig", "projects/_/buckets/uploads/notificationConfigs/1"),
            ("objectGeneration", generation.as_str()),
            ("objectId", "a b/ü.jpg"),
            ("payloadFormat", "JSON_API_V1"),
        ];
        let others = sent.attributes.iter().filter(|(key, _)| *key != "eventTime");
        assert_eq!(others.map(|(key, value)| (key.as_str(), value.as_str())).collect::<Vec<_>>(), expected);
        let time: Result<prost_types::Timestamp, _> = sent.attributes["eventTime"].parse();
        assert!(time.is_ok_and(|time| time.seconds > 1_700_000_000), "{:?}", sent.attributes["eventTime"]);
        let resource: Value = serde_json::from_slice(&sent.data).unwrap();
        assert_eq!(resource["kind"], "storage#object");
        assert_eq!(resource["name"], "a b/ü.jpg");
        assert_eq!(resource["bucket"], "uploads");
        assert_eq!(resource["generation"], generation.as_str());
        assert_eq!(resource["size"], "1");
        assert_eq!(resource["contentType"], "image/jpeg");
    })
    .await;
}

#[tokio::test]
async fn an_overwrite_and_a_deletion_tell_about_the_generation_that_went() {
    within(async {
        let (services, _storage) = notifying(Payload::None).await;
        let old = services.put_object("uploads", "a", Content::new("old", "")).unwrap().to_string();
        let new = services.put_object("uploads", "a", Content::new("new", "")).unwrap().to_string();
        assert_eq!(http(&services, "DELETE", "/storage/v1/b/uploads/o/a", "", b"").await.0, 204);
        let sent = services.receive(SUBSCRIPTION, 4).await.unwrap();
        let expected = [
            ("OBJECT_FINALIZE", &old, None, None),
            ("OBJECT_FINALIZE", &new, Some(&old), None),
            ("OBJECT_DELETE", &old, None, Some(&new)),
            ("OBJECT_DELETE", &new, None, None),
        ];
        for (message, (kind, generation, overwrote, overwritten_by)) in sent.iter().zip(expected) {
            assert_eq!(message.attributes["eventType"], kind);
            assert_eq!(message.attributes["objectGeneration"], *generation);
            assert_eq!(message.attributes.get("overwroteGeneration"), overwrote);
            assert_eq!(message.attributes.get("overwrittenByGeneration"), overwritten_by);
            assert_eq!(message.attributes["payloadFormat"], "NONE");
            assert!(message.data.is_empty());
        }
    })
    .await;
}

#[tokio::test]
async fn a_notification_may_come_twice() {
    within(async {
        let (services, _storage) = notifying(Payload::JsonApiV1).await;
        services.faults().add(Rule::new(Call::Notify, Fault::Duplicate)).unwrap();
        services.put_object("uploads", "a", Content::new("x", "")).unwrap();
        let sent = services.receive(SUBSCRIPTION, 2).await.unwrap();
        assert_ne!(sent[0].id, sent[1].id);
        assert_eq!(sent[0].attributes, sent[1].attributes);
    })
    .await;
}

#[tokio::test]
async fn a_failing_read_has_the_status_of_its_fault_and_hits_only_its_object() {
    within(async {
        let (services, storage) = services().await;
        for name in ["a", "b"] {
            services.put_object("uploads", name, Content::new("x", "")).unwrap();
        }
        let faults = services.faults();
        for status in [403, 404, 429, 500, 503] {
            faults.add(Rule::new(Call::Read, Fault::Error(status)).matching("uploads/a")).unwrap();
            assert!(read(&storage, "b").await.is_ok());
            assert_eq!(http_status(read(&storage, "a").await), Some(status));
        }
        faults.add(Rule::new(Call::Read, Fault::Error(503)).times(2)).unwrap();
        let before = faults.count(Call::Read);
        assert_eq!(read(&client(&services, true).await, "a").await.unwrap(), b"x");
        assert_eq!(faults.count(Call::Read) - before, 3, "the client retries");
    })
    .await;
}

#[tokio::test]
async fn a_truncated_body_fails_or_is_resumed() {
    within(async {
        let (services, storage) = services().await;
        let data: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
        services.put_object("uploads", "a", Content::new(data.clone(), "")).unwrap();
        services.faults().add(Rule::new(Call::Read, Fault::Truncate(1000)).times(2)).unwrap();
        let mut response = storage.read_object(BUCKET, "a").send().await.unwrap();
        assert_eq!(response.next().await.unwrap().unwrap(), data[..1000]);
        assert!(response.next().await.unwrap().is_err());
        assert_eq!(read(&client(&services, true).await, "a").await.unwrap(), data);
        assert_eq!(services.faults().count(Call::Read), 3, "the second half was read with a range");
    })
    .await;
}

#[tokio::test]
async fn a_corrupt_body_fails_its_checksum() {
    within(async {
        let (services, storage) = services().await;
        services.put_object("uploads", "a", Content::new("0123456789", "")).unwrap();
        services.faults().add(Rule::new(Call::Read, Fault::Corrupt)).unwrap();
        let error = read(&storage, "a").await.unwrap_err();
        assert!(format!("{error:?}").contains("ChecksumMismatch"), "{error:?}");
        assert_eq!(read(&storage, "a").await.unwrap(), b"0123456789");
    })
    .await;
}

#[tokio::test]
async fn a_stalled_body_stays_open_until_the_reader_leaves() {
    within(async {
        let (services, storage) = services().await;
        services.put_object("uploads", "a", Content::new("0123456789", "")).unwrap();
        services.faults().add(Rule::new(Call::Read, Fault::StallBody(4))).unwrap();
        let mut response = storage.read_object(BUCKET, "a").send().await.unwrap();
        assert_eq!(response.next().await.unwrap().unwrap(), "0123");
        let rest = tokio::time::timeout(Duration::from_millis(200), response.next()).await;
        assert!(rest.is_err(), "neither data nor an end: {rest:?}");
        drop(response);
        assert_eq!(read(&storage, "a").await.unwrap(), b"0123456789");
    })
    .await;
}

#[tokio::test]
async fn reads_are_delayed_reset_and_stalled() {
    within(async {
        let (services, storage) = services().await;
        services.put_object("uploads", "a", Content::new("x", "")).unwrap();
        let faults = services.faults();
        let delay = Duration::from_millis(300);
        faults.add(Rule::new(Call::Read, Fault::Delay(delay))).unwrap();
        let started = Instant::now();
        read(&storage, "a").await.unwrap();
        assert!(started.elapsed() >= delay);

        faults.add(Rule::new(Call::Read, Fault::Reset)).unwrap();
        let error = read(&storage, "a").await.unwrap_err();
        assert_eq!(error.http_status_code(), None, "no answer at all: {error:?}");

        faults.add(Rule::new(Call::Read, Fault::Stall)).unwrap();
        let stalled = tokio::time::timeout(Duration::from_millis(200), read(&storage, "a")).await;
        assert!(stalled.is_err());
        assert_eq!(read(&storage, "a").await.unwrap(), b"x");
    })
    .await;
}

#[tokio::test]
async fn an_upload_without_an_answer_is_stored_all_the_same() {
    within(async {
        let (services, storage) = notifying(Payload::None).await;
        services.faults().add(Rule::new(Call::Upload, Fault::LoseReply).matching("uploads/a")).unwrap();
        storage.write_object(BUCKET, "a", "x").send_buffered().await.unwrap_err();
        services.receive(SUBSCRIPTION, 1).await.unwrap();
        assert_eq!(read(&storage, "a").await.unwrap(), b"x");
    })
    .await;
}

#[tokio::test]
async fn what_does_not_exist_is_refused() {
    let (services, _storage) = services().await;
    assert!(matches!(services.put_object("nowhere", "a", Content::default()), Err(Error::NotFound(_))));
    for name in ["", ".", "..", "a\nb", &"a".repeat(1025)] {
        assert!(matches!(services.put_object("uploads", name, Content::default()), Err(Error::Invalid(_))), "{name:?}");
    }
    assert!(matches!(services.notify("uploads", TOPIC, Payload::None), Err(Error::NotFound(_))));
    assert!(matches!(services.delete_object("uploads", "a"), Err(Error::NotFound(_))));
    assert!(matches!(services.create_bucket("uploads"), Err(Error::AlreadyExists(_))));
}
