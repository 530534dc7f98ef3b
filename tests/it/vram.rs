//! Concurrency tied to the device's memory: the plan, the ceiling, and what `stoker plan` measures.

mod soak;
mod worker;

use std::sync::Arc;

use serde_json::{Value, json};
use stoker::app::{AppError, Loaded};
use stoker::image::Pixels;
use stoker::model::{Answer, Bundle, Classifier, Device, DeviceError, Formulations, golden, load};
use stoker::pipeline::Ended;
use stoker::planning::PlanningError;
use stoker::vram::{DeviceMemory, Limit, Plan, Refused, Simulated, Simulation, Sizing};

use crate::bundle::Scratch;
use crate::cli::{run, text};
use crate::world::{CAT, Worker, World, within};

const MIB: u64 = 1 << 20;

/// A device whose images take a MiB each.
const SIMPLE: Simulation = Simulation {
    capacity: 100 * MIB,
    fixed: 10 * MIB,
    image: MIB,
    fragmentation: 0.0,
    launch_seconds: 0.001,
    image_seconds: 0.001,
    noise: 0.0,
};

/// The processor's answers, within a simulated device's memory.
struct Limited {
    right: Box<dyn Classifier>,
    device: Arc<Simulated>,
}

impl Classifier for Limited {
    fn classify(&mut self, images: &[&Pixels]) -> Result<Vec<Answer>, DeviceError> {
        let bytes = self.device.hold(images.len())?;
        let answers = self.right.classify(images);
        self.device.release(bytes);
        answers
    }

    fn device(&self) -> &str {
        "simulated"
    }
}

/// The built-in model on a device of so many MiB.
fn limited(capacity: u64) -> (Loaded, Arc<Simulated>) {
    let bundle = Bundle::builtin().unwrap();
    let mut right = load(&bundle, Device::Cpu).unwrap();
    let golden = golden::check(&mut *right, &bundle).unwrap();
    let device = Arc::new(Simulated::new(Simulation { capacity: capacity * MIB, ..SIMPLE }, 1));
    let classifier = Box::new(Limited { right, device: device.clone() });
    (Loaded { bundle: Arc::new(bundle), classifier, golden, formulations: Formulations::default() }, device)
}

