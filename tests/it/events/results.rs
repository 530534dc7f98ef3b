//! Results: JSON, attributes and ids.

use std::collections::{HashMap, HashSet};

use stoker::event::{
    EventInfo, EventKind, Failure, FailureCode, Filters, ImageInfo, Label, LabelResult, ModelInfo, ObjectId,
    ObjectInfo, Status, Timing, WorkerInfo, result_id, unreadable_id,
};

use super::line;

pub(super) fn object(bucket: &str, name: &str, generation: Option<i64>) -> ObjectId {
    ObjectId { bucket: bucket.into(), name: name.into(), generation }
}

pub(super) fn labelled(object: &ObjectId, top: &str, model: &str) -> LabelResult {
    LabelResult {
        id: result_id(object, "sha256:00"),
        status: Status::Labeled,
        object: Some(ObjectInfo { size: Some(3), ..ObjectInfo::from(object) }),
        image: Some(ImageInfo { format: "png".into(), width: 2, height: 1, orientation: 1, truncated: false }),
        embedding: None,
        labels: vec![Label { name: top.into(), index: 0, score: 0.5 }],
        model: ModelInfo { name: model.into(), digest: "sha256:00".into(), device: "CPU".into() },
        event: EventInfo { kind: Some(EventKind::Direct), message_id: "1".into(), published_at: None, attempt: None },
        timing_ms: Timing { total: 9, ..Timing::default() },
        worker: WorkerInfo { version: "0.1.0".into(), instance: "i".into() },
        error: None,
    }
}

#[test]
fn an_id_differs_when_any_field_does_and_only_then() {
    let digest = "sha256:00";
    let base = object("ab", "c", Some(1));
    assert_eq!(result_id(&base, digest), result_id(&base.clone(), digest));
    // Fields that would run together without their lengths, and generations that would without their presence.
    let ids = HashSet::from([
        result_id(&base, digest),
        result_id(&object("a", "bc", Some(1)), digest),
        result_id(&object("ab", "c", Some(2)), digest),
        result_id(&object("ab", "c", Some(0)), digest),
        result_id(&object("ab", "c", None), digest),
        result_id(&object("ab", "cs", Some(1)), "ha256:00"),
        result_id(&base, "sha256:01"),
        unreadable_id("ab"),
        unreadable_id("c"),
    ]);
    assert_eq!(ids.len(), 9);
    assert!(ids.iter().all(|id| id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())));
}

/// Subscribers keep ids: a change to how they are made must be meant. The values come from another
/// program, written after docs/results.md.
#[test]
fn ids_stay_what_they_are() {
    assert_eq!(result_id(&object("uploads", "cat.jpg", Some(7)), "sha256:00"), "07c80f5794daf633bc59fbaf278fa88e");
    assert_eq!(unreadable_id("13500356927496703"), "725057d4167d5e78f28d0ddc509c637c");
}

#[test]
fn attributes_that_do_not_fit_are_cut_or_left_out() {
    let name = "n".repeat(1016);
    let fits = labelled(&object("uploads", &name, Some(1)), &"é".repeat(600), &"m".repeat(2000)).attributes();
    assert_eq!(fits["ce-subject"], format!("objects/{name}"));
    assert_eq!(fits["top_label"], "é".repeat(512));
    assert_eq!(fits["model"], "m".repeat(1024));

    let too_long = labelled(&object("uploads", &format!("{name}n"), Some(1)), "cat", "m").attributes();
    assert!(!too_long.contains_key("ce-subject"));
    let line_break = labelled(&object("uploads", "a\nb", Some(1)), "cat", "m").attributes();
    assert!(!line_break.contains_key("ce-subject"));
}

#[test]
fn a_result_that_comes_back_as_an_event_is_skipped() {
    let result = labelled(&object("uploads", "cat.jpg", Some(7)), "cat", "m");
    assert_eq!(line(&result.attributes(), &result.to_json(), &Filters::default()), "skip event_type cloudevent_binary");
}

#[test]
fn results_are_read_back_as_they_were_written() {
    let mut result = labelled(&object("uploads", "größe\n.jpg", Some(i64::MAX)), "cat", "m");
    assert_eq!(serde_json::from_slice::<LabelResult>(&result.to_json()).unwrap(), result);
    result.status = Status::Failed;
    result.labels.clear();
    (result.object, result.image, result.event.kind) = (None, None, None);
    result.error = Some(Failure::new(FailureCode::UnreadableEvent, "é".repeat(600)));
    let json = String::from_utf8(result.to_json()).unwrap();
    assert!(!json.contains("null"), "{json}");
    let back: LabelResult = serde_json::from_str(&json).unwrap();
    assert_eq!(back, result);
    assert_eq!(back.error.unwrap().message, "é".repeat(512));
}

#[test]
fn names_of_codes_and_kinds_are_those_of_the_json() {
    for code in FailureCode::ALL {
        assert_eq!(serde_json::to_value(code).unwrap(), code.as_str());
    }
    for kind in EventKind::ALL {
        assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
    }
    for reason in stoker::event::SkipReason::ALL {
        assert_eq!(serde_json::to_value(reason).unwrap(), reason.as_str());
    }
    let unknown: HashMap<&str, &str> = HashMap::from([("code", "tired"), ("message", "")]);
    assert!(serde_json::from_value::<Failure>(serde_json::to_value(unknown).unwrap()).is_err());
}
