//! The scenarios against other people's servers: Google's Pub/Sub emulator and fake-gcs-server.
//!
//! `.ci/emulators` starts both and sets the two variables; see there. The tests share the servers, so each has a bucket,
//! topics and subscriptions of its own.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};

use google_cloud_auth::credentials::anonymous;
use google_cloud_pubsub::client::TopicAdmin;
use google_cloud_pubsub::model::Subscription;
use stoker::event::EventKind;

use crate::scenarios;
use crate::world::{CAT, World};

/// Where fake-gcs-server publishes what happens in the bucket `photos`.
const NOTIFICATIONS: &str = "projects/stoker/topics/fake-gcs";

#[expect(clippy::disallowed_methods, reason = "the test's own configuration")]
fn endpoint(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| panic!("{variable} is not set: source .ci/emulators first"))
}

async fn world() -> World {
    static BUCKETS: AtomicU64 = AtomicU64::new(0);
    let bucket = format!("b-{}-{}", std::process::id(), BUCKETS.fetch_add(1, Ordering::Relaxed));
    create_bucket(&endpoint("STOKER_TEST_STORAGE"), &bucket);
    world_with(bucket, |uploads| uploads).await
}

async fn world_with(bucket: String, uploads: impl FnOnce(Subscription) -> Subscription) -> World {
    World::at(endpoint("STOKER_TEST_PUBSUB"), endpoint("STOKER_TEST_STORAGE"), bucket, uploads).await
}

/// The official client creates buckets over gRPC, which fake-gcs-server does not speak.
fn create_bucket(storage: &str, bucket: &str) {
    let address = storage.strip_prefix("http://").expect("an http:// endpoint");
    let body = format!(r#"{{"name":"{bucket}"}}"#);
    let mut stream = TcpStream::connect(address).unwrap();
    write!(
        stream,
        "POST /storage/v1/b?project=stoker HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Google's Pub/Sub emulator and fake-gcs-server: .ci/emulators starts them"]
async fn photos_are_labeled() {
    scenarios::photos_are_labeled(&mut world().await).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Google's Pub/Sub emulator and fake-gcs-server: .ci/emulators starts them"]
async fn every_event_shape_leads_to_labels() {
    scenarios::every_event_shape_leads_to_labels(&mut world().await).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Google's Pub/Sub emulator and fake-gcs-server: .ci/emulators starts them"]
async fn a_bad_image_fails_alone() {
    scenarios::a_bad_image_fails_alone(&mut world().await).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Google's Pub/Sub emulator and fake-gcs-server: .ci/emulators starts them"]
async fn a_gone_object_is_a_failed_result() {
    scenarios::a_gone_object_is_a_failed_result(&mut world().await).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Google's Pub/Sub emulator and fake-gcs-server: .ci/emulators starts them"]
async fn an_unreadable_event_is_a_failed_result() {
    scenarios::an_unreadable_event_is_a_failed_result(&mut world().await).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Google's Pub/Sub emulator and fake-gcs-server: .ci/emulators starts them"]
async fn what_is_no_upload_is_skipped() {
    scenarios::what_is_no_upload_is_skipped(&mut world().await).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Google's Pub/Sub emulator and fake-gcs-server: .ci/emulators starts them"]
async fn names_are_taken_literally() {
    scenarios::names_are_taken_literally(&mut world().await).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Google's Pub/Sub emulator and fake-gcs-server: .ci/emulators starts them"]
async fn fake_gcs_servers_own_notifications_lead_to_labels() {
    let topics = TopicAdmin::builder().with_endpoint(endpoint("STOKER_TEST_PUBSUB"));
    let topics = topics.with_credentials(anonymous::Builder::new().build()).build().await.unwrap();
    topics.create_topic().set_name(NOTIFICATIONS).send().await.unwrap();
    let mut world = world_with("photos".to_owned(), |uploads| uploads.set_topic(NOTIFICATIONS)).await;
    let worker = world.worker(&[]);
    let generation = world.put("in/cat.jpg", CAT).await;
    let result = world.next().await.result;
    assert_eq!(result.labels[0].name, "tiger cat");
    assert_eq!(result.event.kind, Some(EventKind::GcsNotification));
    let object = result.object.unwrap();
    assert_eq!((object.name.as_str(), object.generation), ("in/cat.jpg", Some(generation)));
    worker.stop().await.unwrap();
}
