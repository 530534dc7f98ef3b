//! The results topic, read as any subscriber reads it.

use google_cloud_pubsub::client::Subscriber;
use tokio::sync::mpsc::{self, Receiver};
use tokio::task::JoinSet;

use stoker::event::LabelResult;

/// Reads `subscription` in a task of `tasks` until the receiver is dropped. What is no result is left out, and logged.
pub(super) fn read(
    subscriber: Subscriber,
    subscription: &'static str,
    tasks: &mut JoinSet<()>,
) -> Receiver<LabelResult> {
    let (results, receiver) = mpsc::channel(super::WINDOW);
    tasks.spawn(async move {
        // Only this loop calls `next`: a cancelled call would leave a dead stream behind, with messages on it.
        let mut stream = subscriber.subscribe(subscription).build();
        loop {
            match stream.next().await {
                Some(Ok((message, handler))) => {
                    handler.ack();
                    match serde_json::from_slice(&message.data) {
                        Ok(result) => {
                            if results.send(result).await.is_err() {
                                return;
                            }
                        }
                        Err(error) => tracing::warn!(%error, "a message on the results topic is no result"),
                    }
                }
                Some(Err(error)) => {
                    tracing::warn!(%error, "cannot read the results");
                    return;
                }
                None => return,
            }
        }
    });
    receiver
}
