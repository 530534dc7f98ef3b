//! The device thread: one OS thread owns the models, everybody else asks it.
//!
//! In: batches of pixels, each for one model; checks; models that come and go. Out: answers. The thread does one thing at
//! a time, so that a model is checked, added and removed between batches. It holds at most two, the one that jobs are
//! prepared for and the one before, and sees pixels only: receipts stay with the hops, so that giving up on a stuck
//! device still returns the messages.
//!
//! After a device error that it survives, it runs the golden images before it gives out another answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::mpsc::{self, Sender};
use tokio::sync::oneshot;

use super::admission::Admission;
use super::error::Fatal;
use super::rungs::Rungs;
use crate::app::Loaded;
use crate::image::Pixels;
use crate::metrics::Metrics;
use crate::model::golden::{self, GoldenError, GoldenReport};
use crate::model::{Answer, Bundle, Classifier, DeviceError};
use crate::vram::{Ladder, MeasureError, Planner};

/// Requests that wait for the device thread, at most; senders wait for their turn in order.
const WAITING: usize = 1;

/// Between two counts of the runtime's memory: each waits for the device's queue.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The number of the model that an engine starts with.
pub(super) const FIRST_MODEL: u64 = 0;

/// What the thread is asked to do; it answers through `reply`.
enum Request {
    Run { model: u64, images: Vec<Pixels>, reply: oneshot::Sender<Result<Vec<Answer>, Fatal>> },
    Check { reply: oneshot::Sender<Result<(), Fatal>> },
    Add { model: Box<Held>, reply: oneshot::Sender<Result<GoldenReport, GoldenError>> },
    Remove { model: u64 },
    GiveBack,
}

/// The device thread, as others see it. The thread ends when the engine is dropped.
pub struct Engine {
    requests: Sender<Request>,
    suspect: Arc<AtomicBool>,
}

impl Engine {
    /// Starts the thread that owns the model; what fits on the device and what does not is said to `admission`, and what
    /// `planner` finds of models that are added.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(
        model: Loaded,
        admission: Admission,
        planner: Option<Planner>,
        metrics: Arc<Metrics>,
    ) -> std::io::Result<Self> {
        let Loaded { bundle, classifier, golden, formulations: _ } = model;
        metrics.canary(golden);
        let (requests, mut inbox) = mpsc::channel::<Request>(WAITING);
        let suspect = Arc::new(AtomicBool::new(false));
        let held = vec![Held::new(FIRST_MODEL, bundle, classifier)];
        let mut device = Device { held, suspect: suspect.clone(), admission, planner, looked: None, metrics };
        thread::Builder::new().name("device".to_owned()).spawn(move || {
            while let Some(request) = inbox.blocking_recv() {
                device.serve(request);
            }
        })?;
        Ok(Self { requests, suspect })
    }

    /// Runs `images` as one batch of the first model, or as several when the device has no room for that many.
    ///
    /// # Errors
    /// The device failed or computes wrong, or its thread has ended.
    pub async fn run(&self, images: Vec<Pixels>) -> Result<Vec<Answer>, Fatal> {
        self.run_on(FIRST_MODEL, images).await
    }

    /// The same on the model of that number.
    pub(super) async fn run_on(&self, model: u64, images: Vec<Pixels>) -> Result<Vec<Answer>, Fatal> {
        let asked = images.len();
        let answers = self.ask(|reply| Request::Run { model, images, reply }).await??;
        if answers.len() != asked {
            return Err(DeviceError::Failed(format!("{} answers to {asked} images", answers.len())).into());
        }
        Ok(answers)
    }

    /// Runs the golden images of every model that the thread holds.
    pub(super) async fn check(&self) -> Result<(), Fatal> {
        self.ask(|reply| Request::Check { reply }).await?
    }

    /// Gives the thread another model, which it keeps if its golden images pass.
    pub(super) async fn add(
        &self,
        model: u64,
        bundle: Arc<Bundle>,
        classifier: Box<dyn Classifier>,
    ) -> Result<Result<GoldenReport, GoldenError>, Fatal> {
        let model = Box::new(Held::new(model, bundle, classifier));
        self.ask(|reply| Request::Add { model, reply }).await
    }

    /// Takes a model off the device, before anything that is asked for later.
    pub(super) async fn remove(&self, model: u64) -> Result<(), Fatal> {
        self.requests.send(Request::Remove { model }).await.map_err(|_| Fatal::EngineDied)
    }

    /// Gives the memory that batches left behind back to the device, before the next batch.
    pub(super) async fn give_back(&self) -> Result<(), Fatal> {
        self.requests.send(Request::GiveBack).await.map_err(|_| Fatal::EngineDied)
    }

    /// To be set when something goes wrong on the device that this thread does not see: it checks before it gives out
    /// another answer.
    pub(super) fn suspicion(&self) -> Arc<AtomicBool> {
        self.suspect.clone()
    }

    async fn ask<T>(&self, request: impl FnOnce(oneshot::Sender<T>) -> Request) -> Result<T, Fatal> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(request(reply)).await.map_err(|_| Fatal::EngineDied)?;
        answer.await.map_err(|_| Fatal::EngineDied)
    }
}

