//! Stoker feeds a GPU the way a stoker feeds a furnace: as much as it can burn, never more.
//!
//! Modules in the order data flows.

pub mod app;
pub mod clients;
pub mod config;
pub mod event;
pub mod image;
pub mod metrics;
pub mod model;
pub mod pipeline;
pub mod telemetry;

#[cfg(feature = "local")]
pub mod local;
