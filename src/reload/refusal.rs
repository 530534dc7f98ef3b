//! Why a model is not put in the old one's place.

use super::memory::DoesNotFit;
use super::pointer::PointerError;
use crate::download::DownloadError;
use crate::model::golden::GoldenError;
use crate::model::{DeviceError, ModelError, is_out_of_memory};

/// Why a model is not put in the old one's place.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// There is no pointer that could be followed.
    #[error(transparent)]
    Pointer(#[from] PointerError),
    /// The bundle cannot be read, or is not usable.
    #[error("the bundle is not usable")]
    Bundle(#[from] DownloadError),
    /// At the pointer's place is another bundle.
    #[error("{place} has the digest {found}, the pointer says {expected}")]
    Digest {
        /// The bundle's place.
        place: String,
        /// What the pointer says.
        expected: String,
        /// What `model.json` has.
        found: String,
    },
    /// There is no memory for two models.
    #[error(transparent)]
    DoesNotFit(#[from] DoesNotFit),
    /// The device does not take it.
    #[error("the model cannot be loaded")]
    Load(#[from] ModelError),
    /// Its golden images do not come out right.
    #[error("the golden images do not come out right")]
    Golden(#[from] GoldenError),
    /// The loading thread panicked.
    #[error("loading the model panicked")]
    Panicked(#[from] tokio::task::JoinError),
}

/// Why a model was refused. A closed list, used as a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The pointer object is missing, or Cloud Storage did not give it out.
    PointerUnreadable,
    /// The pointer object is no pointer.
    PointerInvalid,
    /// A file of the bundle is missing, or Cloud Storage did not give it out.
    BundleUnreadable,
    /// The bundle is not the one that the pointer names, or is wrong in itself.
    BundleInvalid,
    /// There is no memory for two models.
    DoesNotFit,
    /// The device failed while it was loaded or proven.
    LoadFailed,
    /// Its golden images do not come out right on this device.
    WrongGolden,
}

impl Reason {
    /// The name in logs and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PointerUnreadable => "pointer_unreadable",
            Self::PointerInvalid => "pointer_invalid",
            Self::BundleUnreadable => "bundle_unreadable",
            Self::BundleInvalid => "bundle_invalid",
            Self::DoesNotFit => "does_not_fit",
            Self::LoadFailed => "load_failed",
            Self::WrongGolden => "wrong_golden",
        }
    }

    /// Whether the same pointer may lead to a model later.
    #[must_use]
    pub fn may_pass(self) -> bool {
        match self {
            Self::PointerUnreadable | Self::BundleUnreadable | Self::DoesNotFit | Self::LoadFailed => true,
            Self::PointerInvalid | Self::BundleInvalid | Self::WrongGolden => false,
        }
    }
}

impl Refusal {
    /// The reason by which it is counted.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::Pointer(error) if error.is_about_content() => Reason::PointerInvalid,
            Self::Pointer(_) => Reason::PointerUnreadable,
            Self::Bundle(DownloadError::Bundle(_) | DownloadError::TooLarge { .. }) | Self::Digest { .. } => {
                Reason::BundleInvalid
            }
            Self::Bundle(DownloadError::NoMemory { .. }) | Self::DoesNotFit(_) => Reason::DoesNotFit,
            Self::Bundle(_) => Reason::BundleUnreadable,
            Self::Load(ModelError::Weights(_)) => Reason::BundleInvalid,
            Self::Load(ModelError::Unavailable(message)) if is_out_of_memory(message) => Reason::DoesNotFit,
            Self::Golden(GoldenError::Device(DeviceError::OutOfMemory(_))) => Reason::DoesNotFit,
            Self::Load(_) | Self::Golden(GoldenError::Device(DeviceError::Failed(_))) | Self::Panicked(_) => {
                Reason::LoadFailed
            }
            Self::Golden(GoldenError::Mismatch { .. } | GoldenError::Shape { .. }) => Reason::WrongGolden,
        }
    }

    /// Whether the device had to do with the model, and may have been hurt.
    pub(crate) fn is_from_device(&self) -> bool {
        match self {
            Self::Load(_) | Self::Golden(_) | Self::Panicked(_) => true,
            Self::Pointer(_) | Self::Bundle(_) | Self::Digest { .. } | Self::DoesNotFit(_) => false,
        }
    }

    /// The error and what caused it, in one line.
    pub(super) fn chain(&self) -> String {
        let causes = std::iter::successors(Some(self as &dyn std::error::Error), |error| error.source());
        causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
    }
}