/// A model on the device.
struct Held {
    number: u64,
    bundle: Arc<Bundle>,
    classifier: Box<dyn Classifier>,
    rungs: Rungs,
}

impl Held {
    fn new(number: u64, bundle: Arc<Bundle>, classifier: Box<dyn Classifier>) -> Self {
        Self { number, bundle, classifier, rungs: Rungs::default() }
    }

    /// Also says whether the device ran out of memory meanwhile.
    fn check(&mut self) -> Result<(GoldenReport, bool), GoldenError> {
        let sizes = if self.classifier.computes_batches_as_one() { self.rungs.next() } else { Vec::new() };
        // Sizes for which the device has no room are checked as they are run: split.
        let mut splitting = Splitting::new(&mut *self.classifier);
        let report = golden::check_batches(&mut splitting, &self.bundle, &sizes)?;
        Ok((report, !splitting.too_large.is_empty()))
    }
}

/// What the thread owns.
struct Device {
    held: Vec<Held>,
    /// A device error was survived, and no check has passed since.
    suspect: Arc<AtomicBool>,
    admission: Admission,
    planner: Option<Planner>,
    /// When the runtime's memory was counted.
    looked: Option<Instant>,
    metrics: Arc<Metrics>,
}

impl Device {
    /// Nobody may wait for the answer any more, when the grace has run out: that is not this thread's matter.
    fn serve(&mut self, request: Request) {
        match request {
            Request::Run { model, images, reply } => {
                let images: Vec<&Pixels> = images.iter().collect();
                drop(reply.send(self.run(model, &images)));
                self.look();
            }
            Request::Check { reply } => drop(reply.send(self.check())),
            Request::Add { model, reply } => drop(reply.send(self.add(*model))),
            Request::Remove { model } => self.held.retain(|held| held.number != model),
            Request::GiveBack => self.held.iter_mut().for_each(|held| held.classifier.give_back()),
        }
    }

    fn run(&mut self, model: u64, images: &[&Pixels]) -> Result<Vec<Answer>, Fatal> {
        let held = self.held.iter_mut().find(|held| held.number == model);
        let held = held.ok_or_else(|| DeviceError::Failed(format!("model {model} is not on the device")))?;
        let mut splitting = Splitting::new(&mut *held.classifier);
        let answers = splitting.classify(images);
        let Splitting { sizes, too_large, .. } = splitting;
        too_large.iter().for_each(|images| self.admission.ran_out(*images));
        sizes.iter().for_each(|images| self.admission.ran(*images));
        let answers = answers?;
        let suspect = !too_large.is_empty() || self.suspect.load(Ordering::SeqCst);
        for size in sizes {
            if suspect { held.rungs.owes(size) } else { held.rungs.ran(size) }
        }
        if suspect {
            tracing::warn!("the device ran out of memory or failed; running the golden images before going on");
            self.check()?;
        }
        Ok(answers)
    }

