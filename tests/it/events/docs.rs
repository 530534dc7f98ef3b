//! The examples of docs/events.md and docs/results.md, and their lists.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use serde_json::Value;
use stoker::event::{
    EventKind, FailureCode, Filters, LabelResult, ObjectId, SkipReason, explain, parse_message_file, result_id,
    unreadable_id,
};

fn page(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(name)).expect("a page of docs")
}

/// Fenced blocks in order: language and content.
fn blocks(page: &str) -> Vec<(&str, String)> {
    let mut blocks = Vec::new();
    let mut lines = page.lines();
    while let Some(start) = lines.find(|line| line.starts_with("```")) {
        let content: String = lines.by_ref().take_while(|line| *line != "```").flat_map(|line| [line, "\n"]).collect();
        blocks.push((start.trim_start_matches('`'), content));
    }
    blocks
}

#[test]
fn every_event_in_the_docs_is_explained_as_printed_there() {
    let page = page("events.md");
    let blocks = blocks(&page);
    assert_eq!(blocks.len() % 2, 0);
    assert!(blocks.len() >= 20);
    for pair in blocks.chunks(2) {
        let [("json", file), ("text", printed)] = pair else { panic!("expected json and text: {pair:?}") };
        let messages = parse_message_file(file.as_bytes()).unwrap();
        let shown: String = messages
            .iter()
            .map(|message| explain(&message.attributes, &message.data, &Filters::default()).to_string())
            .collect();
        assert_eq!(shown, *printed, "{file}");
    }
}

#[test]
fn every_result_in_the_docs_has_the_id_and_the_attributes_printed_there() {
    let page = page("results.md");
    let mut last = None;
    let mut seen = (0, 0);
    for (language, block) in blocks(&page) {
        assert_eq!(language, "json");
        let printed: Value = serde_json::from_str(&block).unwrap();
        if printed.get("result_id").is_some() {
            let result: &LabelResult = last.as_ref().expect("attributes stand under their result");
            let printed: HashMap<String, String> = serde_json::from_value(printed).unwrap();
            assert_eq!(result.attributes(), printed);
            seen.1 += 1;
            continue;
        }
        let result: LabelResult = serde_json::from_str(&block).unwrap();
        let id = match &result.object {
            Some(object) => {
                let (bucket, name) = (object.bucket.clone(), object.name.clone());
                result_id(&ObjectId { bucket, name, generation: object.generation }, &result.model.digest)
            }
            None => unreadable_id(&result.event.message_id),
        };
        assert_eq!(result.id, id);
        let written: Value = serde_json::from_slice(&result.to_json()).unwrap();
        assert_eq!(rounded(written), rounded(printed));
        last = Some(result);
        seen.0 += 1;
    }
    assert_eq!(seen, (3, 2));
}

/// Scores are single precision: 0.83 is written as the nearest of those.
fn rounded(mut result: Value) -> Value {
    for label in result.get_mut("labels").and_then(Value::as_array_mut).into_iter().flatten() {
        let score = label["score"].as_f64().expect("a number");
        label["score"] = format!("{score:.6}").into();
    }
    result
}

#[test]
fn the_lists_in_the_docs_are_complete() {
    let (events, results) = (page("events.md"), page("results.md"));
    for reason in SkipReason::ALL {
        assert!(events.contains(&format!("\n| `{}` |", reason.as_str())), "{reason:?}");
    }
    for kind in EventKind::ALL {
        assert!(events.contains(&format!("\n| `{kind}` |")), "{kind:?}");
    }
    for code in FailureCode::ALL {
        assert!(results.contains(&format!("\n| `{code}` |")), "{code:?}");
    }
}