async fn upload_and_label(world: &mut World, images: usize) {
    for image in 0..images {
        world.upload(&format!("{image}.jpg"), CAT).await;
    }
    for result in world.results(images).await.into_values() {
        assert_eq!(result.labels[0].name, "tiger cat");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_does_not_fit_is_split_and_the_ceiling_comes_down() {
    let mut world = World::local().await;
    // Two images fit beside the model, and three do not: they would be filled up to four.
    let (model, device) = limited(13);
    let worker = world.worker_sized(model, Sizing::unmeasured(Some(8), None, 2), &[("--canary-interval", "0")]);
    let mut rounds = 0;
    while worker.metrics.snapshot().device.splits == 0 {
        upload_and_label(&mut world, 12).await;
        rounds += 1;
        assert!(rounds < 100, "no batch of three: {:?}", worker.metrics.snapshot().batch_sizes);
    }
    let counts = worker.metrics.snapshot();
    assert!(counts.device.ceiling < 8 && counts.device.planned_batch == 8, "{:?}", counts.device);
    assert_eq!(counts.device.limit, Some(Limit::OutOfMemory));
    assert_eq!(counts.device.lowered.keys().copied().collect::<Vec<_>>(), ["out_of_memory"]);
    assert!(counts.canary.runs >= 2, "the golden images ran before anything was given out: {counts:?}");
    assert!(device.read().unwrap().peak <= 13 * MIB);
    assert_eq!(worker.stop().await.unwrap(), Ended::Drained);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_process_lowers_the_ceiling_to_nothing_and_its_end_brings_it_back() {
    let mut world = World::local().await;
    let (model, device) = limited(100);
    let plan = worker::plan(&device, 0.9, 1).unwrap();
    let (budget, batch) = (plan.measured.budget, plan.decision.batch);
    assert!(batch >= 16, "{plan:?}");
    device.set_foreign(85 * MIB);
    let sizing = Sizing::planned(&plan, device.clone(), budget, 2);
    let worker = world.worker_sized(model, sizing, &[]);
    let counts = worker.counted(|counts| counts.device.limit == Some(Limit::Pressure)).await;
    assert_eq!(counts.device.ceiling, 2);
    worker.counted(|counts| counts.device.memory.is_some_and(|reading| reading.free == 5 * MIB)).await;
    upload_and_label(&mut world, 6).await;
    assert!(worker.metrics.snapshot().batch_sizes.keys().all(|size| *size <= 2));
    device.set_foreign(90 * MIB);
    worker.counted(|counts| counts.device.ceiling == 0).await;
    let before = worker.metrics.snapshot().batches;
    world.upload("late.jpg", CAT).await;
    worker.counted(|counts| counts.device.memory.is_some_and(|reading| reading.free == 0)).await;
    assert_eq!(worker.metrics.snapshot().batches, before, "no batch without room");
    device.set_foreign(0);
    assert_eq!(within(world.next()).await.result.labels[0].name, "tiger cat");
    let counts = worker.counted(|counts| counts.device.ceiling == batch).await;
    assert_eq!((counts.device.limit, counts.device.splits), (Some(Limit::Plan), 0));
    assert_eq!(worker.stop().await.unwrap(), Ended::Drained);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_carries_little_has_few_messages_leased() {
    let plan = |image_seconds| {
        let device = Simulated::new(Simulation { image_seconds, launch_seconds: 0.0, ..SIMPLE }, 1);
        worker::plan(&device, 0.9, 1).unwrap().decision.outstanding
    };
    let (slow, fast) = (plan(0.5), plan(0.0005));
    assert!(slow < 20 && fast > 1_000, "{slow} {fast}");
}

#[tokio::test]
async fn the_plan_is_printed_written_and_fed_back() {
    let scratch = Scratch::new();
    let file = scratch.path().join("plan.json").display().to_string();
    let output = run(&["plan", "--write", &file]).await;
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{shown}{}", text(&output.stderr));
    for part in ["images/s", "← chosen", "Decision: ", "messages leased", "--vram-fraction 0.9", "█"] {
        assert!(shown.contains(part), "no {part} in\n{shown}");
    }
    let plan = Plan::parse(&std::fs::read(&file).unwrap()).unwrap();
    let steps = &plan.measured.steps;
    assert!(steps.len() >= 2 && steps.iter().all(|step| step.bytes <= plan.measured.budget.bytes()), "{plan:?}");
    // A process with the model has some tens of MiB and no more than a few hundred.
    assert!((20 * MIB..2_000 * MIB).contains(&plan.measured.base), "{plan:?}");

    // Fed back, it is decided anew and measured no more.
    let output = run(&["plan", "--plan", &file, "--max-batch", "2", "--json"]).await;
    let again: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
    let before = serde_json::to_value(&plan).unwrap();
    assert_eq!(again["measured"]["at"], before["measured"]["at"]);
    assert_eq!(again["measured"]["steps"], before["measured"]["steps"]);
    assert!(again["decision"]["batch"].as_u64().unwrap() <= 2);

    // Of another device, model or version, or no plan at all.
    for (field, value, told) in [
        ("device", json!("cuda NVIDIA L4 580.1"), "another device or driver"),
        ("model", json!("sha256:00"), "another model"),
        ("fusion", json!(false), "another --kernel-fusion"),
        ("stoker", json!("0.0.1"), "another version of Stoker"),
    ] {
        let mut other = before.clone();
        other["key"][field] = value;
        refused(&file, &other, told).await;
    }
    let mut other = before.clone();
    other["measured"]["steps"][0]["batch"] = json!(3);
    refused(&file, &other, "1, 2, 4").await;
    refused(&file, &json!({"version": 1}), "no plan of this version").await;
}

async fn refused(file: &str, plan: &Value, told: &str) {
    std::fs::write(file, serde_json::to_vec(plan).unwrap()).unwrap();
    let output = run(&["plan", "--plan", file]).await;
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains(told) && error.contains(file), "{told}: {error}");
}

#[tokio::test]
async fn limits_that_leave_no_room_are_refused_with_the_numbers() {
    let output = run(&["plan", "--vram-limit", "1500MiB", "--decode-memory", "600MiB", "--decode-threads", "1"]).await;
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{error}");
    for (words, told) in [
        (
            &["--vram-limit", "400MiB"][..],
            &["a single image needs", "--vram-limit is 400.0 MiB", "reading and decoding"][..],
        ),
        (&["--decode-memory", "900TiB"], &["900.0 TiB", "--fetch-budget 256.0 MiB", "decode threads"]),
        (&["--decode-threads", "1024", "--decode-memory", "1TiB"], &["each of 1024 decode threads"]),
    ] {
        let output = run(&[&["plan"], words].concat()).await;
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {error}");
        assert!(told.iter().all(|part| error.contains(part)), "{words:?}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_without_room_ends_before_it_pulls() {
    let world = World::local().await;
    let worker: Worker = world.worker(&[("--plan", "measure"), ("--vram-limit", "1MiB")]);
    let error = worker.ended().await.unwrap_err();
    let AppError::Planning(PlanningError::Refused(Refused::Budget { .. })) = error else { panic!("{error}") };
}
