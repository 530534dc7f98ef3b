//! Why the in-process services refuse a call, in one vocabulary for both of them.
//!
//! Cloud Storage and the Pub/Sub admin calls answer with the HTTP status; Pub/Sub's gRPC calls with the code that
//! `google.rpc.Code` pairs with it.

/// A refused call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The call makes no sense: a malformed name, a value out of range, a feature that is not offered here.
    #[error("invalid argument: {0}")]
    Invalid(String),
    /// The topic, subscription, bucket, object or generation does not exist.
    #[error("not found: {0}")]
    NotFound(String),
    /// It exists already.
    #[error("already exists: {0}")]
    AlreadyExists(String),
    /// `ifGenerationMatch` or a relative of it does not hold.
    #[error("precondition failed: {0}")]
    PreconditionFailed(String),
    /// `ifGenerationNotMatch` names the live generation of an object that is read.
    #[error("not modified: {0}")]
    NotModified(String),
    /// An object, or all objects together, would be larger than the settings allow.
    #[error("too large: {0}")]
    TooLarge(String),
    /// More messages, topics, subscriptions or buckets than the settings allow.
    #[error("resource exhausted: {0}")]
    Full(String),
    /// The range starts behind the end of the object.
    #[error("range not satisfiable: {0}")]
    RangeNotSatisfiable(String),
    /// A fault asked for this HTTP status.
    #[error("fault: HTTP {0}")]
    Fault(u16),
}

impl Error {
    /// The HTTP status that stands for this error.
    #[must_use]
    pub fn http_status(&self) -> u16 {
        match self {
            Self::Invalid(_) => 400,
            Self::NotFound(_) => 404,
            Self::AlreadyExists(_) => 409,
            Self::PreconditionFailed(_) => 412,
            Self::NotModified(_) => 304,
            Self::TooLarge(_) => 413,
            Self::Full(_) => 429,
            Self::RangeNotSatisfiable(_) => 416,
            Self::Fault(status) => *status,
        }
    }
}
