//! Messages in every shape, their readings, and the results at the other end.

mod docs;
mod errors;
mod properties;
mod readings;
mod results;

use std::collections::HashMap;

use stoker::event::{Filters, Reading, read};

/// A reading in one line: what the tables of these tests state.
fn line(attributes: &HashMap<String, String>, data: &[u8], filters: &Filters) -> String {
    match read(attributes, data, filters) {
        Ok(Reading::Upload(upload)) => {
            let size = upload.size.map(|size| format!(" {size}B")).unwrap_or_default();
            let content_type = upload.content_type.map(|text| format!(" {text}")).unwrap_or_default();
            format!("{} {}{size}{content_type}", upload.kind, upload.object)
        }
        Ok(Reading::Skip { reason, kind, object }) => {
            let object = object.map(|object| format!(" {object}")).unwrap_or_default();
            format!("skip {} {kind}{object}", reason.as_str())
        }
        Err(error) => format!("error {error}"),
    }
}

/// Attributes from pairs.
fn attributes(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
}

/// The attributes of a notification about `uploads/cat.jpg`, generation 7.
fn notification() -> HashMap<String, String> {
    attributes(&[
        ("eventType", "OBJECT_FINALIZE"),
        ("payloadFormat", "JSON_API_V1"),
        ("bucketId", "uploads"),
        ("objectId", "cat.jpg"),
        ("objectGeneration", "7"),
    ])
}
