//! Errors as gRPC statuses, in the shape that Google's clients read.

use std::collections::HashMap;

use prost::Message as _;
use tonic::{Code, Status};

use crate::local::broker::Settled;
use crate::local::error::Error;

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, prost::Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<prost_types::Any>,
}

/// `google.rpc.ErrorInfo`.
#[derive(Clone, PartialEq, prost::Message)]
struct ErrorInfo {
    #[prost(string, tag = "1")]
    reason: String,
    #[prost(string, tag = "2")]
    domain: String,
    #[prost(map = "string, string", tag = "3")]
    metadata: HashMap<String, String>,
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        Self::new(code(error.http_status()), error.to_string())
    }
}

/// The code that `google.rpc.Code` pairs with an HTTP status.
pub(super) fn code(http: u16) -> Code {
    match http {
        400 | 413 | 416 => Code::InvalidArgument,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::NotFound,
        409 => Code::Aborted,
        412 => Code::FailedPrecondition,
        429 => Code::ResourceExhausted,
        499 => Code::Cancelled,
        500 => Code::Internal,
        501 => Code::Unimplemented,
        503 => Code::Unavailable,
        504 => Code::DeadlineExceeded,
        _ => Code::Unknown,
    }
}

/// Reports invalid ack ids as the service does: only for an exactly-once subscription, each under its own name, and
/// the others of the same call are settled none the less.
pub(super) fn confirm(settled: Settled) -> Result<(), Status> {
    if !settled.exactly_once || settled.invalid.is_empty() {
        return Ok(());
    }
    let message = "some acknowledgement ids are invalid: they have expired or are malformed".to_owned();
    let failed = settled.invalid.into_iter().map(|ack_id| (ack_id, "PERMANENT_FAILURE_INVALID_ACK_ID".to_owned()));
    let info = ErrorInfo {
        reason: "EXACTLY_ONCE_ACKID_FAILURE".to_owned(),
        domain: "pubsub.googleapis.com".to_owned(),
        metadata: failed.collect(),
    };
    let details = vec![prost_types::Any {
        type_url: "type.googleapis.com/google.rpc.ErrorInfo".to_owned(),
        value: info.encode_to_vec(),
    }];
    let status = RpcStatus { code: Code::InvalidArgument as i32, message: message.clone(), details };
    Err(Status::with_details(Code::InvalidArgument, message, status.encode_to_vec().into()))
}
