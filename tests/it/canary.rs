//! The golden images while the worker runs: a device that begins to compute wrong publishes nothing more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use stoker::app::{AppError, LoadError, Loaded};
use stoker::event::FailureCode;
use stoker::image::Pixels;
use stoker::model::golden::{self, GoldenError};
use stoker::model::{Answer, Bundle, Classifier, Device, DeviceError, Formulations, load};
use stoker::pipeline::{Ended, Fatal};

use crate::reload::{models::Files, store};
use crate::world::{CAT, COFFEE, Worker, World};

/// What a device does instead of its work.
type Fault = Box<dyn FnMut(&mut dyn Classifier, &[&Pixels]) -> Result<Vec<Answer>, DeviceError> + Send>;

/// A device that works until it is told to be faulty.
struct Faulty {
    right: Box<dyn Classifier>,
    fault: Fault,
    faulty: Arc<AtomicBool>,
}

impl Classifier for Faulty {
    fn classify(&mut self, images: &[&Pixels]) -> Result<Vec<Answer>, DeviceError> {
        if self.faulty.load(Ordering::SeqCst) {
            return (self.fault)(&mut *self.right, images);
        }
        self.right.classify(images)
    }

    fn device(&self) -> &str {
        self.right.device()
    }
}

/// The built-in model on a device that has this fault from when the flag is set.
fn faulty(fault: Fault) -> (Loaded, Arc<AtomicBool>) {
    let bundle = Bundle::builtin().unwrap();
    let mut right = load(&bundle, Device::Cpu).unwrap();
    let golden = golden::check(&mut *right, &bundle).unwrap();
    let faulty = Arc::new(AtomicBool::new(false));
    let classifier = Box::new(Faulty { right, fault, faulty: faulty.clone() });
    (Loaded { bundle: Arc::new(bundle), classifier, golden, formulations: Formulations::default() }, faulty)
}

/// A kernel that is a little wrong in one place.
fn wrong_kernel() -> Fault {
    Box::new(|right, images| {
        let mut answers = right.classify(images)?;
        answers.iter_mut().for_each(|answer| answer.logits[7] += 0.5);
        Ok(answers)
    })
}

async fn ended_by(world: &World, worker: Worker) -> Fatal {
    let error = worker.ended().await.unwrap_err();
    let AppError::Fatal(fatal) = error else { panic!("{error}") };
    let returned = world.services().wait_until(&world.uploads, |counts| counts.outstanding == 0);
    // Well before their leases end, after 10 s.
    tokio::time::timeout(Duration::from_secs(5), returned).await.expect("not returned").unwrap();
    fatal
}

