//! What must hold against any Pub/Sub and any Cloud Storage: run against the in-process services and the emulators.

use std::collections::HashMap;

use serde_json::json;
use stoker::event::{FailureCode, ObjectId, Status, result_id};
use stoker::model::Bundle;

use crate::world::{CAT, COFFEE, ROCKET, World};

fn attributes<const N: usize>(pairs: [(&str, &str); N]) -> HashMap<String, String> {
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

pub(crate) async fn photos_are_labeled(world: &mut World) {
    let worker = world.worker(&[]);
    let cat = world.upload("cat.jpg", CAT).await;
    world.upload("coffee.jpg", COFFEE).await;
    world.upload("rocket.jpg", ROCKET).await;
    let results = world.results(3).await;
    for (name, label) in [("cat.jpg", "tiger cat"), ("coffee.jpg", "espresso"), ("rocket.jpg", "missile")] {
        let result = &results[name];
        assert_eq!(result.status, Status::Labeled, "{name}: {:?}", result.error);
        assert_eq!(result.labels[0].name, label);
        assert_eq!(result.labels.len(), 5);
        assert_eq!(result.worker.instance, "test");
    }
    let object = ObjectId { bucket: world.bucket.clone(), name: "cat.jpg".into(), generation: Some(cat) };
    assert_eq!(results["cat.jpg"].id, result_id(&object, Bundle::builtin().unwrap().digest()));
    let metrics = worker.metrics.clone();
    worker.stop().await.unwrap();
    let counts = metrics.snapshot();
    assert_eq!((counts.labeled, counts.acked, counts.failed_total()), (3, 3, 0));
}

pub(crate) async fn every_event_shape_leads_to_labels(world: &mut World) {
    let worker = world.worker(&[]);
    let bucket = world.bucket.clone();
    let source = format!("//storage.googleapis.com/projects/_/buckets/{bucket}");
    let kind = "google.cloud.storage.object.v1.finalized";
    let object =
        |name: &str, generation: i64| json!({"bucket": bucket, "name": name, "generation": generation.to_string()});

    let generation = world.put("notification.jpg", CAT).await;
    let notification = [
        ("eventType", "OBJECT_FINALIZE"),
        ("payloadFormat", "JSON_API_V1"),
        ("bucketId", &bucket),
        ("objectId", "notification.jpg"),
        ("objectGeneration", &generation.to_string()),
    ];
    world.publish(attributes(notification), object("notification.jpg", generation).to_string()).await;

    let generation = world.put("binary.jpg", CAT).await;
    let binary = [
        ("ce-id", "1"),
        ("ce-specversion", "1.0"),
        ("ce-type", kind),
        ("ce-source", &source),
        ("ce-subject", "objects/binary.jpg"),
        ("content-type", "application/json"),
    ];
    world.publish(attributes(binary), object("binary.jpg", generation).to_string()).await;

    let generation = world.put("structured.jpg", CAT).await;
    let event = json!({
        "id": "2", "specversion": "1.0", "type": kind, "source": source, "subject": "objects/structured.jpg",
        "datacontenttype": "application/json", "data": object("structured.jpg", generation),
    });
    world.publish(attributes([("content-type", "application/cloudevents+json")]), event.to_string()).await;

    world.put("audit.jpg", CAT).await;
    let resource = format!("projects/_/buckets/{bucket}/objects/audit.jpg");
    let entry = json!({"protoPayload": {
        "serviceName": "storage.googleapis.com", "methodName": "storage.objects.create", "resourceName": resource,
    }});
    world.publish(HashMap::new(), entry.to_string()).await;

    world.put("uri.jpg", CAT).await;
    world.publish(HashMap::new(), json!({"uri": format!("gs://{bucket}/uri.jpg")}).to_string()).await;

    let generation = world.put("direct.jpg", CAT).await;
    world.publish(HashMap::new(), object("direct.jpg", generation).to_string()).await;

    let results = world.results(6).await;
    for (name, kind) in [
        ("notification.jpg", "gcs_notification"),
        ("binary.jpg", "cloudevent_binary"),
        ("structured.jpg", "cloudevent_structured"),
        ("audit.jpg", "audit_log"),
        ("uri.jpg", "direct"),
        ("direct.jpg", "direct"),
    ] {
        let result = &results[name];
        assert_eq!(result.status, Status::Labeled, "{name}: {:?}", result.error);
        assert_eq!(result.event.kind.map(|kind| kind.as_str()), Some(kind), "{name}");
        // Events without a generation learn it from the read.
        assert!(result.object.as_ref().unwrap().generation.is_some(), "{name}");
    }
    worker.stop().await.unwrap();
}

pub(crate) async fn a_bad_image_fails_alone(world: &mut World) {
    world.upload("good-1.jpg", CAT).await;
    world.upload("text.jpg", b"this is no image").await;
    world.upload("empty.jpg", b"").await;
    world.upload("heic.jpg", b"\0\0\0\x18ftypheic\0\0\0\0mif1heic").await;
    world.upload("good-2.jpg", COFFEE).await;
    let worker = world.worker(&[]);
    let results = world.results(5).await;
    assert_eq!(results["good-1.jpg"].labels[0].name, "tiger cat");
    assert_eq!(results["good-2.jpg"].labels[0].name, "espresso");
    for (name, code) in [
        ("text.jpg", FailureCode::NotAnImage),
        ("empty.jpg", FailureCode::EmptyObject),
        ("heic.jpg", if cfg!(feature = "heic") { FailureCode::TruncatedImage } else { FailureCode::UnsupportedFormat }),
    ] {
        let result = &results[name];
        assert_eq!(result.status, Status::Failed, "{name}");
        assert_eq!(result.error.as_ref().unwrap().code, code, "{name}");
        assert!(result.labels.is_empty());
    }
    let metrics = worker.metrics.clone();
    worker.stop().await.unwrap();
    assert_eq!(metrics.snapshot().acked, 5);
}

pub(crate) async fn a_gone_object_is_a_failed_result(world: &mut World) {
    let worker = world.worker(&[]);
    world.announce("never-there.jpg", 1_234).await;
    let result = world.next().await.result;
    assert_eq!(result.error.unwrap().code, FailureCode::ObjectGone);
    let metrics = worker.metrics.clone();
    worker.stop().await.unwrap();
    assert_eq!(metrics.snapshot().acked, 1);
}

pub(crate) async fn an_unreadable_event_is_a_failed_result(world: &mut World) {
    let worker = world.worker(&[]);
    let message_id = world.publish(HashMap::new(), "{\"neither\": \"fish nor fowl\"}").await;
    let received = world.next().await;
    let error = received.result.error.as_ref().unwrap();
    assert_eq!(error.code, FailureCode::UnreadableEvent);
    assert!(received.result.object.is_none());
    assert_eq!(received.result.event.message_id, message_id);
    assert_eq!(received.message.attributes["status"], "failed");
    let metrics = worker.metrics.clone();
    worker.stop().await.unwrap();
    assert_eq!(metrics.snapshot().acked, 1);
}

pub(crate) async fn what_is_no_upload_is_skipped(world: &mut World) {
    let bucket = world.bucket.clone();
    let event = |kind: &str, name: &str| {
        let size = if name.ends_with('/') { "0" } else { "10" };
        let payload = json!({"bucket": bucket, "name": name, "generation": "5", "size": size});
        let attributes = attributes([
            ("eventType", kind),
            ("payloadFormat", "JSON_API_V1"),
            ("bucketId", &bucket),
            ("objectId", name),
            ("objectGeneration", "5"),
        ]);
        (attributes, payload.to_string())
    };
    for (kind, name) in [
        ("OBJECT_DELETE", "in/cat.jpg"),
        ("OBJECT_ARCHIVE", "in/cat.jpg"),
        ("OBJECT_METADATA_UPDATE", "in/cat.jpg"),
        ("OBJECT_FINALIZE", "in/folder/"),
        ("OBJECT_FINALIZE", "out/cat.jpg"),
        ("OBJECT_FINALIZE", "in/cat.txt"),
    ] {
        let (attributes, data) = event(kind, name);
        world.publish(attributes, data).await;
    }
    world.upload("in/cat.jpg", CAT).await;
    let worker = world.worker(&[("--name-prefixes", "in/"), ("--name-suffixes", ".jpg,/")]);
    let received = world.next().await;
    assert_eq!(received.message.attributes["top_label"], "tiger cat");
    let metrics = worker.metrics.clone();
    worker.stop().await.unwrap();
    let counts = metrics.snapshot();
    assert_eq!((counts.labeled, counts.failed_total(), counts.acked), (1, 0, 7));
    let skipped = [("event_type", 3), ("folder_placeholder", 1), ("name_filter", 2)];
    assert_eq!(counts.skipped, skipped.into(), "by reason");
}

pub(crate) async fn names_are_taken_literally(world: &mut World) {
    let worker = world.worker(&[]);
    let names = ["a%2Fb.jpg", "a b+c.jpg", "ä/ß?x=1#y.jpg", "100%.jpg"];
    for name in names {
        world.upload(name, CAT).await;
    }
    let results = world.results(names.len()).await;
    for name in names {
        assert_eq!(results[name].status, Status::Labeled, "{name}: {:?}", results[name].error);
    }
    worker.stop().await.unwrap();
}
