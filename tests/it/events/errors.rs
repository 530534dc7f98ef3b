//! Every way in which a message cannot be read, and what the error tells its sender.

use std::collections::HashMap;

use stoker::event::{EventKind, Filters, MAX_ATTRIBUTES_BYTES, MAX_DATA_BYTES, read};

use super::{attributes, notification};

/// The error of a message, and the shape that it was recognised as.
fn error(attributes: &HashMap<String, String>, data: &str) -> (Option<EventKind>, String) {
    let error = read(attributes, data.as_bytes(), &Filters::default()).expect_err("an error");
    (error.kind(), error.to_string())
}

#[test]
fn errors_of_data_say_what_is_wrong_and_in_which_shape() {
    let long = "x".repeat(1025);
    let cut = format!("{:?} (cut)", "x".repeat(80));
    let audit = |payload: &str| format!(r#"{{"protoPayload":{payload}}}"#);
    let created = r#""serviceName":"storage.googleapis.com","methodName":"storage.objects.create""#;
    let event =
        |rest: &str| format!(r#"{{"specversion":"1.0","type":"google.cloud.storage.object.v1.finalized"{rest}}}"#);
    let unrecognised = |found: &str| {
        format!("no event shape fits: there are no attributes, and {found}; the shapes are in docs/events.md")
    };
    let bare = "the data is a JSON object without specversion, protoPayload, uri, bucket and name";
    let table = [
        // Nothing to go by.
        (String::new(), None, unrecognised("there is no data")),
        ("{}".into(), None, unrecognised(bare)),
        (r#"{"uri":null}"#.into(), None, unrecognised(bare)),
        ("[]".into(), None, unrecognised("the data is not a JSON object (it is an array)")),
        ("\"{}\"".into(), None, unrecognised("the data is not a JSON object (it is \"{}\")")),
        ("{} {}".into(), None, unrecognised("the data is not a JSON object (trailing characters at line 1 column 4)")),
        (
            r#"{"uri":"gs://a/b","uri":"gs://c/d"}"#.into(),
            None,
            unrecognised("the data is not a JSON object (field uri is given twice at line 1 column 35)"),
        ),
        (
            r#"{"data":"#.repeat(200),
            None,
            unrecognised("the data is not a JSON object (recursion limit exceeded at line 1 column 1017)"),
        ),
        // Direct.
        (r#"{"name":"a"}"#.into(), Some(EventKind::Direct), "direct: bucket is missing".into()),
        (r#"{"bucket":"uploads"}"#.into(), Some(EventKind::Direct), "direct: name is missing".into()),
        (
            r#"{"uri":"gs://uploads"}"#.into(),
            Some(EventKind::Direct),
            "direct: uri is \"gs://uploads\": expected gs://BUCKET/NAME".into(),
        ),
        (
            r#"{"uri":["gs://a/b"]}"#.into(),
            Some(EventKind::Direct),
            "direct: uri is an array: expected a string".into(),
        ),
        (
            r#"{"uri":"gs://uploads/"}"#.into(),
            Some(EventKind::Direct),
            "direct: uri is \"\": expected an object name of 1 to 1024 bytes without line breaks, not . or ..".into(),
        ),
        (
            r#"{"bucket":"uploads","name":"a\nb"}"#.into(),
            Some(EventKind::Direct),
            "direct: name is \"a\\nb\": expected an object name of 1 to 1024 bytes without line breaks, not . or ..".into(),
        ),
        (
            r#"{"bucket":"uploads","name":".."}"#.into(),
            Some(EventKind::Direct),
            "direct: name is \"..\": expected an object name of 1 to 1024 bytes without line breaks, not . or ..".into(),
        ),
        (
            format!(r#"{{"bucket":"uploads","name":"{long}"}}"#),
            Some(EventKind::Direct),
            format!("direct: name is {cut}: expected an object name of 1 to 1024 bytes without line breaks, not . or .."),
        ),
        (
            r#"{"bucket":"Up/loads","name":"a"}"#.into(),
            Some(EventKind::Direct),
            "direct: bucket is \"Up/loads\": expected a bucket name".into(),
        ),
        (
            r#"{"uri":"gs://uploads/a","name":"b"}"#.into(),
            Some(EventKind::Direct),
            "direct: uri is \"a\" but name is \"b\": which object is meant?".into(),
        ),
        (
            r#"{"bucket":"uploads","name":"a","generation":-1}"#.into(),
            Some(EventKind::Direct),
            "direct: generation is \"-1\": expected a positive number".into(),
        ),
        (
            r#"{"bucket":"uploads","name":"a","generation":0}"#.into(),
            Some(EventKind::Direct),
            "direct: generation is \"0\": expected a positive number".into(),
        ),
        (
            r#"{"bucket":"uploads","name":"a","generation":1e16}"#.into(),
            Some(EventKind::Direct),
            "direct: generation is a float too large to be exact: expected a number or a string".into(),
        ),
        (
            r#"{"bucket":"uploads","name":"a","generation":1.5}"#.into(),
            Some(EventKind::Direct),
            "direct: generation is \"1.5\": expected a positive number".into(),
        ),
        (
            r#"{"bucket":"uploads","name":"a","size":"+3"}"#.into(),
            Some(EventKind::Direct),
            "direct: size is \"+3\": expected a number of bytes".into(),
        ),
        // Structured CloudEvents.
        (
            r#"{"specversion":"2.0","type":"x"}"#.into(),
            Some(EventKind::CloudEventStructured),
            "cloudevent_structured: specversion is \"2.0\": expected \"1.0\"".into(),
        ),
        (
            r#"{"specversion":"1.0"}"#.into(),
            Some(EventKind::CloudEventStructured),
            "cloudevent_structured: type is missing".into(),
        ),
        (
            event(""),
            Some(EventKind::CloudEventStructured),
            "cloudevent_structured: the bucket (data.bucket or CloudEvents source) is missing".into(),
        ),
        (
            event(r#","data":{"bucket":"uploads"}"#),
            Some(EventKind::CloudEventStructured),
            "cloudevent_structured: the name (data.name or CloudEvents subject) is missing".into(),
        ),
        (
            event(r#","data":"text""#),
            Some(EventKind::CloudEventStructured),
            "cloudevent_structured: data is \"text\": expected an object".into(),
        ),
        (
            event(r#","data_base64":"%""#),
            Some(EventKind::CloudEventStructured),
            "cloudevent_structured: data_base64 is \"%\": expected base64".into(),
        ),
        (
            event(r#","data_base64":"e30x""#),
            Some(EventKind::CloudEventStructured),
            "cloudevent_structured: the data is not a JSON object: trailing characters at line 1 column 3".into(),
        ),
        (
            event(r#","bucket":"other","data":{"bucket":"uploads","name":"a"}"#),
            Some(EventKind::CloudEventStructured),
            "cloudevent_structured: data.bucket is \"uploads\" but CloudEvents bucket is \"other\": which object is meant?"
                .into(),
        ),
        (
            r#"{"specversion":"1.0","type":"google.cloud.audit.log.v1.written"}"#.into(),
            Some(EventKind::AuditLog),
            "audit_log: an event without data cannot be read: send application/json (Eventarc: \
             --event-data-content-type=application/json)"
                .into(),
        ),
        // Audit log entries.
        (audit("7"), Some(EventKind::AuditLog), "audit_log: protoPayload is 7: expected an object".into()),
        (audit("{}"), Some(EventKind::AuditLog), "audit_log: protoPayload.methodName is missing".into()),
        (
            audit(r#"{"methodName":"storage.objects.create"}"#),
            Some(EventKind::AuditLog),
            "audit_log: protoPayload.serviceName is missing".into(),
        ),
        (
            audit(&format!("{{{created}}}")),
            Some(EventKind::AuditLog),
            "audit_log: protoPayload.resourceName is missing".into(),
        ),
        (
            audit(&format!(r#"{{{created},"resourceName":"projects/_/buckets/uploads"}}"#)),
            Some(EventKind::AuditLog),
            "audit_log: protoPayload.resourceName is \"projects/_/buckets/uploads\": expected \
             projects/_/buckets/BUCKET/objects/NAME"
                .into(),
        ),
    ];
    for (data, kind, message) in table {
        assert_eq!(error(&HashMap::new(), &data), (kind, message), "{}", &data[..data.len().min(200)]);
    }
}

#[test]
fn errors_of_attributes_say_what_is_wrong_and_in_which_shape() {
    let changed = |key: &str, value: &str| {
        let mut sent = notification();
        sent.insert(key.into(), value.into());
        sent
    };
    let binary = |more: &[(&str, &str)]| {
        let mut sent = attributes(&[("ce-type", "google.cloud.storage.object.v1.finalized")]);
        sent.extend(attributes(more));
        sent
    };
    let notified = Some(EventKind::GcsNotification);
    let table = [
        (
            changed("bucketId", "x"),
            "",
            notified,
            "gcs_notification: attribute bucketId is \"x\": expected a bucket name",
        ),
        (
            changed("objectId", ""),
            "",
            notified,
            "gcs_notification: attribute objectId is \"\": expected an object name of 1 to 1024 bytes without line breaks, not . or ..",
        ),
        (
            changed("objectGeneration", "soon"),
            "",
            notified,
            "gcs_notification: attribute objectGeneration is \"soon\": expected a positive number",
        ),
        (
            notification(),
            r#"{"bucket":"other"}"#,
            notified,
            "gcs_notification: attribute bucketId is \"uploads\" but data.bucket is \"other\": which object is meant?",
        ),
        (
            notification(),
            r#"{"name":"cat%2Ejpg"}"#,
            notified,
            "gcs_notification: attribute objectId is \"cat.jpg\" but data.name is \"cat%2Ejpg\": which object is meant?",
        ),
        (
            notification(),
            r#"{"generation":8}"#,
            notified,
            "gcs_notification: attribute objectGeneration is \"7\" but data.generation is \"8\": which object is meant?",
        ),
        (
            notification(),
            r#"{"size":true}"#,
            notified,
            "gcs_notification: data.size is a boolean: expected a number or a string",
        ),
        (
            notification(),
            "<html>",
            notified,
            "gcs_notification: the data is not a JSON object: expected value at line 1 column 1",
        ),
        (
            binary(&[]),
            "",
            Some(EventKind::CloudEventBinary),
            "cloudevent_binary: the bucket (data.bucket or CloudEvents source) is missing",
        ),
        (
            binary(&[("ce-specversion", "0.3")]),
            "",
            Some(EventKind::CloudEventBinary),
            "cloudevent_binary: attribute ce-specversion is \"0.3\": expected \"1.0\"",
        ),
        (
            binary(&[]),
            "[]",
            Some(EventKind::CloudEventBinary),
            "cloudevent_binary: the data is not a JSON object: it is an array",
        ),
        (
            attributes(&[("content-type", "application/cloudevents-batch+json")]),
            "[]",
            Some(EventKind::CloudEventStructured),
            "cloudevent_structured: content-type \"application/cloudevents-batch+json\" cannot be read: send \
             application/cloudevents+json",
        ),
        (
            attributes(&[("content-type", "application/cloudevents+json")]),
            "",
            Some(EventKind::CloudEventStructured),
            "cloudevent_structured: the data is not a JSON object: EOF while parsing a value at line 1 column 0",
        ),
        (
            attributes(&[("ce-type", "google.cloud.audit.log.v1.written"), ("content-type", "application/protobuf")]),
            "\u{1}",
            Some(EventKind::AuditLog),
            "audit_log: data of type \"application/protobuf\" cannot be read: send application/json (Eventarc: \
             --event-data-content-type=application/json)",
        ),
        (
            attributes(&[("b", "1"), ("a", "2")]),
            "",
            None,
            "no event shape fits: no attribute marks one (there is \"a, b\"), and there is no data; the shapes are in \
             docs/events.md",
        ),
    ];
    for (sent, data, kind, message) in table {
        assert_eq!(error(&sent, data), (kind, message.into()));
    }
}

#[test]
fn a_message_beyond_the_limits_is_not_looked_into() {
    let at_limit = |bytes: usize| {
        let message = r#"{"uri":"gs://uploads/a"}"#;
        message.to_owned() + &" ".repeat(bytes - message.len())
    };
    assert!(read(&HashMap::new(), at_limit(MAX_DATA_BYTES).as_bytes(), &Filters::default()).is_ok());
    assert_eq!(
        error(&HashMap::new(), &at_limit(MAX_DATA_BYTES + 1)).1,
        "the data is 10000001 bytes long, more than 10000000: send the object's name, not its content"
    );

    let many = |count: usize| (0..count).map(|n| (n.to_string(), String::new())).collect::<HashMap<_, _>>();
    assert!(read(&many(100), br#"{"uri":"gs://uploads/a"}"#, &Filters::default()).is_ok());
    assert_eq!(error(&many(101), "").1, "there are 101 attributes, more than 100");

    let long = HashMap::from([("k".into(), "v".repeat(MAX_ATTRIBUTES_BYTES))]);
    assert_eq!(error(&long, "").1, "the attributes are 128001 bytes long, more than 128000");
}

#[test]
fn deep_nesting_where_nobody_looks_costs_no_stack() {
    let deep = format!(r#"{{"metadata":{}{},"uri":"gs://uploads/a"}}"#, "[".repeat(1_000_000), "]".repeat(1_000_000));
    assert!(read(&HashMap::new(), deep.as_bytes(), &Filters::default()).is_ok());
}