async fn ended_by_the_canary(world: &World, worker: Worker) -> GoldenError {
    let fatal = ended_by(world, worker).await;
    let Fatal::Canary(source) = fatal else { panic!("{fatal}") };
    source
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kernel_that_turns_wrong_ends_the_worker() {
    let mut world = World::local().await;
    let (model, faulty) = faulty(wrong_kernel());
    let worker = world.worker_on(model, &[("--canary-interval", "200ms")]);
    world.upload("cat.jpg", CAT).await;
    assert_eq!(world.next().await.result.labels[0].name, "tiger cat");
    let counts = worker.counted(|counts| counts.canary.runs >= 3).await;
    assert!(counts.canary.max_error < 1e-4 && counts.canary.at.is_some(), "{counts:?}");
    // The worker is idle: nothing but the golden images can find out.
    faulty.store(true, Ordering::SeqCst);
    let error = ended_by_the_canary(&world, worker).await;
    assert!(matches!(error, GoldenError::Mismatch { index: 7, .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kernel_that_turns_wrong_at_one_batch_size_ends_the_worker() {
    let mut world = World::local().await;
    // Sizes at which the golden images do not run by themselves: they are three.
    let wrong = |images: usize| images > 4;
    let mut kernel = wrong_kernel();
    let (model, faulty) = faulty(Box::new(move |right, images| match images.len() {
        size if wrong(size) => kernel(right, images),
        _ => right.classify(images),
    }));
    let worker = world.worker_on(model, &[("--canary-interval", "200ms"), ("--max-batch", "8")]);
    let mut rounds = 0;
    while !worker.metrics.snapshot().batch_sizes.keys().any(|size| wrong(*size)) {
        upload_several(&world).await;
        // The same objects, uploaded again: a round's last result follows all of its batches.
        for _ in 0..8 {
            assert_eq!(world.next().await.result.labels[0].name, "espresso");
        }
        rounds += 1;
        assert!(rounds < 100, "no batch of five: {:?}", worker.metrics.snapshot().batch_sizes);
    }
    faulty.store(true, Ordering::SeqCst);
    let error = ended_by_the_canary(&world, worker).await;
    assert!(matches!(error, GoldenError::Mismatch { index: 7, .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_weight_that_is_not_what_the_golden_images_were_made_with_is_refused_at_the_start() {
    let world = World::local().await;
    let files = Files::builtin().corrupt_weight();
    store(&world, "models/corrupted", &files);
    let flags = [("--model", "gs://photos/models/corrupted"), ("--model-cache", "none")];
    let error = world.worker(&flags).ended().await.unwrap_err();
    let AppError::Load(LoadError::Golden(GoldenError::Mismatch { .. })) = &error else { panic!("{error}") };
}

#[tokio::test(flavor = "multi_thread")]
async fn a_weight_that_is_corrupted_in_memory_ends_the_worker() {
    let world = World::local().await;
    let corrupted = Files::builtin().corrupt_weight().bundle();
    let mut corrupted = load(&corrupted, Device::Cpu).unwrap();
    let (model, faulty) = faulty(Box::new(move |_, images| corrupted.classify(images)));
    let worker = world.worker_on(model, &[("--canary-interval", "200ms")]);
    worker.counted(|counts| counts.canary.runs >= 2).await;
    faulty.store(true, Ordering::SeqCst);
    let error = ended_by_the_canary(&world, worker).await;
    assert!(matches!(error, GoldenError::Mismatch { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn golden_images_that_cannot_be_run_end_the_worker() {
    let world = World::local().await;
    let (model, faulty) = faulty(Box::new(|_, _| Err(DeviceError::Failed("it fell off the bus".to_owned()))));
    let worker = world.worker_on(model, &[("--canary-interval", "200ms")]);
    faulty.store(true, Ordering::SeqCst);
    // The device failed: nobody knows whether it would compute wrong.
    let fatal = ended_by(&world, worker).await;
    assert!(matches!(fatal, Fatal::Device(_)) && fatal.to_string().contains("it fell off the bus"), "{fatal}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_on_which_numbers_overflow_fails_alone() {
    let mut world = World::local().await;
    let grey = |image: &Pixels| image.rgb.chunks_exact(3).all(|pixel| pixel.iter().all(|value| *value == pixel[0]));
    let (model, faulty) = faulty(Box::new(move |right, images| {
        let mut answers = right.classify(images)?;
        for (answer, image) in answers.iter_mut().zip(images) {
            if grey(image) {
                answer.logits[3] = f32::NAN;
            }
        }
        Ok(answers)
    }));
    faulty.store(true, Ordering::SeqCst);
    let worker = world.worker_on(model, &[]);
    world.upload("odd.jpg", include_bytes!("../../fixtures/photos/camera.jpg")).await;
    let result = world.next().await.result;
    assert_eq!(result.error.unwrap().code, FailureCode::NotFinite);
    assert!(worker.metrics.snapshot().canary.runs >= 2, "the golden images ran before it was said");
    world.upload("cat.jpg", CAT).await;
    assert_eq!(world.next().await.result.labels[0].name, "tiger cat");
    assert_eq!(worker.stop().await.unwrap(), Ended::Drained);
}

/// A device that runs out of memory at the next batch of several, and does `afterwards` from then on.
fn out_of_memory_once(mut afterwards: Fault) -> Fault {
    let calls = AtomicUsize::new(0);
    Box::new(move |right, images| {
        if images.len() > 1 && calls.fetch_add(1, Ordering::SeqCst) == 0 {
            return Err(DeviceError::OutOfMemory("allocating 1 GiB".to_owned()));
        }
        if calls.load(Ordering::SeqCst) > 0 { afterwards(right, images) } else { right.classify(images) }
    })
}

/// Uploads on which the worker meets a batch of several.
async fn upload_several(world: &World) {
    for name in ["1.jpg", "2.jpg", "3.jpg", "4.jpg", "5.jpg", "6.jpg", "7.jpg", "8.jpg"] {
        world.upload(name, COFFEE).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_fails_once_is_checked_and_goes_on() {
    let mut world = World::local().await;
    upload_several(&world).await;
    let (model, faulty) = faulty(out_of_memory_once(Box::new(|right, images| right.classify(images))));
    faulty.store(true, Ordering::SeqCst);
    let worker = world.worker_on(model, &[("--canary-interval", "0")]);
    let results = world.results(8).await;
    assert!(results.values().all(|result| result.labels[0].name == "espresso"));
    let metrics = worker.metrics.clone();
    assert_eq!(worker.stop().await.unwrap(), Ended::Drained);
    // At the start, and after the error.
    let counts = metrics.snapshot();
    assert_eq!(counts.canary.runs, 2, "{counts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_published_from_a_batch_whose_device_error_left_it_wrong() {
    let world = World::local().await;
    upload_several(&world).await;
    let (mut fault, failed) = (out_of_memory_once(wrong_kernel()), Arc::new(AtomicBool::new(false)));
    let right = Arc::new(AtomicU64::new(0));
    let before = right.clone();
    let (model, faulty) = faulty(Box::new(move |device, images| {
        let answers = fault(device, images);
        failed.fetch_or(answers.is_err(), Ordering::SeqCst);
        if !failed.load(Ordering::SeqCst) {
            before.fetch_add(images.len() as u64, Ordering::SeqCst);
        }
        answers
    }));
    faulty.store(true, Ordering::SeqCst);
    let worker = world.worker_on(model, &[("--canary-interval", "0"), ("--max-outstanding", "8")]);
    let metrics = worker.metrics.clone();
    let error = ended_by_the_canary(&world, worker).await;
    assert!(matches!(error, GoldenError::Mismatch { index: 7, .. }), "{error}");
    // Single images before that batch were right, and are the only ones published.
    let counts = metrics.snapshot();
    assert!(counts.labeled <= right.load(Ordering::SeqCst), "{counts:?}");
    assert_eq!(world.services().counts(&world.uploads).unwrap().acked, counts.labeled);
}
