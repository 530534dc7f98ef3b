//! Why a bundle could not be read from Cloud Storage.

use std::time::Duration;

use crate::model::BundleError;

/// Why a bundle could not be read from Cloud Storage.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DownloadError {
    /// It was read, and is not usable.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// No such object, or not in this generation any more.
    #[error("{object} does not exist, or was replaced while it was read")]
    Missing {
        /// The object.
        object: String,
    },
    /// The identity may not read the bucket, or somebody must pay for it.
    #[error(
        "{object}: access denied ({error}); grant roles/storage.objectViewer, for a requester-pays bucket set \
         --quota-project"
    )]
    Denied {
        /// The object.
        object: String,
        /// What Cloud Storage said.
        error: google_cloud_storage::Error,
    },
    /// Cloud Storage failed, after several attempts.
    #[error("{object} cannot be read: {error}")]
    Failed {
        /// The object.
        object: String,
        /// What it said at last.
        error: google_cloud_storage::Error,
    },
    /// No byte came for too long, several times.
    #[error("{object}: no byte came for {patience:?} (--fetch-timeout), several times")]
    Stalled {
        /// The object.
        object: String,
        /// How long that is.
        patience: Duration,
    },
    /// `model.json` is larger than any can be.
    #[error("{object} has over {limit} bytes")]
    TooLarge {
        /// The object.
        object: String,
        /// The limit.
        limit: u64,
    },
    /// The file does not fit into memory.
    #[error("{object}: no memory for its {bytes} bytes")]
    NoMemory {
        /// The object.
        object: String,
        /// Its size.
        bytes: u64,
    },
    /// The reading thread panicked.
    #[error("reading the model panicked")]
    Panicked(#[from] tokio::task::JoinError),
}

impl DownloadError {
    /// Whether the same read may work later.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::Stalled { .. } => true,
            Self::Failed { error, .. } => {
                error.http_status_code().is_none_or(|status| matches!(status, 408 | 429) || status >= 500)
            }
            Self::Bundle(_)
            | Self::Missing { .. }
            | Self::Denied { .. }
            | Self::TooLarge { .. }
            | Self::NoMemory { .. }
            | Self::Panicked(_) => false,
        }
    }

    pub(super) fn of_client(object: String, error: google_cloud_storage::Error) -> Self {
        let requester_pays = || error.to_string().to_lowercase().contains("requester pays");
        match error.http_status_code() {
            Some(404) => Self::Missing { object },
            Some(401 | 403) => Self::Denied { object, error },
            Some(400) if requester_pays() => Self::Denied { object, error },
            _ => Self::Failed { object, error },
        }
    }
}
