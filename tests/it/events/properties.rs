//! What holds for any message, any object and any result.

use std::collections::HashMap;

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};
use stoker::event::{
    EventKind, Filters, MAX_ATTRIBUTES, ObjectId, Reading, explain, parse_message_file, read, result_id,
};

use super::results::{labelled, object};

fn text(longest: usize) -> impl Strategy<Value = String> {
    vec(any::<char>(), 0..longest).prop_map(|chars| chars.into_iter().collect())
}

fn bucket() -> impl Strategy<Value = String> {
    let inner = vec(prop::sample::select(b"abcxyz0189-_.".to_vec()), 1..60);
    inner.prop_map(|bytes| format!("b{}9", String::from_utf8(bytes).expect("ASCII")))
}

/// Names that Cloud Storage could hold, but for a folder's: those are skipped.
fn name() -> impl Strategy<Value = String> {
    text(250).prop_filter("a name", |name| {
        !matches!(name.as_str(), "" | "." | "..") && !name.ends_with('/') && !name.contains(['\r', '\n'])
    })
}

/// Words that the shapes know, so that random messages get further than the first check.
fn word() -> impl Strategy<Value = String> {
    let known = vec![
        "eventType",
        "bucketId",
        "objectId",
        "objectGeneration",
        "payloadFormat",
        "content-type",
        "ce-type",
        "ce-source",
        "ce-subject",
        "ce-specversion",
        "specversion",
        "type",
        "source",
        "subject",
        "data",
        "data_base64",
        "bucket",
        "name",
        "uri",
        "generation",
        "size",
        "protoPayload",
        "serviceName",
        "methodName",
        "resourceName",
        "status",
        "code",
        "OBJECT_FINALIZE",
        "JSON_API_V1",
        "NONE",
        "application/cloudevents+json",
        "application/json",
        "1.0",
        "gs://uploads/a",
        "google.cloud.storage.object.v1.finalized",
        "google.cloud.audit.log.v1.written",
        "storage.googleapis.com",
        "storage.objects.create",
        "projects/_/buckets/uploads/objects/a",
        "objects/a",
        "uploads",
        "e30=",
        "7",
        "messages",
        "//storage.googleapis.com/projects/_/buckets/uploads",
        "attributes",
        "message",
        "messageId",
    ];
    prop_oneof![4 => prop::sample::select(known).prop_map(Into::into), 1 => text(8)]
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        4 => word().prop_map(Value::from),
        1 => any::<i64>().prop_map(Value::from),
        1 => any::<f64>().prop_map(|number| json!(number)),
        1 => any::<bool>().prop_map(Value::from),
        1 => Just(Value::Null),
    ];
    leaf.prop_recursive(4, 40, 8, |inner| {
        prop_oneof![
            3 => vec((word(), inner.clone()), 0..8).prop_map(|fields| Value::Object(fields.into_iter().collect())),
            1 => vec(inner, 0..4).prop_map(Value::Array),
        ]
    })
}

fn data() -> impl Strategy<Value = Vec<u8>> {
    let json = json_value().prop_map(|value| value.to_string().into_bytes());
    let broken = (json_value(), any::<u8>(), any::<u16>()).prop_map(|(value, byte, at)| {
        let mut bytes = value.to_string().into_bytes();
        let at = usize::from(at) % bytes.len();
        bytes[at] = byte;
        bytes
    });
    prop_oneof![3 => json, 1 => broken, 1 => vec(any::<u8>(), 0..200)]
}

