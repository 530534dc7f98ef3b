//! Stoker feeds a GPU the way a stoker feeds a furnace: as much as it can burn, never more.
//!
//! Modules in the order data flows.

pub mod event;
pub mod image;
pub mod model;

#[cfg(feature = "local")]
pub mod local;
