//! Class names: a text file with one a line, a JSON list, or the JSON object with `id2label` that training code writes.

use serde_json::Value;

/// Class names that cannot be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LabelsError {
    /// Neither text nor JSON.
    #[error("not UTF-8")]
    NotText,
    /// JSON of another kind.
    #[error("JSON, but neither a list of names nor an object {{\"0\": \"name\", …}}, alone or as \"id2label\"")]
    Json,
    /// The numbers of the classes have a gap.
    #[error("class {0} has no name")]
    Gap(usize),
    /// There are none.
    #[error("no names")]
    None,
}

/// Reads the names, in the order of the classes. A byte order mark and the line ends of other systems are left out.
pub(super) fn read(bytes: &[u8]) -> Result<Vec<String>, LabelsError> {
    let text = std::str::from_utf8(bytes).map_err(|_| LabelsError::NotText)?;
    let text = text.trim_start_matches('\u{FEFF}');
    let labels = if text.trim_start().starts_with(['{', '[']) {
        json(text)?
    } else {
        text.trim_end().lines().map(|line| line.trim().to_owned()).collect()
    };
    if labels.is_empty() { Err(LabelsError::None) } else { Ok(labels) }
}

fn json(text: &str) -> Result<Vec<String>, LabelsError> {
    let name = |value: &Value| value.as_str().map(|name| name.trim().to_owned()).ok_or(LabelsError::Json);
    match serde_json::from_str(text).map_err(|_| LabelsError::Json)? {
        Value::Array(names) => names.iter().map(name).collect(),
        Value::Object(mut object) => {
            let names = match object.remove("id2label") {
                Some(Value::Object(names)) => names,
                Some(_) => return Err(LabelsError::Json),
                None => object,
            };
            (0..names.len()).map(|class| name(names.get(&class.to_string()).ok_or(LabelsError::Gap(class))?)).collect()
        }
        _ => Err(LabelsError::Json),
    }
}

#[cfg(test)]
mod tests {
    use super::{LabelsError, read};

    #[test]
    fn names_come_from_lines_lists_and_numbered_objects() {
        for text in [
            "cat\ndog\n",
            "\u{FEFF}cat\r\ndog\r\n",
            "cat \ndog\n\n\n",
            r#"["cat", "dog"]"#,
            r#"{"1": "dog", "0": "cat"}"#,
            r#"{"model_type": "resnet", "id2label": {"0": "cat", "1": "dog"}}"#,
        ] {
            assert_eq!(read(text.as_bytes()).unwrap(), ["cat", "dog"], "{text:?}");
        }
        assert_eq!(read(br#"{"0": "cat", "2": "dog"}"#), Err(LabelsError::Gap(1)));
        assert_eq!(read(br#"{"0": 7}"#), Err(LabelsError::Json));
        assert_eq!(read(b" \n"), Err(LabelsError::None));
        assert_eq!(read(&[0xff]), Err(LabelsError::NotText));
    }
}
