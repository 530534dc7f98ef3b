//! The fixtures, names, numbers and filters.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use serde_json::json;
use stoker::event::{EventType, Filters, ObjectId, explain, parse_message_file};

use super::{attributes, line, notification};

const CAT: &str = "gs://uploads/holiday/cat.jpg#1796057584033775";
const CAT_ANY: &str = "gs://uploads/holiday/cat.jpg";

#[test]
fn every_fixture_reads_as_stated() {
    let full = format!("{CAT} 193030B image/jpeg");
    let expected: HashMap<&str, Vec<String>> = HashMap::from([
        ("audit-log", vec![format!("audit_log {CAT_ANY}")]),
        ("audit-log-cloudevent", vec![format!("audit_log {CAT_ANY}")]),
        ("audit-log-denied", vec![format!("skip event_type audit_log {CAT_ANY}")]),
        ("audit-log-read", vec![format!("skip event_type audit_log {CAT_ANY}")]),
        ("cloudevent-binary", vec![format!("cloudevent_binary {full}")]),
        ("cloudevent-binary-deleted", vec![format!("skip event_type cloudevent_binary {CAT}")]),
        ("cloudevent-binary-no-data", vec![format!("cloudevent_binary {CAT_ANY}")]),
        ("cloudevent-binary-protobuf", vec![format!("cloudevent_binary {CAT_ANY}")]),
        ("cloudevent-other-type", vec!["skip event_type cloudevent_binary".into()]),
        ("cloudevent-structured", vec![format!("cloudevent_structured {full}")]),
        ("cloudevent-structured-base64", vec![format!("cloudevent_structured {full}")]),
        ("cloudevent-structured-no-attributes", vec![format!("cloudevent_structured {full}")]),
        ("direct-fields", vec![format!("direct {CAT_ANY}")]),
        ("direct-object-resource", vec![format!("direct {full}")]),
        ("direct-uri", vec![format!("direct {CAT}")]),
        ("gcloud-pull", vec![format!("gcs_notification {full}"), "direct gs://uploads/holiday/dog.png".into()]),
        ("notification", vec![format!("gcs_notification {full}")]),
        ("notification-archive", vec![format!("skip event_type gcs_notification {CAT}")]),
        ("notification-delete", vec![format!("skip event_type gcs_notification {CAT}")]),
        (
            "notification-disagreement",
            vec![
                "error gcs_notification: attribute objectGeneration is \"1796057584033775\" but data.generation is \
                  \"1796057584033776\": which object is meant?"
                    .into(),
            ],
        ),
        ("notification-fake-gcs-server", vec![format!("gcs_notification {full}")]),
        (
            "notification-folder",
            vec!["skip folder_placeholder gcs_notification gs://uploads/holiday/#1796057584033775".into()],
        ),
        ("notification-metadata-update", vec![format!("skip event_type gcs_notification {CAT}")]),
        (
            "notification-odd-name",
            vec![
                "gcs_notification gs://uploads/100%25 +off/größe (1)#2 %2F.jpg#1796057584033775 193030B image/jpeg"
                    .into(),
            ],
        ),
        ("notification-overwrite", vec![format!("gcs_notification {full}")]),
        ("notification-without-payload", vec![format!("gcs_notification {CAT}")]),
        ("push-request", vec![format!("gcs_notification {full}")]),
        (
            "unreadable-partial-notification",
            vec![
                "error no event shape fits: eventType, bucketId without objectId among the attributes, and there is \
                  no data; the shapes are in docs/events.md"
                    .into(),
            ],
        ),
        (
            "unreadable-text",
            vec![
                "error no event shape fits: there are no attributes, and the data is not a JSON object (expected \
                  value at line 1 column 1); the shapes are in docs/events.md"
                    .into(),
            ],
        ),
    ]);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/events");
    let mut seen = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let messages = parse_message_file(&fs::read(&path).unwrap()).unwrap();
        let lines: Vec<_> =
            messages.iter().map(|message| line(&message.attributes, &message.data, &Filters::default())).collect();
        assert_eq!(Some(&lines), expected.get(name), "{name}");
        seen += 1;
    }
    assert_eq!(seen, expected.len());
}

