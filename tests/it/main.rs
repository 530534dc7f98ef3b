//! The behaviour of Stoker, over real sockets on loopback.

mod events;
mod images;
mod local_pubsub;
mod local_storage;
mod models;