    /// Counts the runtime's memory, now and then.
    fn look(&mut self) {
        if self.looked.is_none_or(|looked| looked.elapsed() >= LOOK_EVERY)
            && let Some(held) = self.held.last()
        {
            self.metrics.pool(held.classifier.pool());
            self.looked = Some(Instant::now());
        }
    }

    /// Where one model runs out of memory meanwhile, what was checked before it is checked again.
    fn check(&mut self) -> Result<(), Fatal> {
        self.suspect.store(false, Ordering::SeqCst);
        for _ in 0..2 {
            let mut ran_out = false;
            for held in &mut self.held {
                let (report, short) = held.check()?;
                ran_out |= short;
                tracing::debug!(digest = held.bundle.digest(), max_error = report.max_error, "golden images passed");
                self.metrics.canary(report);
            }
            if !ran_out || self.held.len() < 2 {
                break;
            }
        }
        Ok(())
    }

    fn add(&mut self, mut model: Held) -> Result<GoldenReport, GoldenError> {
        // In the batches that it is about to run.
        if let Some(newest) = self.held.last() {
            model.rungs = newest.rungs.clone();
        }
        let checked = model.check();
        if !matches!(checked, Ok((_, false))) {
            self.suspect.store(true, Ordering::SeqCst);
        }
        let (report, _) = checked?;
        let ladder = self.measure(&mut model)?;
        self.held.push(model);
        if let Some(ladder) = ladder {
            self.admission.replan(ladder);
            self.metrics.planned(SystemTime::UNIX_EPOCH.elapsed().ok().map(|since| since.as_secs()));
        }
        Ok(report)
    }
}

impl Device {
    /// The ladder of a model that is to be added; `None` leaves that of the one before.
    fn measure(&mut self, model: &mut Held) -> Result<Option<Ladder>, GoldenError> {
        let Some(planner) = &self.planner else { return Ok(None) };
        let error = match planner(&mut *model.classifier, &model.bundle) {
            Ok(ladder) => return Ok(Some(ladder)),
            Err(MeasureError::Memory(error)) => {
                tracing::warn!(%error, "the plan stays that of the model before");
                return Ok(None);
            }
            Err(MeasureError::Device(error) | MeasureError::Poisoned { failure: error, .. }) => error,
            Err(MeasureError::Refused(error)) => DeviceError::OutOfMemory(error.to_string()),
        };
        self.suspect.store(true, Ordering::SeqCst);
        Err(error.into())
    }
}

/// A classifier that halves a batch when the device runs out of memory, down to single images.
struct Splitting<'a> {
    classifier: &'a mut dyn Classifier,
    /// Batches that ran, in images.
    sizes: Vec<usize>,
    /// Batches that did not fit, in images.
    too_large: Vec<usize>,
}

impl<'a> Splitting<'a> {
    fn new(classifier: &'a mut dyn Classifier) -> Self {
        Self { classifier, sizes: Vec::new(), too_large: Vec::new() }
    }
}

impl Classifier for Splitting<'_> {
    fn classify(&mut self, images: &[&Pixels]) -> Result<Vec<Answer>, DeviceError> {
        match self.classifier.classify(images) {
            Err(DeviceError::OutOfMemory(error)) if images.len() > 1 => {
                self.too_large.push(images.len());
                let (left, right) = images.split_at(images.len() / 2);
                tracing::warn!(batch = images.len(), error, "out of device memory; splitting the batch");
                let mut answers = self.classify(left)?;
                answers.extend(self.classify(right)?);
                Ok(answers)
            }
            result => {
                self.sizes.push(images.len());
                result
            }
        }
    }

    fn device(&self) -> &str {
        self.classifier.device()
    }

    fn computes_batches_as_one(&self) -> bool {
        self.classifier.computes_batches_as_one()
    }
}

