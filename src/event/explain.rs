//! What a message means to the worker, told to a person.

use std::collections::HashMap;
use std::fmt;

use serde::Serialize;

use super::shape::Shape;
use super::{EventKind, FailureCode, Filters, Reading, check_limits, printable};

/// What the worker would do with a message, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// The shape that was recognised; missing when none fits.
    pub shape: Option<EventKind>,
    /// What gave the shape away.
    pub evidence: Option<String>,
    /// What happened, in the words of the shape: an event type, a CloudEvents type, a method.
    pub event: Option<String>,
    /// The object: `gs://bucket/name#generation`.
    pub object: Option<String>,
    /// The object's size in bytes, where the event tells it.
    pub size: Option<u64>,
    /// The object's declared content type, where the event tells it.
    pub content_type: Option<String>,
    /// What becomes of the message.
    pub verdict: Verdict,
    /// The name of the reason to skip or of the failure; missing when the object is labelled.
    pub reason: Option<String>,
    /// The reason in words.
    pub because: Option<String>,
    /// What the worker does, in order.
    pub then: Vec<String>,
}

/// What becomes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The object is read and labelled.
    Label,
    /// It is acknowledged and counted.
    Skip,
    /// A failed result is published.
    Fail,
}

impl Verdict {
    /// The name, as printed.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Label => "label",
            Self::Skip => "skip",
            Self::Fail => "fail",
        }
    }
}

/// Explains a message by reading it as the worker does.
pub fn explain(attributes: &HashMap<String, String>, data: &[u8], filters: &Filters) -> Explanation {
    let mut explanation = Explanation {
        shape: None,
        evidence: None,
        event: None,
        object: None,
        size: None,
        content_type: None,
        verdict: Verdict::Label,
        reason: None,
        because: None,
        then: Vec::new(),
    };
    let reading = check_limits(attributes, data).and_then(|()| Shape::detect(attributes, data)).and_then(|shape| {
        explanation.shape = Some(shape.kind());
        explanation.evidence = Some(shape.evidence().into());
        let seen = shape.read(attributes, data)?;
        explanation.event = Some(seen.happened.clone());
        filters.judge(seen)
    });
    match reading {
        Ok(Reading::Upload(upload)) => {
            let which = match upload.object.generation {
                Some(generation) => format!("generation {generation}, and no other"),
                None => "its newest generation: the event tells none".into(),
            };
            explanation.shape = Some(upload.kind);
            explanation.object = Some(upload.object.to_string());
            explanation.size = upload.size;
            explanation.content_type = upload.content_type;
            explanation.then = vec![
                format!("read the object, {which}"),
                "label it and publish the result".into(),
                "acknowledge the message once the result is confirmed".into(),
            ];
        }
        Ok(Reading::Skip { reason, kind, object }) => {
            explanation.shape = Some(kind);
            explanation.object = object.map(|object| object.to_string());
            explanation.verdict = Verdict::Skip;
            explanation.reason = Some(reason.as_str().into());
            explanation.because = Some(reason.to_string());
            explanation.then = vec!["acknowledge the message and count the skip by its reason".into()];
        }
        Err(error) => {
            explanation.shape = error.kind().or(explanation.shape);
            explanation.verdict = Verdict::Fail;
            explanation.reason = Some(FailureCode::UnreadableEvent.to_string());
            explanation.because = Some(error.to_string());
            explanation.then =
                vec!["publish a failed result".into(), "acknowledge the message once the result is confirmed".into()];
        }
    }
    explanation
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.shape, &self.evidence) {
            (Some(shape), Some(evidence)) => writeln!(f, "shape    {shape}: {evidence}")?,
            (Some(shape), None) => writeln!(f, "shape    {shape}")?,
            (None, _) => writeln!(f, "shape    none")?,
        }
        if let Some(event) = &self.event {
            writeln!(f, "event    {}", printable(event))?;
        }
        if let Some(object) = &self.object {
            write!(f, "object   {object}")?;
            if let Some(size) = self.size {
                write!(f, ", {size} bytes")?;
            }
            if let Some(content_type) = &self.content_type {
                write!(f, ", {}", printable(content_type))?;
            }
            writeln!(f)?;
        }
        write!(f, "verdict  {}", self.verdict.as_str())?;
        if let Some(reason) = &self.reason {
            write!(f, ": {reason}")?;
        }
        writeln!(f)?;
        if let Some(because) = &self.because {
            writeln!(f, "because  {}", printable(because))?;
        }
        let mut mark = "then";
        for step in &self.then {
            writeln!(f, "{mark:<8} {step}")?;
            mark = "";
        }
        Ok(())
    }
}
