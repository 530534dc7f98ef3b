//! A subscription as JSON, with the defaults and limits of the service.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::LEASE_SECONDS;
use crate::local::error::Error;
use crate::local::subscription::{Backoff, DeadLetter, SubscriptionSettings};

/// Delivery attempts that the service allows.
const ATTEMPTS: std::ops::RangeInclusive<u32> = 5..=100;

/// A subscription in JSON.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Wire {
    name: String,
    topic: String,
    ack_deadline_seconds: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_policy: Option<WireRetry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dead_letter_policy: Option<WireDeadLetter>,
    enable_exactly_once_delivery: bool,
    #[serde(skip_serializing)]
    enable_message_ordering: bool,
    #[serde(skip_serializing)]
    filter: String,
    #[serde(skip_serializing)]
    push_config: Value,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WireRetry {
    #[serde(skip_serializing_if = "Option::is_none")]
    minimum_backoff: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    maximum_backoff: Option<String>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WireDeadLetter {
    dead_letter_topic: String,
    max_delivery_attempts: u32,
}

impl Wire {
    pub(super) fn of(settings: &SubscriptionSettings) -> Self {
        Self {
            name: settings.name.clone(),
            topic: settings.topic.clone(),
            ack_deadline_seconds: i32::try_from(settings.ack_deadline.as_secs()).unwrap_or(i32::MAX),
            retry_policy: settings
                .retry
                .map(|backoff| WireRetry { minimum_backoff: text(backoff.min), maximum_backoff: text(backoff.max) }),
            dead_letter_policy: settings.dead_letter.as_ref().map(|dead| WireDeadLetter {
                dead_letter_topic: dead.topic.clone(),
                max_delivery_attempts: dead.max_attempts,
            }),
            enable_exactly_once_delivery: settings.exactly_once,
            ..Self::default()
        }
    }

    /// Fills in the defaults of the service; refuses what would change deliveries and is not offered here.
    pub(super) fn settings(self, name: &str) -> Result<SubscriptionSettings, Error> {
        let pushes = self.push_config.as_object().is_some_and(|config| !config.is_empty());
        if self.enable_message_ordering || !self.filter.is_empty() || pushes {
            return Err(Error::Invalid("ordering, filters and push are not offered here".to_owned()));
        }
        let seconds = if self.ack_deadline_seconds == 0 { *LEASE_SECONDS.start() } else { self.ack_deadline_seconds };
        if !LEASE_SECONDS.contains(&seconds) {
            return Err(Error::Invalid(format!("ackDeadlineSeconds {seconds} is not 10 to 600")));
        }
        Ok(SubscriptionSettings {
            ack_deadline: Duration::from_secs(u64::from(seconds.unsigned_abs())),
            retry: self.retry_policy.map(WireRetry::backoff).transpose()?,
            dead_letter: self.dead_letter_policy.map(WireDeadLetter::policy).transpose()?,
            exactly_once: self.enable_exactly_once_delivery,
            ..SubscriptionSettings::new(name, &self.topic)
        })
    }
}

impl WireRetry {
    fn backoff(self) -> Result<Backoff, Error> {
        let backoff = Backoff { min: time(self.minimum_backoff, "10s")?, max: time(self.maximum_backoff, "600s")? };
        if backoff.min > backoff.max || backoff.max.as_secs() > 600 {
            return Err(Error::Invalid("a back-off is 0 to 600 s, its minimum at most its maximum".to_owned()));
        }
        Ok(backoff)
    }
}

impl WireDeadLetter {
    fn policy(self) -> Result<DeadLetter, Error> {
        let max_attempts = if self.max_delivery_attempts == 0 { *ATTEMPTS.start() } else { self.max_delivery_attempts };
        if !ATTEMPTS.contains(&max_attempts) {
            return Err(Error::Invalid(format!("maxDeliveryAttempts {max_attempts} is not 5 to 100")));
        }
        Ok(DeadLetter { topic: self.dead_letter_topic, max_attempts })
    }
}

/// `1.5s` as a duration.
fn time(text: Option<String>, default: &str) -> Result<Duration, Error> {
    let text = text.unwrap_or_else(|| default.to_owned());
    let parsed = text.parse::<prost_types::Duration>().ok().and_then(|parsed| parsed.try_into().ok());
    parsed.ok_or_else(|| Error::Invalid(format!("{text:?} is not a duration")))
}

fn text(time: Duration) -> Option<String> {
    prost_types::Duration::try_from(time).ok().map(|time| time.to_string())
}
