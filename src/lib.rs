//! Stoker feeds a GPU the way a stoker feeds a furnace: as much as it can burn, never more.
//!
//! ```text
//! Pub/Sub ─ intake ─ fetch ─ decode ─ batch ─ infer ─ publish ─ ack
//! ```
//!
//! What holds everywhere:
//!
//! - Every upload event ends in a confirmed result and an ack, a counted skip and an ack, or its return to Pub/Sub.
//! - A message is settled in one place, the receipt of [`pipeline`]; dropping a receipt returns its message.
//! - The hops are joined by bounded channels; the messages leased at a time bound everything behind intake.
//! - One OS thread owns the device; it sees pixels, never messages.
//!
//! Modules in the order data flows:
//!
//! | module | |
//! |---|---|
//! | [`config`] | arguments in, checked settings out; the only reader of the environment |
//! | [`telemetry`] | log lines |
//! | [`app`] | model loaded and proven, clients built, pipeline run until told to stop |
//! | [`clients`] | Google's clients and their credentials |
//! | [`pipeline`] | the hops, wired in one place |
//! | [`event`] | upload events in, results out; pure |
//! | [`image`] | object bytes in, the model's input pixels out; pure |
//! | [`model`] | bundles, networks and devices behind one trait, [`model::Classifier`] |
//! | [`vram`] | device memory measured, planned and kept to |
//! | [`planning`] | the plan at the start |
//! | [`reload`] | the pointer object that names the model, followed |
//! | [`download`] | bundles from Cloud Storage, through a cache on disk |
//! | [`make`] | a bundle from a checkpoint, class names and sample images |
//! | [`metrics`] | what the worker counts |
//! | `local` | in-process Pub/Sub and Cloud Storage, for `stoker demo` and the tests |

pub mod app;
pub mod clients;
pub mod config;
pub mod download;
pub mod event;
pub mod image;
pub mod make;
pub mod metrics;
pub mod model;
pub mod pipeline;
pub mod planning;
pub mod reload;
pub mod telemetry;
pub mod vram;

#[cfg(feature = "local")]
pub mod local;
