//! The fault script: which calls go wrong, when and how.
//!
//! Handlers ask before they act: [`Faults::enter`] counts the call, serves its delay, error, reset or stall, and hands
//! back the faults that only the handler can act out. A rule that makes no sense for its call is refused when it is
//! added, so that no script is silently without effect.
//!
//! | fault | calls |
//! |---|---|
//! | [`Fault::Error`], [`Fault::Delay`], [`Fault::Reset`], [`Fault::Stall`] | all but [`Call::Notify`] |
//! | [`Fault::LoseReply`] | `Publish`, `Acknowledge`, `ModifyAckDeadline`, `Upload`, `Delete` |
//! | [`Fault::Duplicate`] | `Publish`, `Deliver`, `Notify` |
//! | [`Fault::Truncate`], [`Fault::StallBody`], [`Fault::Corrupt`] | `Read` |

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use super::error::Error;
use super::net::Connection;

/// A kind of call that can be counted and made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// `Publisher.Publish`; resource: the topic.
    Publish,
    /// A StreamingPull being opened; resource: the subscription.
    StreamingPull,
    /// One response with messages on an open StreamingPull, before its messages are leased; resource: the subscription.
    Deliver,
    /// `Subscriber.Acknowledge`; resource: the subscription.
    Acknowledge,
    /// `Subscriber.ModifyAckDeadline`; resource: the subscription.
    ModifyAckDeadline,
    /// Creating, reading, listing or deleting topics and subscriptions; resource: their full name.
    Admin,
    /// An upload over HTTP; resource: `bucket/name`.
    Upload,
    /// An object's contents over HTTP; resource: `bucket/name`.
    Read,
    /// An object's or bucket's metadata over HTTP; resource: `bucket/name` or `bucket`.
    Metadata,
    /// A listing over HTTP; resource: the bucket.
    List,
    /// A deletion over HTTP; resource: `bucket/name`.
    Delete,
    /// One notification that a bucket sends; resource: `bucket/name`.
    Notify,
}

/// Number of [`Call`] variants.
const CALLS: usize = Call::Notify as usize + 1;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing happens but this HTTP status, or the gRPC code paired with it: 403 is `PERMISSION_DENIED`, 404
    /// `NOT_FOUND`, 409 `ABORTED`, 429 `RESOURCE_EXHAUSTED`, 500 `INTERNAL`, 503 `UNAVAILABLE`, 504 `DEADLINE_EXCEEDED`.
    /// On `Deliver` it ends the stream.
    Error(u16),
    /// The call waits, then goes on as usual.
    Delay(Duration),
    /// The TCP connection is reset; nothing happens.
    Reset,
    /// No answer ever comes; the connection stays open. On `Deliver` the stream goes silent.
    Stall,
    /// The call takes effect, then the connection is reset in place of an answer.
    LoseReply,
    /// `Publish` and `Notify`: stored twice, under two message ids. `Deliver`: each message comes again at once, under
    /// a lease of its own.
    Duplicate,
    /// The body ends after this many bytes, at most, and the connection closes.
    Truncate(usize),
    /// The body stops after this many bytes; the connection stays open.
    StallBody(usize),
    /// One byte of the body is flipped, so that its checksum no longer holds.
    Corrupt,
}

/// When a fault happens: on the next matching call, unless told otherwise.
#[derive(Clone, Debug)]
pub struct Rule {
    call: Call,
    fault: Fault,
    matching: String,
    skip: u64,
    every: u64,
    left: Option<u64>,
    seen: u64,
}

impl Rule {
    /// `fault` on the next `call`.
    #[must_use]
    pub fn new(call: Call, fault: Fault) -> Self {
        Self { call, fault, matching: String::new(), skip: 0, every: 1, left: Some(1), seen: 0 }
    }

    /// Only calls whose resource contains `part`.
    #[must_use]
    pub fn matching(self, part: &str) -> Self {
        Self { matching: part.to_owned(), ..self }
    }

    /// Lets the first `calls` pass.
    #[must_use]
    pub fn skip(self, calls: u64) -> Self {
        Self { skip: calls, ..self }
    }

    /// Only every `k`-th call, the first one included; 0 counts as 1.
    #[must_use]
    pub fn every(self, k: u64) -> Self {
        Self { every: k.max(1), ..self }
    }

    /// The next `calls` times.
    #[must_use]
    pub fn times(self, calls: u64) -> Self {
        Self { left: Some(calls), ..self }
    }

    /// Until [`Faults::clear`].
    #[must_use]
    pub fn always(self) -> Self {
        Self { left: None, ..self }
    }

    /// Counts a matching call and says whether the fault is due.
    fn due(&mut self) -> bool {
        self.seen += 1;
        let due = self.seen > self.skip && (self.seen - self.skip - 1).is_multiple_of(self.every);
        match &mut self.left {
            Some(0) => false,
            Some(left) if due => {
                *left -= 1;
                true
            }
            Some(_) | None => due,
        }
    }
}