/// A message about `object` in the given shape, size and content type included where the shape has them.
fn written(kind: EventKind, object: &ObjectId, numbers: bool) -> (HashMap<String, String>, Vec<u8>) {
    let ObjectId { bucket, name, generation } = object;
    let generation = generation.unwrap_or(1);
    let number = |number: i64| if numbers { json!(number) } else { json!(number.to_string()) };
    let resource = json!({"bucket": bucket, "name": name, "generation": number(generation), "size": number(5)});
    let source = format!("//storage.googleapis.com/projects/_/buckets/{bucket}");
    let finalized = "google.cloud.storage.object.v1.finalized";
    let (attributes, data) = match kind {
        EventKind::GcsNotification => (
            vec![
                ("eventType", "OBJECT_FINALIZE".to_owned()),
                ("bucketId", bucket.clone()),
                ("objectId", name.clone()),
                ("objectGeneration", generation.to_string()),
            ],
            resource,
        ),
        EventKind::CloudEventBinary => (
            vec![("ce-type", finalized.to_owned()), ("ce-source", source), ("ce-subject", format!("objects/{name}"))],
            resource,
        ),
        EventKind::CloudEventStructured => {
            (vec![], json!({"specversion": "1.0", "type": finalized, "source": source, "data": resource}))
        }
        EventKind::AuditLog => {
            let resource = format!("projects/_/buckets/{bucket}/objects/{name}");
            let payload = json!({"serviceName": "storage.googleapis.com", "methodName": "storage.objects.create",
                "status": {}, "resourceName": resource});
            (vec![], json!({"protoPayload": payload}))
        }
        EventKind::Direct => {
            (vec![], json!({"uri": format!("gs://{bucket}/{name}"), "generation": number(generation)}))
        }
    };
    let attributes = attributes.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    (attributes, data.to_string().into_bytes())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_message_is_read_or_refused_and_explained_alike(
        attributes in vec((word(), word()), 0..8).prop_map(HashMap::from_iter),
        data in data(),
    ) {
        let filters = Filters::default();
        let explanation = explain(&attributes, &data, &filters);
        match read(&attributes, &data, &filters) {
            Ok(Reading::Upload(upload)) => {
                prop_assert_eq!(explanation.verdict.as_str(), "label");
                prop_assert!((1..=1024).contains(&upload.object.name.len()));
                prop_assert!((3..=222).contains(&upload.object.bucket.len()));
                prop_assert!(upload.object.generation.is_none_or(|generation| generation > 0));
            }
            Ok(Reading::Skip { reason, .. }) => {
                prop_assert_eq!(explanation.verdict.as_str(), "skip");
                prop_assert_eq!(explanation.reason.as_deref(), Some(reason.as_str()));
            }
            Err(error) => {
                prop_assert_eq!(explanation.verdict.as_str(), "fail");
                prop_assert_eq!(explanation.because, Some(error.to_string()));
            }
        }
    }

    #[test]
    fn any_file_is_parsed_or_refused(bytes in data()) {
        for message in parse_message_file(&bytes).unwrap_or_default() {
            explain(&message.attributes, &message.data, &Filters::default()).to_string();
        }
    }

    #[test]
    fn an_upload_written_in_any_shape_reads_back_as_the_same_object(
        bucket in bucket(),
        name in name(),
        generation in 1..i64::MAX,
        kind in prop::sample::select(EventKind::ALL.to_vec()),
        numbers in any::<bool>(),
    ) {
        prop_assume!(name.len() <= 1024);
        let mut sent = ObjectId { bucket, name, generation: Some(generation) };
        let (attributes, data) = written(kind, &sent, numbers);
        if kind == EventKind::AuditLog {
            sent.generation = None;
        }
        match read(&attributes, &data, &Filters::default()) {
            Ok(Reading::Upload(upload)) => {
                prop_assert_eq!(upload.object, sent);
                prop_assert_eq!(upload.kind, kind);
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn ids_are_equal_for_equal_inputs_and_differ_for_others(
        one in (text(6), text(6), prop::option::of(any::<i64>()), text(6)),
        two in (text(6), text(6), prop::option::of(any::<i64>()), text(6)),
    ) {
        let id = |(bucket, name, generation, digest): &(String, String, Option<i64>, String)| {
            result_id(&object(bucket, name, *generation), digest)
        };
        prop_assert_eq!(id(&one), id(&one.clone()));
        prop_assert_eq!(one == two, id(&one) == id(&two));
        // The same characters, split elsewhere.
        let moved = (format!("{}{}", one.0, one.1), String::new(), one.2, one.3.clone());
        prop_assert_eq!(one == moved, id(&one) == id(&moved));
    }

    #[test]
    fn attributes_never_exceed_what_pubsub_carries(
        bucket in bucket(), name in name(), top in text(1500), model in text(1500),
    ) {
        let attributes = labelled(&object(&bucket, &name, Some(1)), &top, &model).attributes();
        prop_assert!(attributes.len() <= MAX_ATTRIBUTES);
        for (key, value) in &attributes {
            prop_assert!((1..=256).contains(&key.len()), "{}", key);
            prop_assert!((1..=1024).contains(&value.len()), "{}", key);
        }
        prop_assert!(top.starts_with(attributes.get("top_label").map_or("", String::as_str)));
    }
}
