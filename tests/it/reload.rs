//! Models rolled while the worker runs, by the pointer object.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::json;
use stoker::app::{AppError, LoadError};
use stoker::event::{LabelResult, ObjectId, ObjectInfo, Status, result_id};
use stoker::local::{Call, Content, Fault, Rule};
use stoker::pipeline::Ended;
use stoker::reload::Reason;

use crate::world::{CAT, Worker, World, within};
use models::Files;

pub(crate) mod models;

const POINTER: &str = "current.json";
/// No test rests on how long this is.
const FAST: [(&str, &str); 3] =
    [("--model-refresh", "gs://photos/current.json"), ("--model-refresh-interval", "100ms"), ("--model-cache", "none")];

/// Puts a bundle at `gs://photos/PLACE`.
pub(crate) fn store(world: &World, place: &str, files: &Files) {
    let put = |path: &str, bytes: bytes::Bytes| {
        let content = Content::new(bytes, "application/octet-stream");
        world.services().put_object("photos", &format!("{place}/{path}"), content).unwrap();
    };
    files.files.iter().for_each(|(path, bytes)| put(path, bytes.clone()));
    put("model.json", files.manifest_bytes().into());
}

fn point_at(world: &World, text: impl Into<String>) {
    let content = Content::new(text.into().into_bytes(), "application/json");
    world.services().put_object("photos", POINTER, content).unwrap();
}

/// Points at a bundle.
fn point(world: &World, place: &str, digest: &str) {
    point_at(world, json!({"model": format!("gs://photos/{place}"), "digest": digest}).to_string());
}

/// Stores a bundle and points at it; returns its digest.
fn roll(world: &World, place: &str, files: &Files) -> String {
    store(world, place, files);
    point(world, place, &files.digest());
    files.digest()
}

/// A world whose pointer names the built-in model, and a worker that follows it; with that model's digest.
async fn rolling() -> (World, Worker, String) {
    let world = World::local().await;
    let digest = roll(&world, "models/one", &Files::builtin());
    let worker = world.worker(&FAST);
    worker.counted(|counts| counts.canary.runs == 1).await;
    (world, worker, digest)
}

/// Checks that everything in a result belongs to one model.
fn is_of_one_model(result: &LabelResult, other: &str) {
    let ObjectInfo { bucket, name, generation, .. } = result.object.clone().unwrap();
    let object = ObjectId { bucket, name, generation };
    assert_eq!(result.status, Status::Labeled, "{:?}", result.error);
    assert_eq!(result.id, result_id(&object, &result.model.digest));
    let best = &result.labels[0];
    let sum: f32 = result.labels.iter().map(|label| label.score).sum();
    if result.model.digest == other {
        assert_eq!((result.model.name.as_str(), result.model.device.as_str()), ("other", "CPU"));
        assert!(["other tiger cat", "other tabby", "other Egyptian cat"].contains(&best.name.as_str()), "{best:?}");
        assert!(sum > 2.0, "sigmoid scores stand alone: {:?}", result.labels);
        let length: f32 = result.embedding.as_ref().unwrap().iter().map(|value| value * value).sum();
        assert!((length - 1.0).abs() < 1e-4, "{length}");
    } else {
        assert_eq!((result.model.name.as_str(), best.name.as_str()), ("efficientnet-lite0", "tiger cat"));
        assert!(sum < 1.001 && result.embedding.is_none());
    }
}

/// Memory that this machine has left, in GiB; 0 on a system that does not tell.
fn available_gib() -> u64 {
    let table = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib =
        table.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB")?.parse().ok());
    kib.unwrap_or(0u64) >> 20
}