#[test]
fn names_are_opaque_in_every_shape() {
    for name in ["a%2Fb%20c+d.jpg", "  spaced  ", "größe/写真 📷.png", "a//b/../c", "x#7", "gs://b/n", "-", "?&="]
    {
        let object = |kind: &str, pinned: bool| {
            let generation = pinned.then_some(7);
            format!("{kind} {}", ObjectId { bucket: "uploads".into(), name: name.into(), generation })
        };
        let mut sent = notification();
        sent.insert("objectId".into(), name.into());
        assert_eq!(line(&sent, b"", &Filters::default()), object("gcs_notification", true));

        let subject = format!("objects/{name}");
        let event = [
            ("ce-type", "google.cloud.storage.object.v1.finalized"),
            ("ce-source", "//storage.googleapis.com/projects/_/buckets/uploads"),
            ("ce-subject", subject.as_str()),
        ];
        assert_eq!(line(&attributes(&event), b"", &Filters::default()), object("cloudevent_binary", false));

        for (kind, data) in [
            ("direct", json!({"uri": format!("gs://uploads/{name}")})),
            ("direct", json!({"bucket": "uploads", "name": name})),
            (
                "audit_log",
                json!({"protoPayload": {"serviceName": "storage.googleapis.com", "methodName": "storage.objects.create",
                    "resourceName": format!("projects/_/buckets/uploads/objects/{name}")}}),
            ),
            (
                "cloudevent_structured",
                json!({"specversion": "1.0", "type": "google.cloud.storage.object.v1.finalized",
                    "subject": "objects/percent%20encoded", "data": {"bucket": "uploads", "name": name}}),
            ),
        ] {
            let data = data.to_string();
            assert_eq!(line(&HashMap::new(), data.as_bytes(), &Filters::default()), object(kind, false), "{data}");
        }
    }
}

