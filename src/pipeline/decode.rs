//! Bytes decoded to the model's input, on threads of its own: decoding never runs on the async runtime.

use std::sync::Arc;
use std::time::Instant;

use rayon::{ThreadPool, ThreadPoolBuilder};
use tokio::sync::mpsc::{Receiver, Sender};
use tokio::sync::oneshot;

use super::closing::Closing;
use super::each::each;
use super::error::Fatal;
use super::fetch::Body;
use super::generation::{Current, InUse};
use super::job::{Job, Outcome};
use crate::image::{self, Limits, Prepared};

/// A decoded image waiting for its batch.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) prepared: Prepared,
    /// The model that it was prepared for, and no other.
    pub(super) model: InUse,
    pub(super) since: Instant,
}

/// The decoder threads and the model that they decode for. Clones share the threads.
#[derive(Clone)]
pub(super) struct Decoder {
    threads: Arc<ThreadPool>,
    limits: Limits,
    current: Current,
}

impl Decoder {
    pub(super) fn new(threads: usize, limits: Limits, current: Current) -> Result<Self, Fatal> {
        let threads =
            ThreadPoolBuilder::new().num_threads(threads).thread_name(|index| format!("decode-{index}")).build()?;
        Ok(Self { threads: Arc::new(threads), limits, current })
    }
}

/// Decodes each body; what is no usable image becomes a failed result.
pub(super) async fn run(
    bodies: Receiver<Job<Body>>,
    decoder: Decoder,
    closing: Closing,
    images: Sender<Job<Waiting>>,
    outcomes: Sender<Job<Outcome>>,
) -> Result<(), Fatal> {
    each(bodies, decoder.threads.current_num_threads(), |job| {
        let (decoder, closing) = (decoder.clone(), closing.clone());
        let (images, outcomes) = (images.clone(), outcomes.clone());
        async move {
            let started = Instant::now();
            let (body, mut job) = job.split();
            let (reply, prepared) = oneshot::channel();
            let Decoder { threads, limits, current } = decoder;
            let model = current.take();
            job.facts.model = Some(model.model.clone());
            let preprocess = model.model.bundle.manifest().preprocess();
            threads.spawn(move || {
                let prepared = image::prepare(&body.bytes, &limits, &preprocess);
                // Nobody waits any more when the grace has run out.
                drop(reply.send(prepared));
                drop(body);
            });
            let prepared = closing.before_error(prepared.await.map_err(|_| Fatal::DecoderDied)).await?;
            job.facts.spent.decode = Some(started.elapsed());
            match prepared {
                Ok(prepared) => {
                    let waiting = Waiting { prepared, model, since: Instant::now() };
                    drop(images.send(job.with(waiting)).await);
                }
                Err(error) => drop(outcomes.send(job.reject(error.code(), error.to_string())).await),
            }
            Ok(())
        }
    })
    .await
}
