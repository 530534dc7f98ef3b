//! Pub/Sub on one port: gRPC for publishers and subscribers, REST for the admin clients.
//!
//! It answers as the real service does where Google's clients can tell the difference: response headers of a
//! StreamingPull come with its first response, acknowledgements of an exactly-once subscription say which ids were
//! invalid, a delivery attempt is sent only where there is a dead-letter policy.

use std::pin::Pin;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt as _};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};

use super::broker::Broker;
use super::error::Error;
use super::fault::{Call, Fault, Faults};
use super::message::Draft;
use super::net::Connection;
use glue::publisher_server::{Publisher, PublisherServer};
use glue::subscriber_server::{Subscriber, SubscriberServer};
use stream::Session;

mod admin;
mod glue;
mod status;
mod stream;
mod wire;

/// The largest Publish that is decoded: the limit of 10 MB and what surrounds it.
const REQUEST_BYTES: usize = 12 << 20;
/// Seconds that a lease may last.
const LEASE_SECONDS: std::ops::RangeInclusive<i32> = 10..=600;

/// The service; clones share it.
#[derive(Clone, Debug)]
pub(super) struct Pubsub {
    pub(super) broker: Broker,
    pub(super) faults: Faults,
    /// One task for each open StreamingPull.
    pub(super) streams: TaskTracker,
    pub(super) stop: CancellationToken,
}

impl Pubsub {
    pub(super) fn router(self) -> Router {
        let mut routes = Routes::builder();
        routes.add_service(PublisherServer::new(self.clone()).max_decoding_message_size(REQUEST_BYTES));
        routes.add_service(SubscriberServer::new(self.clone()).max_decoding_message_size(REQUEST_BYTES));
        routes.routes().into_axum_router().merge(admin::router(self))
    }

    /// Sends `reply`, unless a fault wants it lost.
    async fn reply<T>(peer: &Connection, fault: Option<Fault>, reply: T) -> Result<Response<T>, Status> {
        if fault == Some(Fault::LoseReply) {
            return peer.reset().await;
        }
        Ok(Response::new(reply))
    }
}

fn peer<T>(request: &Request<T>) -> Result<Connection, Status> {
    let peer = request.extensions().get::<ConnectInfo<Connection>>();
    peer.map(|ConnectInfo(connection)| connection.clone()).ok_or_else(|| Status::internal("no connection"))
}

#[tonic::async_trait]
impl Publisher for Pubsub {
    async fn publish(&self, request: Request<glue::PublishRequest>) -> Result<Response<glue::PublishResponse>, Status> {
        let peer = peer(&request)?;
        let glue::PublishRequest { topic, messages } = request.into_inner();
        let fault = self.faults.enter(Call::Publish, &topic, &peer).await?;
        if messages.iter().any(|message| !message.ordering_key.is_empty()) {
            return Err(Error::Invalid("ordering keys are not offered here".to_owned()).into());
        }
        let drafts = messages
            .into_iter()
            .map(|message| Draft { attributes: message.attributes.into_iter().collect(), data: message.data });
        let drafts: Vec<Draft> = drafts.collect();
        if fault == Some(Fault::Duplicate) {
            self.broker.publish(&topic, drafts.clone())?;
        }
        let message_ids = self.broker.publish(&topic, drafts)?;
        Self::reply(&peer, fault, glue::PublishResponse { message_ids }).await
    }
}

#[tonic::async_trait]
impl Subscriber for Pubsub {
    type StreamingPullStream = Pin<Box<dyn Stream<Item = Result<glue::StreamingPullResponse, Status>> + Send>>;

    async fn acknowledge(&self, request: Request<glue::AcknowledgeRequest>) -> Result<Response<()>, Status> {
        let peer = peer(&request)?;
        let glue::AcknowledgeRequest { subscription, ack_ids } = request.into_inner();
        let fault = self.faults.enter(Call::Acknowledge, &subscription, &peer).await?;
        let settled = self.broker.acknowledge(&subscription, ack_ids)?;
        status::confirm(settled)?;
        Self::reply(&peer, fault, ()).await
    }

    async fn modify_ack_deadline(
        &self,
        request: Request<glue::ModifyAckDeadlineRequest>,
    ) -> Result<Response<()>, Status> {
        let peer = peer(&request)?;
        let glue::ModifyAckDeadlineRequest { subscription, ack_ids, ack_deadline_seconds } = request.into_inner();
        let fault = self.faults.enter(Call::ModifyAckDeadline, &subscription, &peer).await?;
        let time = deadline(ack_deadline_seconds)?;
        let settled = self.broker.modify(&subscription, ack_ids, time)?;
        status::confirm(settled)?;
        Self::reply(&peer, fault, ()).await
    }

    async fn streaming_pull(
        &self,
        request: Request<Streaming<glue::StreamingPullRequest>>,
    ) -> Result<Response<Self::StreamingPullStream>, Status> {
        let peer = peer(&request)?;
        let mut inbound = request.into_inner();
        let first = inbound.message().await?.ok_or_else(|| Status::invalid_argument("no initial request"))?;
        self.faults.enter(Call::StreamingPull, &first.subscription, &peer).await?;
        let (outbound, mut responses) = mpsc::channel(1);
        let session = Session::open(self.clone(), peer, first)?;
        self.streams.spawn(session.run(inbound, outbound));
        // The real service sends response headers with the first response, so the call does not return before.
        match responses.recv().await {
            Some(Ok(first)) => {
                let rest = ReceiverStream::new(responses);
                Ok(Response::new(Box::pin(tokio_stream::once(Ok(first)).chain(rest))))
            }
            Some(Err(status)) => Err(status),
            None => Err(Status::unavailable("shutting down")),
        }
    }
}

/// 0 to 600 s.
fn deadline(seconds: i32) -> Result<Duration, Status> {
    match u64::try_from(seconds) {
        Ok(valid) if seconds <= *LEASE_SECONDS.end() => Ok(Duration::from_secs(valid)),
        Ok(_) | Err(_) => Err(Status::invalid_argument(format!("a deadline of {seconds} s is not 0 to 600 s"))),
    }
}
