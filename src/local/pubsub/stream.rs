//! One StreamingPull: sends while the queue allows it, waits for a change otherwise.
//!
//! The queue decides what may be sent; this task asks, sends, and applies what the client writes on the stream.

use std::ops::ControlFlow;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, Interval, interval_at};
use tonic::{Status, Streaming};

use super::glue::{
    PubsubMessage, ReceivedMessage, StreamingPullRequest, StreamingPullResponse, SubscriptionProperties,
};
use super::{LEASE_SECONDS, Pubsub, deadline};
use crate::local::broker::Received;
use crate::local::fault::{Call, Fault};
use crate::local::net::Connection;
use crate::local::queue::{Limits, StreamId};

/// Messages of one response: few, so that several streams share a backlog.
const MESSAGES: usize = 16;
/// Bytes of one response, from which on nothing is added.
const BYTES: usize = 1_000_000;
/// How often an empty response tells the client that the stream lives.
const HEARTBEAT: Duration = Duration::from_secs(30);

type Outbound = mpsc::Sender<Result<StreamingPullResponse, Status>>;

/// An open stream.
pub(super) struct Session {
    pubsub: Pubsub,
    peer: Connection,
    subscription: String,
    stream: StreamId,
    properties: SubscriptionProperties,
}

impl Session {
    pub(super) fn open(pubsub: Pubsub, peer: Connection, first: StreamingPullRequest) -> Result<Self, Status> {
        let seconds = first.stream_ack_deadline_seconds;
        if !LEASE_SECONDS.contains(&seconds) {
            return Err(Status::invalid_argument(format!("a stream deadline of {seconds} s is not 10 to 600 s")));
        }
        let settings = pubsub.broker.subscription(&first.subscription)?;
        let limits = Limits {
            messages: limit(first.max_outstanding_messages),
            bytes: limit(first.max_outstanding_bytes),
            lease: deadline(seconds)?,
        };
        let stream = pubsub.broker.open(&first.subscription, limits)?;
        let properties = SubscriptionProperties {
            exactly_once_delivery_enabled: settings.exactly_once,
            message_ordering_enabled: false,
        };
        Ok(Self { pubsub, peer, subscription: first.subscription, stream, properties })
    }

    /// Runs until the client leaves, the subscription is deleted, a fault ends it, or the service stops.
    pub(super) async fn run(self, mut inbound: Streaming<StreamingPullRequest>, outbound: Outbound) {
        let stop = self.pubsub.stop.clone();
        let end = tokio::select! {
            end = self.pump(&mut inbound, &outbound) => end,
            () = outbound.closed() => None,
            () = stop.cancelled() => Some(Status::unavailable("shutting down")),
        };
        if let Some(status) = end {
            // A client that has left needs no reason.
            drop(outbound.send(Err(status)).await);
        }
    }

    /// `None` when the client has left.
    async fn pump(&self, inbound: &mut Streaming<StreamingPullRequest>, outbound: &Outbound) -> Option<Status> {
        let mut changes = self.pubsub.broker.changes();
        let mut heartbeat = interval_at(Instant::now() + HEARTBEAT, HEARTBEAT);
        let mut client_writes = true;
        loop {
            changes.mark_unchanged();
            let step = match self.pubsub.broker.deliverable(&self.subscription, self.stream) {
                Ok(true) => self.deliver(outbound).await,
                Ok(false) => tokio::select! {
                    _ = changes.changed() => Ok(ControlFlow::Continue(())),
                    () = self.beat(&mut heartbeat, outbound) => Ok(ControlFlow::Continue(())),
                    request = inbound.message(), if client_writes => self.apply(request, &mut client_writes),
                },
                Err(gone) => Err(gone.into()),
            };
            match step {
                Ok(ControlFlow::Continue(())) => {}
                Ok(ControlFlow::Break(())) => return None,
                Err(status) => return Some(status),
            }
        }
    }

    /// Sends one response.
    async fn deliver(&self, outbound: &Outbound) -> Result<ControlFlow<()>, Status> {
        let fault = self.pubsub.faults.enter(Call::Deliver, &self.subscription, &self.peer).await?;
        // A place in the channel first: messages are leased when they can leave.
        let Ok(place) = outbound.reserve().await else { return Ok(ControlFlow::Break(())) };
        let twice = fault == Some(Fault::Duplicate);
        let taken = self.pubsub.broker.take(&self.subscription, self.stream, MESSAGES, BYTES, twice)?;
        if !taken.is_empty() {
            place.send(Ok(self.response(taken.into_iter().map(received).collect())));
        }
        Ok(ControlFlow::Continue(()))
    }

    async fn beat(&self, heartbeat: &mut Interval, outbound: &Outbound) {
        heartbeat.tick().await;
        if let Ok(place) = outbound.try_reserve() {
            place.send(Ok(self.response(Vec::new())));
        }
    }

    /// Does what the client wrote on the stream. Google's clients write only keep-alives here.
    fn apply(
        &self,
        request: Result<Option<StreamingPullRequest>, Status>,
        client_writes: &mut bool,
    ) -> Result<ControlFlow<()>, Status> {
        let Some(request) = request? else {
            // Half-closed: the client still reads.
            *client_writes = false;
            return Ok(ControlFlow::Continue(()));
        };
        let broker = &self.pubsub.broker;
        if request.stream_ack_deadline_seconds != 0 {
            broker.set_lease(&self.subscription, self.stream, deadline(request.stream_ack_deadline_seconds)?);
        }
        if !request.ack_ids.is_empty() {
            broker.acknowledge(&self.subscription, request.ack_ids)?;
        }
        let changed = request.modify_deadline_ack_ids.into_iter().zip(request.modify_deadline_seconds);
        for (ack_id, seconds) in changed {
            broker.modify(&self.subscription, vec![ack_id], deadline(seconds)?)?;
        }
        Ok(ControlFlow::Continue(()))
    }

    fn response(&self, received_messages: Vec<ReceivedMessage>) -> StreamingPullResponse {
        StreamingPullResponse {
            received_messages,
            subscription_properties: Some(self.properties),
            ..StreamingPullResponse::default()
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.pubsub.broker.close(&self.subscription, self.stream);
    }
}

/// Zero and less mean no limit.
fn limit(wanted: i64) -> Option<usize> {
    usize::try_from(wanted).ok().filter(|limit| *limit > 0)
}

fn received(taken: Received) -> ReceivedMessage {
    let message = PubsubMessage {
        data: taken.message.data.clone(),
        attributes: taken.message.attributes.clone().into_iter().collect(),
        message_id: taken.message.id.clone(),
        publish_time: Some(taken.message.published.into()),
        ordering_key: String::new(),
    };
    ReceivedMessage {
        ack_id: taken.ack_id,
        message: Some(message),
        delivery_attempt: taken.attempt.and_then(|attempt| i32::try_from(attempt).ok()).unwrap_or_default(),
    }
}
