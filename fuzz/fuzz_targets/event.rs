//! Any bytes, as the data of a message and as a file of messages: reading them ends, in a reading or an error, and
//! the explanation says the same.
//!
//! `cargo fuzz run event` (nightly, or `RUSTC_BOOTSTRAP=1`). The seeds are the files of `fixtures/events`.

#![no_main]

use std::collections::HashMap;

use libfuzzer_sys::fuzz_target;
use stoker::event::{Filters, Reading, explain, parse_message_file, read, result_id};

fuzz_target!(|bytes: &[u8]| {
    check(&HashMap::new(), bytes);
    for message in parse_message_file(bytes).unwrap_or_default() {
        check(&message.attributes, &message.data);
    }
});

fn check(attributes: &HashMap<String, String>, data: &[u8]) {
    let filters = Filters::default();
    let explanation = explain(attributes, data, &filters);
    assert!(explanation.to_string().chars().all(|c| c == '\n' || !c.is_control()));
    match read(attributes, data, &filters) {
        Ok(Reading::Upload(upload)) => {
            assert_eq!(explanation.verdict.as_str(), "label");
            assert!((1..=1024).contains(&upload.object.name.len()));
            assert!((3..=222).contains(&upload.object.bucket.len()));
            assert_eq!(result_id(&upload.object, "").len(), 32);
        }
        Ok(Reading::Skip { .. }) => assert_eq!(explanation.verdict.as_str(), "skip"),
        Err(error) => assert_eq!(explanation.because, Some(error.to_string())),
    }
}