/// The script of one pair of services; clones share it.
#[derive(Clone, Debug)]
pub struct Faults {
    rules: Arc<Mutex<Vec<Rule>>>,
    counts: Arc<watch::Sender<[u64; CALLS]>>,
}

impl Faults {
    pub(super) fn new() -> Self {
        Self { rules: Arc::default(), counts: Arc::new(watch::Sender::new([0; CALLS])) }
    }

    /// Adds a rule. The first rule due for a call decides; later ones do not see that call.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the fault makes no sense for the call (see the table of this module).
    pub fn add(&self, rule: Rule) -> Result<(), Error> {
        if !makes_sense(rule.call, rule.fault) {
            return Err(Error::Invalid(format!("{:?} cannot happen to {:?}", rule.fault, rule.call)));
        }
        self.rules.lock().unwrap_or_else(PoisonError::into_inner).push(rule);
        Ok(())
    }

    /// Removes all rules; calls that stall already go on stalling.
    pub fn clear(&self) {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// How many times `call` has begun.
    #[must_use]
    pub fn count(&self, call: Call) -> u64 {
        self.counts.borrow()[call as usize]
    }

    /// Waits until `call` has begun `n` times in all.
    pub async fn wait_for(&self, call: Call, n: u64) {
        let mut counts = self.counts.subscribe();
        counts.wait_for(|counts| counts[call as usize] >= n).await.map(drop).expect("self holds the sender");
    }

    /// Counts a call and lets its fault happen, as far as that needs no handler; `Some` is for the handler to act out.
    pub(super) async fn enter(&self, call: Call, resource: &str, peer: &Connection) -> Result<Option<Fault>, Error> {
        match self.decide(call, resource) {
            None => Ok(None),
            Some(Fault::Error(status)) => Err(Error::Fault(status)),
            Some(Fault::Delay(time)) => {
                tokio::time::sleep(time).await;
                Ok(None)
            }
            Some(Fault::Reset) => peer.reset().await,
            Some(Fault::Stall) => std::future::pending().await,
            Some(
                fault @ (Fault::LoseReply
                | Fault::Duplicate
                | Fault::Truncate(_)
                | Fault::StallBody(_)
                | Fault::Corrupt),
            ) => Ok(Some(fault)),
        }
    }

    /// Counts a call and picks the fault that is due.
    pub(super) fn decide(&self, call: Call, resource: &str) -> Option<Fault> {
        self.counts.send_modify(|counts| counts[call as usize] += 1);
        let mut rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        let mut matching = rules.iter_mut().filter(|rule| rule.call == call && resource.contains(&rule.matching));
        let fault = matching.find_map(|rule| rule.due().then_some(rule.fault));
        rules.retain(|rule| rule.left != Some(0));
        fault
    }
}

fn makes_sense(call: Call, fault: Fault) -> bool {
    match fault {
        Fault::Error(status) => call != Call::Notify && (400..600).contains(&status),
        Fault::Delay(_) | Fault::Reset | Fault::Stall => call != Call::Notify,
        Fault::LoseReply => {
            matches!(call, Call::Publish | Call::Acknowledge | Call::ModifyAckDeadline | Call::Upload | Call::Delete)
        }
        Fault::Duplicate => matches!(call, Call::Publish | Call::Deliver | Call::Notify),
        Fault::Truncate(_) | Fault::StallBody(_) | Fault::Corrupt => call == Call::Read,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fired(faults: &Faults, calls: usize) -> Vec<usize> {
        (1..=calls).filter(|_| faults.decide(Call::Read, "bucket/cat.jpg").is_some()).collect()
    }

    #[test]
    fn a_rule_skips_then_fires_every_kth_call_n_times() {
        let faults = Faults::new();
        faults.add(Rule::new(Call::Read, Fault::Error(503)).skip(2).every(3).times(2)).unwrap();
        assert_eq!(fired(&faults, 12), [3, 6]);
        assert_eq!(faults.count(Call::Read), 12);
    }

    #[test]
    fn a_rule_sees_only_its_call_and_resource() {
        let faults = Faults::new();
        faults.add(Rule::new(Call::Read, Fault::Reset).matching("dog").always()).unwrap();
        faults.add(Rule::new(Call::Upload, Fault::Reset).always()).unwrap();
        assert_eq!(fired(&faults, 3), [0; 0]);
        assert_eq!(faults.decide(Call::Read, "bucket/dog.jpg"), Some(Fault::Reset));
    }

    #[test]
    fn a_rule_without_meaning_is_refused() {
        let faults = Faults::new();
        assert!(faults.add(Rule::new(Call::Publish, Fault::Corrupt)).is_err());
        assert!(faults.add(Rule::new(Call::Notify, Fault::Stall)).is_err());
        assert!(faults.add(Rule::new(Call::Read, Fault::Error(200))).is_err());
    }

    #[test]
    fn a_cleared_script_lets_every_call_pass() {
        let faults = Faults::new();
        faults.add(Rule::new(Call::Read, Fault::Error(503)).always()).unwrap();
        assert_eq!(fired(&faults, 2), [1, 2]);
        faults.clear();
        assert_eq!(fired(&faults, 2), [0; 0]);
    }
}