/// The digest of the model that labels an upload now.
async fn model_in_use(world: &mut World, name: &str) -> String {
    world.upload(name, CAT).await;
    world.next().await.result.model.digest
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_replaced_under_load_and_every_upload_has_one_result() {
    let (mut world, worker, old) = rolling().await;
    let files = Files::other();
    let (mut uploaded, mut labeled) = (0, BTreeSet::new());
    let mut digests = Vec::new();
    // Until some uploads were labelled by the new model, there is always work under way.
    while digests.iter().filter(|digest| **digest != old).count() < 8 {
        while uploaded < labeled.len() + 16 {
            world.upload(&format!("{uploaded}.jpg"), CAT).await;
            uploaded += 1;
        }
        let result = world.next().await.result;
        is_of_one_model(&result, &files.digest());
        assert!(labeled.insert(result.object.unwrap().name), "a second result");
        digests.push(result.model.digest);
        if labeled.len() == 8 {
            roll(&world, "models/other", &files);
        }
    }
    while labeled.len() < uploaded {
        let result = world.next().await.result;
        is_of_one_model(&result, &files.digest());
        assert!(labeled.insert(result.object.unwrap().name), "a second result");
    }
    assert!(digests[..8].iter().all(|digest| *digest == old));
    within(world.services().wait_idle(&world.uploads)).await.unwrap();
    let metrics = worker.metrics.clone();
    assert_eq!(worker.stop().await.unwrap(), Ended::Drained);
    let counts = metrics.snapshot();
    let uploaded = uploaded as u64;
    assert_eq!((counts.labeled, counts.acked, counts.failed_total(), counts.reloads), (uploaded, uploaded, 0, 1));
    assert!(counts.reloads_refused.is_empty(), "{counts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_bundles_are_refused_and_the_old_model_goes_on() {
    let (mut world, worker, old) = rolling().await;
    let other = Files::other();
    let wrong = other.clone().with_own_logits(1.0);
    let mut changed = other.clone();
    let mut weights = changed.files["model.safetensors"].to_vec();
    weights[5_000_000] ^= 1;
    changed.files.insert("model.safetensors".to_owned(), weights.into());
    let mut huge = other.clone();
    huge.manifest["files"]["model.safetensors"]["size"] = json!(8u64 << 30);
    let mut incomplete = other.clone();
    incomplete.files.remove("labels.txt");
    let misfit = other.clone().replace("model.safetensors", other.files["golden/logits.safetensors"].clone());

    let mut refused = 0;
    for (place, files, reason) in [
        ("models/wrong", &wrong, Reason::WrongGolden),
        ("models/changed", &changed, Reason::BundleInvalid),
        ("models/huge", &huge, Reason::DoesNotFit),
        ("models/incomplete", &incomplete, Reason::BundleUnreadable),
        ("models/misfit", &misfit, Reason::BundleInvalid),
    ] {
        if reason == Reason::DoesNotFit && available_gib() >= 40 {
            // This machine has room for five times the largest bundle that there can be.
            continue;
        }
        let snapshot = worker.metrics.snapshot();
        let (before, runs) =
            (snapshot.reloads_refused.get(reason.as_str()).copied().unwrap_or(0), snapshot.canary.runs);
        roll(&world, place, files);
        refused += 1;
        let counts =
            worker.counted(|counts| counts.reloads_refused.get(reason.as_str()).copied().unwrap_or(0) > before).await;
        assert_eq!(counts.reloads_refused.values().sum::<u64>(), refused, "{place}: {counts:?}");
        if matches!(place, "models/wrong" | "models/misfit") {
            // It was on the device: the old model's golden images run again.
            worker.counted(|counts| counts.canary.runs > runs).await;
        }
        assert_eq!(model_in_use(&mut world, place).await, old, "{place}");
    }
    // A bundle that is not the one that was meant.
    store(&world, "models/other", &other);
    point(&world, "models/other", &wrong.digest());
    worker.counted(|counts| counts.reloads_refused["bundle_invalid"] == 3).await;
    assert_eq!(model_in_use(&mut world, "meant.jpg").await, old);
    // What was missing comes later: nothing else changes.
    point(&world, "models/incomplete", &incomplete.digest());
    worker.counted(|counts| counts.reloads_refused["bundle_unreadable"] == 2).await;
    store(&world, "models/incomplete", &other);
    worker.counted(|counts| counts.reloads == 1).await;
    assert_eq!(model_in_use(&mut world, "last.jpg").await, other.digest());
    worker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pointer_that_cannot_be_followed_changes_nothing() {
    let (mut world, worker, old) = rolling().await;
    let faults = world.services().faults().clone();
    let other = Files::named("next");
    store(&world, "models/next", &other);

    for nonsense in ["", "{}", "next", r#"{"model": "gs://photos/models/next", "digest": "sha256:0"}"#] {
        let before = worker.metrics.snapshot().reloads_refused.get("pointer_invalid").copied().unwrap_or(0);
        point_at(&world, nonsense);
        worker.counted(|counts| counts.reloads_refused.get("pointer_invalid") > Some(&before)).await;
    }
    point_at(&world, "x".repeat(1 << 20));
    worker.counted(|counts| counts.reloads_refused["pointer_invalid"] == 5).await;
    assert_eq!(model_in_use(&mut world, "nonsense.jpg").await, old);

    world.services().delete_object("photos", POINTER).unwrap();
    worker.counted(|counts| counts.reloads_refused.get("pointer_unreadable") == Some(&1)).await;
    assert_eq!(model_in_use(&mut world, "deleted.jpg").await, old);

    faults.add(Rule::new(Call::Read, Fault::Error(503)).matching(POINTER).always()).unwrap();
    point(&world, "models/next", &other.digest());
    let reads = faults.count(Call::Read);
    within(faults.wait_for(Call::Read, reads + 2)).await;
    assert_eq!(model_in_use(&mut world, "busy.jpg").await, old);
    faults.clear();
    let counts = worker.counted(|counts| counts.reloads == 1).await;
    assert_eq!(counts.reloads_refused["pointer_unreadable"], 1, "told once: {counts:?}");
    assert_eq!(model_in_use(&mut world, "next.jpg").await, other.digest());
    worker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pointer_decides_the_model_at_the_start() {
    let mut world = World::local().await;
    for (text, told) in [(None, "does not exist"), (Some("{"), "is no pointer")] {
        if let Some(text) = text {
            point_at(&world, text);
        }
        let error = world.worker(&FAST).ended().await.unwrap_err();
        let AppError::Load(LoadError::Pointer(refusal)) = &error else { panic!("{error}") };
        assert!(refusal.to_string().contains(told), "{refusal}");
    }
    let digest = roll(&world, "models/next", &Files::named("next"));
    // Errors that pass are waited out.
    let busy = Rule::new(Call::Read, Fault::Error(503)).matching(POINTER).times(2);
    world.services().faults().add(busy).unwrap();
    let worker = world.worker(&FAST);
    assert_eq!(model_in_use(&mut world, "cat.jpg").await, digest);
    worker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_of_two_quick_changes_counts() {
    let (mut world, worker, old) = rolling().await;
    roll(&world, "models/two", &Files::named("two"));
    let last = roll(&world, "models/three", &Files::named("three"));
    let mut digests = Vec::new();
    while digests.last() != Some(&last) {
        digests.push(model_in_use(&mut world, &format!("{}.jpg", digests.len())).await);
        assert!(digests.len() < 10_000, "it never came");
    }
    assert!(digests.is_sorted_by_key(|digest| *digest != old), "{digests:?}");
    // And back again, which is a change like any other.
    point(&world, "models/one", &old);
    let before = worker.metrics.snapshot().reloads;
    worker.counted(|counts| counts.reloads == before + 1).await;
    assert_eq!(model_in_use(&mut world, "back.jpg").await, old);
    worker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pointer_to_the_model_that_runs_loads_nothing() {
    let (mut world, worker, old) = rolling().await;
    let faults = world.services().faults().clone();
    // The same model at another place, which is never looked at: it does not exist.
    point(&world, "models/elsewhere", &old);
    let reads = faults.count(Call::Read);
    within(faults.wait_for(Call::Read, reads + 3)).await;
    let counts = worker.metrics.snapshot();
    assert_eq!((counts.reloads, counts.reloads_refused.len()), (0, 0), "{counts:?}");
    assert_eq!(model_in_use(&mut world, "cat.jpg").await, old);
    worker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_in_the_middle_of_a_reload_finishes_what_is_held() {
    let (mut world, worker, old) = rolling().await;
    let faults = world.services().faults().clone();
    let other = Files::named("next");
    store(&world, "models/next", &other);
    faults.add(Rule::new(Call::Read, Fault::StallBody(1_000)).matching("next/model.safetensors").always()).unwrap();
    let reads = faults.count(Call::Read);
    point(&world, "models/next", &other.digest());
    // The pointer, `model.json` twice, and every other file; no look at the pointer while a model is loaded.
    within(faults.wait_for(Call::Read, reads + 7)).await;
    world.upload("cat.jpg", CAT).await;
    world.upload("dog.jpg", CAT).await;
    assert_eq!(world.next().await.result.model.digest, old);
    let metrics = worker.metrics.clone();
    let stopped = tokio::time::timeout(Duration::from_secs(20), worker.stop()).await.expect("the reload held it up");
    assert_eq!(stopped.unwrap(), Ended::Drained);
    let counts = metrics.snapshot();
    assert_eq!(counts.reloads, 0);
    assert_eq!(world.services().counts(&world.uploads).unwrap().outstanding, 0);
    assert_eq!(world.services().counts(&world.uploads).unwrap().acked, counts.labeled);
}
