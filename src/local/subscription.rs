//! How a subscription is set up.

use std::time::Duration;

/// A subscription, as the real service would be asked to create it.
///
/// Not offered: filters, ordering, push.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionSettings {
    /// `projects/P/subscriptions/S`.
    pub name: String,
    /// `projects/P/topics/T`; it must exist.
    pub topic: String,
    /// Lease of messages that are pulled without a stream; a stream brings its own.
    pub ack_deadline: Duration,
    /// Pause before a redelivery; `None`: at once.
    pub retry: Option<Backoff>,
    /// Where messages go that keep failing; `None`: they are delivered for ever, without a delivery attempt.
    pub dead_letter: Option<DeadLetter>,
    /// Whether acknowledgements are confirmed, and fail when their lease is over.
    pub exactly_once: bool,
}

impl SubscriptionSettings {
    /// A plain subscription: at least once, 10 s of lease, redelivered at once and for ever.
    #[must_use]
    pub fn new(name: &str, topic: &str) -> Self {
        Self {
            name: name.to_owned(),
            topic: topic.to_owned(),
            ack_deadline: Duration::from_secs(10),
            retry: None,
            dead_letter: None,
            exactly_once: false,
        }
    }
}

/// The pause before a redelivery: doubled with each failed delivery, from `min` to `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// After the first failure.
    pub min: Duration,
    /// Never longer than this.
    pub max: Duration,
}

impl Backoff {
    /// The pause after the delivery with this number failed; the first one is 1.
    pub(super) fn after(&self, attempt: u32) -> Duration {
        let doubled = 2_u32.saturating_pow(attempt.saturating_sub(1));
        self.min.saturating_mul(doubled).min(self.max)
    }
}

/// Where messages go that keep failing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// `projects/P/topics/T`. While it does not exist, messages stay where they are.
    pub topic: String,
    /// Deliveries before a message is forwarded. The real service takes 5 to 100; here 1 and more will do.
    pub max_attempts: u32,
}
