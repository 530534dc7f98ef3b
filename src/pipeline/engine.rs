//! The device thread: one OS thread owns the models, everybody else asks it.
//!
//! In: batches of pixels, each for one model; checks; models that come and go. Out: answers. The thread does one thing at
//! a time, so that a model is checked, added and removed between batches. It holds at most two, the one that jobs are
//! prepared for and the one before, and sees pixels only: receipts stay with the hops, so that giving up on a stuck
//! device still returns the messages.
//!
//! After a device error that it survives, it runs the golden images before it gives out another answer.

mod splitting;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::mpsc::{self, Sender};
use tokio::sync::oneshot;

use self::splitting::Splitting;
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
    Run { model: u64, images: Arc<[Pixels]>, reply: oneshot::Sender<Result<Vec<Answer>, Fatal>> },
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
            let mut after = None;
            while let Some(request) = after.take().or_else(|| inbox.blocking_recv()) {
                after = device.serve(request, || inbox.try_recv().ok());
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
        let images: Arc<[Pixels]> = images.into();
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
    /// Gives the request after it, if it has asked for that. Nobody may wait for the answer any more, when the grace has
    /// run out: that is not this thread's matter.
    fn serve(&mut self, request: Request, mut more: impl FnMut() -> Option<Request>) -> Option<Request> {
        let mut after = None;
        match request {
            Request::Run { model, images, reply } => {
                let mut next = || {
                    after = more();
                    match &after {
                        Some(Request::Run { model: other, images, .. }) if *other == model => Some(images.clone()),
                        _ => None,
                    }
                };
                drop(reply.send(self.run(model, &images, &mut next)));
                self.look();
            }
            Request::Check { reply } => drop(reply.send(self.check())),
            Request::Add { model, reply } => drop(reply.send(self.add(*model))),
            Request::Remove { model } => self.held.retain(|held| held.number != model),
            Request::GiveBack => self.held.iter_mut().for_each(|held| held.classifier.give_back()),
        }
        after
    }

    fn run(
        &mut self,
        model: u64,
        images: &Arc<[Pixels]>,
        next: &mut dyn FnMut() -> Option<Arc<[Pixels]>>,
    ) -> Result<Vec<Answer>, Fatal> {
        let held = self.held.iter_mut().find(|held| held.number == model);
        let held = held.ok_or_else(|| DeviceError::Failed(format!("model {model} is not on the device")))?;
        let mut splitting = Splitting::new(&mut *held.classifier);
        let answers = splitting.classify_ahead(images, next);
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

/// Nobody is held to anything: for tests of the thread alone.
#[cfg(test)]
fn unlimited(metrics: &Arc<Metrics>) -> Admission {
    Admission::new(crate::vram::Ceiling::unmeasured(1024, 1), metrics.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

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

    /// Puts every batch ahead that it can, and notes which of those ran next.
    #[derive(Default)]
    struct Ahead {
        there: Option<Arc<[Pixels]>>,
        used: Arc<Mutex<Vec<bool>>>,
    }

    impl Classifier for Ahead {
        fn classify(&mut self, images: &[&Pixels]) -> Result<Vec<Answer>, DeviceError> {
            Ok(vec![Answer::default(); images.len()])
        }

        fn classify_ahead(
            &mut self,
            images: &Arc<[Pixels]>,
            next: &mut dyn FnMut() -> Option<Arc<[Pixels]>>,
        ) -> Result<Vec<Answer>, DeviceError> {
            let there = std::mem::replace(&mut self.there, next());
            self.used.lock().unwrap().push(there.is_some_and(|there| Arc::ptr_eq(&there, images)));
            self.classify(&images.iter().collect::<Vec<_>>())
        }

        fn ahead_bytes(&self, _: usize) -> u64 {
            1
        }

        fn device(&self) -> &str {
            "test"
        }
    }

    #[tokio::test]
    async fn the_next_batch_of_the_same_model_is_put_on_the_device_while_one_runs() {
        let bundle = Arc::new(Bundle::builtin().unwrap());
        let classifier = Ahead::default();
        let used = classifier.used.clone();
        let metrics = Arc::new(Metrics::default());
        let held = vec![Held::new(0, bundle.clone(), Box::new(classifier))];
        let (suspect, admission) = (Arc::new(AtomicBool::new(false)), unlimited(&metrics));
        let mut device = Device { held, suspect, admission, planner: None, looked: None, metrics };
        let pixels = &bundle.golden()[0].pixels;
        let mut answers = Vec::new();
        let mut requests: Vec<_> = [0, 0, 1, 0, 0]
            .map(|model| {
                let (reply, answer) = oneshot::channel();
                answers.push(answer);
                Request::Run { model, images: vec![pixels.clone(); 2].into(), reply }
            })
            .into_iter()
            .rev()
            .collect();
        let mut after = None;
        while let Some(request) = after.take().or_else(|| requests.pop()) {
            after = device.serve(request, || requests.pop());
        }
        let mut answered = Vec::new();
        for answer in answers {
            answered.push(answer.await.unwrap().map(|answers| answers.len()).ok());
        }
        assert_eq!(answered, [Some(2), Some(2), None, Some(2), Some(2)], "each once; model 1 is not there");
        assert_eq!(*used.lock().unwrap(), [false, true, false, true]);
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
        device.run(0, &vec![bundle.golden()[0].pixels.clone()].into(), &mut || None).unwrap();
        assert!(!device.suspect.load(Ordering::SeqCst));
        let runs = device.metrics.snapshot().canary.runs;
        assert_eq!(runs, 4, "the first model again after the second one ran out of memory");
    }
}
