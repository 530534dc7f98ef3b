//! The attributes of a published result: what subscribers filter on, and the CloudEvents binary mode.
//!
//! Pub/Sub carries 100 attributes of at most 256 bytes (keys) and 1024 bytes (values), and refuses the whole message
//! beyond (<https://cloud.google.com/pubsub/quotas#resource_limits>): what is for people is cut, what identifies
//! something is left out where it does not fit. The data always holds all of it.

use std::collections::HashMap;

use super::{LabelResult, Status};

/// Most bytes of an attribute's value.
const MAX_VALUE_BYTES: usize = 1024;

impl LabelResult {
    /// The attributes of the published message; none is empty.
    pub fn attributes(&self) -> HashMap<String, String> {
        let object = self.object.as_ref();
        let mut attributes = Attributes(HashMap::new());
        attributes.set("result_id", &self.id);
        attributes.set("status", self.status.as_str());
        attributes.set_cut("model", &self.model.name);
        if let Some(object) = object {
            attributes.set("bucket", &object.bucket);
        }
        if let Some(top) = self.labels.first() {
            attributes.set_cut("top_label", &top.name);
        }
        if let Some(error) = &self.error {
            attributes.set("error_code", error.code.as_str());
        }
        attributes.set("content-type", "application/json");
        attributes.set("ce-specversion", "1.0");
        attributes.set("ce-id", &self.id);
        attributes.set("ce-type", self.ce_type());
        match object {
            Some(object) => {
                attributes.set("ce-source", &format!("/stoker/buckets/{}", object.bucket));
                attributes.set("ce-subject", &format!("objects/{}", object.name));
            }
            None => attributes.set("ce-source", "/stoker"),
        }
        attributes.0
    }

    fn ce_type(&self) -> &'static str {
        match self.status {
            Status::Labeled => "dev.stoker.image.labeled.v1",
            Status::Failed => "dev.stoker.image.failed.v1",
        }
    }
}

struct Attributes(HashMap<String, String>);

impl Attributes {
    /// Leaves it out if it does not fit. CloudEvents strings hold no control characters.
    fn set(&mut self, key: &str, value: &str) {
        let fits = (1..=MAX_VALUE_BYTES).contains(&value.len());
        if fits && !(key.starts_with("ce-") && value.chars().any(char::is_control)) {
            self.0.insert(key.into(), value.into());
        }
    }

    /// Keeps as many whole characters as fit.
    fn set_cut(&mut self, key: &str, value: &str) {
        self.set(key, &value[..value.floor_char_boundary(MAX_VALUE_BYTES)]);
    }
}