#[test]
fn generation_and_size_may_be_strings_numbers_or_whole_floats() {
    for (generation, size) in
        [("\"1796057584033775\"", "\"193030\""), ("1796057584033775", "193030"), ("1.796057584033775e15", "193030.0")]
    {
        let data = format!(r#"{{"bucket":"uploads","name":"a","generation":{generation},"size":{size}}}"#);
        let read = line(&HashMap::new(), data.as_bytes(), &Filters::default());
        assert_eq!(read, "direct gs://uploads/a#1796057584033775 193030B");
    }
    let data = br#"{"bucket":"uploads","name":"a","generation":null,"size":null,"contentType":null}"#;
    assert_eq!(line(&HashMap::new(), data, &Filters::default()), "direct gs://uploads/a");
}

#[test]
fn filters_decide_by_type_name_and_content_type() {
    let data = |name: &str, content_type: &str| {
        json!({"bucket": "uploads", "name": name, "content_type": content_type}).to_string()
    };
    let verdict = |name: &str, content_type: &str, filters: &Filters| {
        line(&HashMap::new(), data(name, content_type).as_bytes(), filters)
            .split(' ')
            .take(2)
            .collect::<Vec<_>>()
            .join(" ")
    };
    let names = Filters {
        name_prefixes: vec!["in/".into(), "raw/".into()],
        name_suffixes: vec![".jpg".into(), ".JPG".into()],
        ..Filters::default()
    };
    assert_eq!(verdict("raw/a.JPG", "", &names), "direct gs://uploads/raw/a.JPG");
    assert_eq!(verdict("raw/a.Jpg", "", &names), "skip name_filter");
    assert_eq!(verdict("out/a.jpg", "", &names), "skip name_filter");
    assert_eq!(verdict("in/", "", &names), "skip folder_placeholder");

    let types =
        Filters { content_types: vec!["image/*".into(), "application/octet-stream".into()], ..Filters::default() };
    assert_eq!(verdict("a", "Image/JPEG; charset=binary", &types), "direct gs://uploads/a");
    assert_eq!(verdict("a", "application/octet-stream", &types), "direct gs://uploads/a");
    assert_eq!(verdict("a", "imagery/jpeg", &types), "skip content_type_filter");
    assert_eq!(verdict("a", "text/html", &types), "skip content_type_filter");
    assert_eq!(verdict("a", "", &types), "direct gs://uploads/a");
    assert_eq!(
        verdict("a", "text/html", &Filters { content_types: vec!["*/*".into()], ..types }),
        "direct gs://uploads/a"
    );

    let mut deleted = notification();
    deleted.insert("eventType".into(), "OBJECT_DELETE".into());
    let deletions = Filters { event_types: vec![EventType::Delete], ..Filters::default() };
    assert_eq!(line(&deleted, b"", &deletions), "gcs_notification gs://uploads/cat.jpg#7");
    assert_eq!(line(&notification(), b"", &deletions), "skip event_type gcs_notification gs://uploads/cat.jpg#7");
    let everything = Filters { event_types: vec![], ..Filters::default() };
    assert_eq!(line(&deleted, b"", &everything), "gcs_notification gs://uploads/cat.jpg#7");
}

#[test]
fn a_folder_with_content_is_an_object() {
    let data = br#"{"bucket":"uploads","name":"odd/","size":12}"#;
    assert_eq!(line(&HashMap::new(), data, &Filters::default()), "direct gs://uploads/odd/ 12B");
}

#[test]
fn an_event_that_is_not_labelled_is_skipped_even_where_it_names_no_object() {
    let sent = attributes(&[("eventType", "OBJECT_NEW_KIND"), ("bucketId", "!"), ("objectId", "")]);
    assert_eq!(line(&sent, b"{", &Filters::default()), "skip event_type gcs_notification");
}

#[test]
fn a_shape_that_attributes_declare_comes_before_what_the_data_looks_like() {
    let direct = br#"{"uri":"gs://other/object","specversion":"1.0"}"#;
    let mut sent = notification();
    sent.insert("payloadFormat".into(), "NONE".into());
    sent.insert("ce-type".into(), "google.cloud.storage.object.v1.deleted".into());
    assert_eq!(line(&sent, direct, &Filters::default()), "gcs_notification gs://uploads/cat.jpg#7");
}

#[test]
fn event_types_are_read_by_both_names() {
    for known in EventType::ALL {
        assert_eq!(known.as_str().parse(), Ok(known));
    }
    assert_eq!("OBJECT_FINALIZE".parse(), Ok(EventType::Finalize));
    let error = "finalized".parse::<EventType>().unwrap_err();
    assert_eq!(error.to_string(), "unknown event type \"finalized\": use finalize, metadata_update, delete or archive");
}

#[test]
fn message_files_hold_one_message_a_list_an_envelope_or_bare_data() {
    let parsed = |file: &str| {
        let messages = parse_message_file(file.as_bytes()).map_err(|error| error.to_string())?;
        let short = |message: &stoker::event::FileMessage| {
            let data = String::from_utf8_lossy(&message.data);
            format!("{}:{}:{data}", message.id.as_deref().unwrap_or_default(), message.attributes.len())
        };
        Ok::<_, String>(messages.iter().map(short).collect::<Vec<_>>().join(" "))
    };
    assert_eq!(parsed(r#"{"data":"aGk","messageId":"1"}"#), Ok("1:0:hi".into()));
    assert_eq!(parsed(r#"{"data":"hi there"}"#), Ok(":0:hi there".into()));
    assert_eq!(parsed(r#"{"attributes":{"a":"b"},"data":{"uri":"gs://b/n"}}"#), Ok(r#":1:{"uri":"gs://b/n"}"#.into()));
    assert_eq!(parsed(r#"[{"message":{"message_id":"2"}},{"attributes":null,"data":[]}]"#), Ok("2:0: :0:[]".into()));
    assert_eq!(parsed(r#"{"specversion":"1.0","data":{}}"#), Ok(r#":0:{"specversion":"1.0","data":{}}"#.into()));
    assert_eq!(parsed("not json"), Ok(":0:not json".into()));
    assert_eq!(parsed(r#"{"message":"text"}"#), Ok(r#":0:{"message":"text"}"#.into()));
    assert_eq!(parsed("[]"), Ok(String::new()));
    assert_eq!(parsed(r#"{"attributes":{"a":1}}"#), Err("message 1: an attribute is not a string".into()));
    assert_eq!(parsed(r#"{"attributes":[]}"#), Err("message 1: its attributes are not an object of strings".into()));
    let error = "message 2: it is no message: expected an object with message, attributes or data";
    assert_eq!(parsed(r#"[{"data":""},7]"#), Err(error.into()));
    assert_eq!(parsed(r#"[{"data":""},{}]"#), Err(error.into()));
}

#[test]
fn explanations_escape_what_could_steer_a_terminal() {
    let data = json!({"bucket": "uploads", "name": "a\u{1b}[2Jb\t", "content_type": "x\u{7}"}).to_string();
    let shown = explain(&HashMap::new(), data.as_bytes(), &Filters::default()).to_string();
    assert!(shown.contains(r"gs://uploads/a\u{1b}[2Jb\t, x\u{7}"), "{shown}");
    assert!(shown.chars().all(|c| c == '\n' || !c.is_control()), "{shown}");
}
