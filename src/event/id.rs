//! Ids of results: pure functions, so that a redelivery, another worker or a later run gives the same one.
//!
//! SHA-256 over fields that each carry their length, so that no two different inputs are hashed alike; the first 128
//! bits in hexadecimal. Changing anything here changes every id: subscribers deduplicate on them.

use sha2::{Digest as _, Sha256};

use super::ObjectId;

/// The id of an object's result: of bucket, name, generation and the model's digest.
///
/// Where the event carried no generation, give the one that was read: only an object that could not be read has an id
/// without one.
pub fn result_id(object: &ObjectId, model_digest: &str) -> String {
    let generation = object.generation.map(i64::to_be_bytes);
    let generation: &[u8] = generation.as_ref().map_or(&[], |bytes| bytes);
    digest("stoker.result.v1", &[object.bucket.as_bytes(), object.name.as_bytes(), generation, model_digest.as_bytes()])
}

/// The id of the failed result of a message that names no object: of the message's id in its topic.
pub fn unreadable_id(message_id: &str) -> String {
    digest("stoker.unreadable.v1", &[message_id.as_bytes()])
}

fn digest(domain: &str, fields: &[&[u8]]) -> String {
    const SHOWN_BYTES: usize = 16;
    let mut hash = Sha256::new();
    for field in std::iter::once(&domain.as_bytes()).chain(fields) {
        hash.update((field.len() as u64).to_be_bytes());
        hash.update(field);
    }
    hash.finalize().iter().take(SHOWN_BYTES).map(|byte| format!("{byte:02x}")).collect()
}
