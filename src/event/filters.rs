//! Which uploads the worker labels.

use super::{EventError, EventType, Reading, Seen, SkipReason};

/// Which uploads the worker labels. An empty list passes everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filters {
    /// Event types that are labelled. Direct messages and audit log entries count as [`EventType::Finalize`].
    pub event_types: Vec<EventType>,
    /// The object's name must begin with one of these; letter case counts.
    pub name_prefixes: Vec<String>,
    /// The object's name must end with one of these; letter case counts.
    pub name_suffixes: Vec<String>,
    /// The declared content type must be one of these (`image/jpeg`), or of their family (`image/*`). Letter case and
    /// parameters (`; charset=…`) do not count. An upload that declares none, or whose event does not tell it, passes.
    pub content_types: Vec<String>,
}

/// Every finalized object.
impl Default for Filters {
    fn default() -> Self {
        Self {
            event_types: vec![EventType::Finalize],
            name_prefixes: Vec::new(),
            name_suffixes: Vec::new(),
            content_types: Vec::new(),
        }
    }
}

impl Filters {
    /// Judges what a shape says. An event of a type that is not labelled is skipped even where it names no object.
    pub(super) fn judge(&self, seen: Seen) -> Result<Reading, EventError> {
        let Seen { kind, event_type, upload, .. } = seen;
        let wanted = event_type.is_some_and(|found| self.event_types.is_empty() || self.event_types.contains(&found));
        if !wanted {
            let object = upload.ok().map(|upload| upload.object);
            return Ok(Reading::Skip { reason: SkipReason::EventType, kind, object });
        }
        let upload = upload?;
        let name = &upload.object.name;
        let reason = if name.ends_with('/') && upload.size.is_none_or(|size| size == 0) {
            SkipReason::FolderPlaceholder
        } else if !self.passes_name(name) {
            SkipReason::NameFilter
        } else if !self.passes_content_type(upload.content_type.as_deref()) {
            SkipReason::ContentTypeFilter
        } else {
            return Ok(Reading::Upload(upload));
        };
        Ok(Reading::Skip { reason, kind, object: Some(upload.object) })
    }

    fn passes_name(&self, name: &str) -> bool {
        let any = |list: &[String], passes: &dyn Fn(&String) -> bool| list.is_empty() || list.iter().any(passes);
        any(&self.name_prefixes, &|prefix| name.starts_with(prefix.as_str()))
            && any(&self.name_suffixes, &|suffix| name.ends_with(suffix.as_str()))
    }

    fn passes_content_type(&self, declared: Option<&str>) -> bool {
        let Some(declared) = declared else { return true };
        let declared = declared.split(';').next().unwrap_or_default().trim();
        self.content_types.is_empty() || self.content_types.iter().any(|pattern| matches_type(pattern.trim(), declared))
    }
}

fn matches_type(pattern: &str, declared: &str) -> bool {
    match pattern.strip_suffix("/*") {
        Some("*") => true,
        Some(family) => declared.split_once('/').is_some_and(|(found, _)| found.eq_ignore_ascii_case(family)),
        None => declared.eq_ignore_ascii_case(pattern),
    }
}