/// Nobody is held to anything: for tests of the thread alone.
#[cfg(test)]
fn unlimited(metrics: &Arc<Metrics>) -> Admission {
    Admission::new(crate::vram::Ceiling::unmeasured(1024, 1), metrics.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device with room for `room` images a batch, whose logits are each image's first byte.
    struct Small {
        room: usize,
        batches: Vec<usize>,
    }

    impl Classifier for Small {
        fn classify(&mut self, images: &[&Pixels]) -> Result<Vec<Answer>, DeviceError> {
            self.batches.push(images.len());
            if images.len() > self.room {
                return Err(DeviceError::OutOfMemory("test".to_owned()));
            }
            let answer = |image: &&Pixels| Answer { logits: vec![f32::from(image.rgb[0])], embedding: None };
            Ok(images.iter().map(answer).collect())
        }

        fn device(&self) -> &str {
            "test"
        }
    }

    fn pixels(count: u8) -> Vec<Pixels> {
        (0..count).map(|value| Pixels { height: 1, width: 1, rgb: vec![value; 3] }).collect()
    }

    #[test]
    fn a_batch_that_does_not_fit_is_split_and_keeps_its_order() {
        let mut device = Small { room: 3, batches: Vec::new() };
        let images = pixels(10);
        let mut splitting = Splitting::new(&mut device);
        let answers = splitting.classify(&images.iter().collect::<Vec<_>>()).unwrap();
        assert_eq!(splitting.too_large, [10, 5, 5]);
        assert_eq!(splitting.sizes, [2, 3, 2, 3], "sizes in use are those that ran");
        let firsts: Vec<f32> = answers.iter().map(|answer| answer.logits[0]).collect();
        assert_eq!(firsts, (0..10_u8).map(f32::from).collect::<Vec<_>>());
        assert_eq!(device.batches, [10, 5, 2, 3, 5, 2, 3]);
    }

    /// A device with room for one image, which computes right.
    struct Tight(Box<dyn Classifier>);

    impl Classifier for Tight {
        fn classify(&mut self, images: &[&Pixels]) -> Result<Vec<Answer>, DeviceError> {
            match images {
                [_] => self.0.classify(images),
                _ => Err(DeviceError::OutOfMemory("test".to_owned())),
            }
        }

        fn device(&self) -> &str {
            "test"
        }
    }

    #[test]
    fn a_model_that_runs_out_of_memory_as_it_comes_makes_the_device_suspect() {
        let bundle = Arc::new(Bundle::builtin().unwrap());
        let held = |number, tight| {
            let right = crate::model::load(&bundle, crate::model::Device::Cpu).unwrap();
            Held::new(number, bundle.clone(), if tight { Box::new(Tight(right)) } else { right })
        };
        let (suspect, metrics) = (Arc::new(AtomicBool::new(false)), Arc::new(Metrics::default()));
        let admission = unlimited(&metrics);
        let mut device =
            Device { held: vec![held(0, false)], suspect, admission, planner: None, looked: None, metrics };
        device.add(held(1, false)).unwrap();
        assert!(!device.suspect.load(Ordering::SeqCst));
        device.held.pop();
        device.add(held(2, true)).unwrap();
        assert!(device.suspect.load(Ordering::SeqCst), "the other model's answers wait for its golden images");
        device.run(0, &[&bundle.golden()[0].pixels]).unwrap();
        assert!(!device.suspect.load(Ordering::SeqCst));
        let runs = device.metrics.snapshot().canary.runs;
        assert_eq!(runs, 4, "the first model again after the second one ran out of memory");
    }

    #[test]
    fn a_device_without_room_for_one_image_is_an_error() {
        let mut device = Small { room: 0, batches: Vec::new() };
        let images = pixels(2);
        let error = Splitting::new(&mut device).classify(&images.iter().collect::<Vec<_>>()).unwrap_err();
        assert!(matches!(error, DeviceError::OutOfMemory(_)));
        assert_eq!(device.batches, [2, 1]);
    }
}
