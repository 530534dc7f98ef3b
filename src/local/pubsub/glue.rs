//! The server traits that the build script generates, and the message types that they name.

#![allow(missing_docs, unreachable_pub, clippy::allow_attributes_without_reason, reason = "generated code")]

pub(super) use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::streaming_pull_response::SubscriptionProperties;
pub(super) use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::{
    AcknowledgeRequest, ModifyAckDeadlineRequest, PublishRequest, PublishResponse, PubsubMessage, ReceivedMessage,
    StreamingPullRequest, StreamingPullResponse,
};

/// `google.protobuf.Empty`; the generator takes a name, not `()`.
pub(super) type Empty = ();

include!(concat!(env!("OUT_DIR"), "/google.pubsub.v1.Publisher.rs"));
include!(concat!(env!("OUT_DIR"), "/google.pubsub.v1.Subscriber.rs"));
