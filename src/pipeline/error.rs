//! What ends the worker, and why a job goes back.

use google_cloud_pubsub::Error;
use google_cloud_pubsub::error::PublishError;
use tokio::task::JoinError;

use crate::model::DeviceError;
use crate::model::golden::GoldenError;

/// Further work would be wrong or pointless: everything held is returned and the process exits non-zero.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fatal {
    /// The subscription cannot be read, and waiting did not help.
    #[error("cannot pull from {subscription}: check that it exists and that this identity may subscribe to it")]
    Stream {
        /// Full name of the subscription.
        subscription: String,
        /// What Pub/Sub answered last.
        source: Error,
    },
    /// The results topic is missing or closed to this identity, so no job can end.
    #[error(
        "cannot publish to {topic}: check that it exists and that this identity may publish to it (--results-topic)"
    )]
    ResultsTopic {
        /// Full name of the topic.
        topic: String,
        /// What Pub/Sub answered.
        source: PublishError,
    },
    /// The device failed; its numbers cannot be trusted.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The golden images do not come out right any more.
    #[error(
        "the model's golden images do not come out right any more on this device: nothing it computes is published"
    )]
    Canary(#[source] GoldenError),
    /// The thread that owns the device ended while work was left.
    #[error("the device thread ended early")]
    EngineDied,
    /// A thread could not be started.
    #[error("cannot start a thread")]
    Thread(#[from] std::io::Error),
    /// The decoder's threads could not be started.
    #[error("cannot start the decoder threads")]
    DecodeThreads(#[from] rayon::ThreadPoolBuildError),
    /// A decoder thread ended without an answer. Panics of a decoder are caught, so this is a defect.
    #[error("a decoder thread ended early")]
    DecoderDied,
    /// A hop panicked.
    #[error("a hop panicked: {0}")]
    Panicked(JoinError),
}

/// Why a job goes back to Pub/Sub. A closed list, used as a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RetryReason {
    /// Cloud Storage did not deliver in time.
    FetchTimeout,
    /// Cloud Storage refused or failed.
    FetchFailed,
    /// Cloud Storage denied access.
    FetchDenied,
    /// The result was not confirmed in time.
    PublishTimeout,
    /// Pub/Sub refused the result.
    PublishFailed,
}

impl RetryReason {
    /// The name in logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::FetchTimeout => "fetch_timeout",
            Self::FetchFailed => "fetch_failed",
            Self::FetchDenied => "fetch_denied",
            Self::PublishTimeout => "publish_timeout",
            Self::PublishFailed => "publish_failed",
        }
    }
}

impl From<GoldenError> for Fatal {
    /// Images that could not be run say that the device failed, not that it computes wrong.
    fn from(error: GoldenError) -> Self {
        match error {
            GoldenError::Device(error) => Self::Device(error),
            GoldenError::Shape { .. } | GoldenError::Mismatch { .. } => Self::Canary(error),
        }
    }
}

impl Fatal {
    /// The result of an owned task, a panic made an error. An aborted task counts as ended: its owner aborted it.
    pub(super) fn flatten(ended: Result<Result<(), Self>, JoinError>) -> Result<(), Self> {
        match ended {
            Ok(result) => result,
            Err(error) if error.is_cancelled() => Ok(()),
            Err(error) => Err(Self::Panicked(error)),
        }
    }
}
