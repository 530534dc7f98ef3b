//! The behaviour of Stoker, over real sockets on loopback.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking; clippy's own exception leaves out helper functions")]

mod bundle;
mod canary;
mod cli;
mod emulators;
mod events;
mod formats;
mod gpu;
mod heif;
mod images;
mod local_pubsub;
mod local_storage;
mod models;
mod networks;
mod pipeline;
mod raw;
mod reload;
mod scenarios;
mod settings;
mod vram;
mod world;
