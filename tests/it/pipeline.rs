//! The worker end to end, against the in-process services.

use std::collections::{BTreeSet, HashMap};
use std::io::Write as _;
use std::time::Duration;

use google_cloud_pubsub::model::DeadLetterPolicy;
use stoker::app::AppError;
use stoker::event::{FailureCode, LabelResult, ObjectId, Status, result_id};
use stoker::local::{Call, Content, Fault, Payload, Rule, SubscriptionSettings};
use stoker::pipeline::{Ended, Fatal};

use crate::scenarios;
use crate::world::{CAT, COFFEE, ROCKET, World, within};

fn code(result: &LabelResult) -> Option<FailureCode> {
    result.error.as_ref().map(|error| error.code)
}

#[tokio::test(flavor = "multi_thread")]
async fn photos_are_labeled_and_their_messages_acknowledged() {
    scenarios::photos_are_labeled(&mut World::local().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_event_shape_leads_to_labels() {
    scenarios::every_event_shape_leads_to_labels(&mut World::local().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_image_fails_alone() {
    scenarios::a_bad_image_fails_alone(&mut World::local().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gone_object_is_a_failed_result() {
    scenarios::a_gone_object_is_a_failed_result(&mut World::local().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_event_is_a_failed_result() {
    scenarios::an_unreadable_event_is_a_failed_result(&mut World::local().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_upload_is_acknowledged_without_a_result() {
    scenarios::what_is_no_upload_is_skipped(&mut World::local().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_are_taken_literally() {
    scenarios::names_are_taken_literally(&mut World::local().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_buckets_own_notifications_lead_to_labels() {
    let mut world = World::local().await;
    world.services().notify(&world.bucket, &world.uploads_topic, Payload::JsonApiV1).unwrap();
    let worker = world.worker(&[]);
    let first = world.put("cat.jpg", CAT).await;
    let result = world.next().await.result;
    let object = result.object.unwrap();
    assert_eq!(object.generation, Some(first));
    assert_eq!(object.size, Some(CAT.len() as u64));
    assert_eq!(object.content_type.as_deref(), Some("image/jpeg"));
    worker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replaced_object_is_labeled_once_at_its_newest_generation() {
    let mut world = World::local().await;
    let old = world.upload("photo.jpg", CAT).await;
    let new = world.upload("photo.jpg", COFFEE).await;
    let worker = world.worker(&[]);
    let mut by_generation = HashMap::new();
    for _ in 0..2 {
        let result = world.next().await.result;
        by_generation.insert(result.object.as_ref().unwrap().generation, result);
    }
    assert_eq!(code(&by_generation[&Some(old)]), Some(FailureCode::ObjectGone));
    assert_eq!(by_generation[&Some(new)].labels[0].name, "espresso");
    worker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn gzip_encoded_objects_are_unzipped_within_the_limit() {
    let mut world = World::local().await;
    let zip = |bytes: &[u8]| {
        let mut zipped = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        zipped.write_all(bytes).unwrap();
        zipped.finish().unwrap()
    };
    let bomb = vec![0; 4 << 20];
    for (name, bytes) in [("cat.jpg", zip(CAT)), ("bomb.jpg", zip(&bomb)), ("not-gzip.jpg", CAT.to_vec())] {
        let content = Content { content_encoding: "gzip".to_owned(), ..Content::new(bytes, "image/jpeg") };
        let generation = world.services().put_object(&world.bucket, name, content).unwrap();
        world.announce(name, generation).await;
    }
    let worker = world.worker(&[("--max-object-bytes", "1MiB")]);
    let results = world.results(3).await;
    assert_eq!(results["cat.jpg"].labels[0].name, "tiger cat");
    assert_eq!(code(&results["bomb.jpg"]), Some(FailureCode::ObjectTooLarge));
    assert_eq!(code(&results["not-gzip.jpg"]), Some(FailureCode::BadContentEncoding));
    worker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ack_waits_until_the_result_is_confirmed() {
    let mut world = World::local().await;
    let faults = world.services().faults().clone();
    faults.add(Rule::new(Call::Publish, Fault::Stall).matching("topics/re-")).unwrap();
    world.upload("cat.jpg", CAT).await;
    let worker = world.worker(&[("--publish-timeout", "2s")]);
    within(faults.wait_for(Call::Publish, 2)).await;
    // The result hangs on its way. Neither an ack nor a result may be there; after the deadline the message goes back.
    let counts = within(world.services().wait_until(&world.uploads, |counts| counts.outstanding == 1)).await.unwrap();
    assert_eq!(counts.acked, 0, "acknowledged before its result was confirmed");
    assert_eq!(world.next().await.result.labels[0].name, "tiger cat");
    within(world.services().wait_idle(&world.uploads)).await.unwrap();
    assert_eq!(worker.metrics.snapshot().retried["publish_timeout"], 1);
    worker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_has_gone_silent_is_replaced() {
    let mut world = World::local().await;
    let faults = world.services().faults().clone();
    // The first stream is open and never brings anything.
    faults.add(Rule::new(Call::Deliver, Fault::Stall).matching("subscriptions/up-")).unwrap();
    world.upload("cat.jpg", CAT).await;
    let worker = world.worker(&[("--stream-silence", "1s")]);
    assert_eq!(world.next().await.result.labels[0].name, "tiger cat");
    assert!(worker.metrics.snapshot().silent_streams >= 1);
    worker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_labeled_a_moment_ago_is_acknowledged_without_new_work() {
    let mut world = World::local().await;
    let worker = world.worker(&[]);
    let generation = world.upload("cat.jpg", CAT).await;
    world.next().await;
    within(world.services().wait_idle(&world.uploads)).await.unwrap();
    let reads = world.services().faults().count(Call::Read);
    world.announce("cat.jpg", generation).await;
    let acked = within(world.services().wait_until(&world.uploads, |counts| counts.acked == 2)).await;
    acked.expect("the repeated event is acknowledged");
    assert_eq!(world.services().faults().count(Call::Read), reads, "and nothing is read for it");
    assert_eq!(worker.metrics.snapshot().skipped["repeated"], 1);
    // Another generation is another picture.
    world.upload("cat.jpg", COFFEE).await;
    assert_eq!(world.next().await.result.labels[0].name, "espresso");
    worker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn storage_errors_that_pass_lose_nothing() {
    let mut world = World::local().await;
    let faults = world.services().faults().clone();
    for (name, fault) in [
        ("busy.jpg", Fault::Error(503)),
        ("throttled.jpg", Fault::Error(429)),
        ("reset.jpg", Fault::Reset),
        ("cut.jpg", Fault::Truncate(10_000)),
        ("corrupt.jpg", Fault::Corrupt),
        ("denied.jpg", Fault::Error(403)),
        ("stalled.jpg", Fault::StallBody(10_000)),
    ] {
        faults.add(Rule::new(Call::Read, fault).matching(name)).unwrap();
        world.upload(name, CAT).await;
    }
    let worker = world.worker(&[("--fetch-timeout", "3s")]);
    for (name, result) in world.results(7).await {
        assert_eq!(result.status, Status::Labeled, "{name}: {:?}", result.error);
    }
    within(world.services().wait_idle(&world.uploads)).await.unwrap();
    let retried = worker.metrics.snapshot().retried;
    assert_eq!(retried.get("fetch_denied"), Some(&1), "{retried:?}");
    assert_eq!(retried.get("fetch_timeout"), Some(&1), "{retried:?}");
    worker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_keeps_failing_is_dead_lettered_and_the_attempt_is_told() {
    const DEAD_TOPIC: &str = "projects/stoker/topics/dead";
    const DEAD: &str = "projects/stoker/subscriptions/dead";
    let policy = DeadLetterPolicy::new().set_dead_letter_topic(DEAD_TOPIC).set_max_delivery_attempts(5);
    let mut world = World::local_with(|uploads| uploads.set_dead_letter_policy(policy)).await;
    world.services().create_topic(DEAD_TOPIC).unwrap();
    world.services().create_subscription(SubscriptionSettings::new(DEAD, DEAD_TOPIC)).unwrap();
    let faults = world.services().faults().clone();
    faults.add(Rule::new(Call::Read, Fault::Error(403)).matching("never.jpg").always()).unwrap();
    faults.add(Rule::new(Call::Read, Fault::Error(403)).matching("third-time.jpg").times(2)).unwrap();
    world.upload("never.jpg", CAT).await;
    world.upload("third-time.jpg", CAT).await;
    let worker = world.worker(&[]);
    let result = world.next().await.result;
    assert_eq!(result.object.unwrap().name, "third-time.jpg");
    assert_eq!(result.event.attempt, Some(3));
    let dead = within(world.services().receive(DEAD, 1)).await.unwrap();
    assert_eq!(dead[0].attributes["objectId"], "never.jpg");
    let metrics = worker.metrics.clone();
    worker.stop().await.unwrap();
    assert_eq!(metrics.snapshot().retried, [("fetch_denied", 7)].into());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_bucket_fails_no_upload() {
    let world = World::local().await;
    let faults = world.services().faults().clone();
    world.publish(HashMap::new(), r#"{"uri": "gs://nowhere/cat.jpg"}"#).await;
    let worker = world.worker(&[]);
    // It comes again instead of ending as object_gone.
    within(faults.wait_for(Call::Read, 2)).await;
    let metrics = worker.metrics.clone();
    worker.stop().await.unwrap();
    let counts = metrics.snapshot();
    assert_eq!((counts.failed_total(), counts.acked), (0, 0));
    assert!(counts.retried["fetch_denied"] >= 1, "{:?}", counts.retried);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_results_topic_that_is_closed_to_the_worker_ends_it() {
    let world = World::local().await;
    let faults = world.services().faults().clone();
    faults.add(Rule::new(Call::Publish, Fault::Error(403)).matching("topics/re-").always()).unwrap();
    world.upload("cat.jpg", CAT).await;
    let error = world.worker(&[]).ended().await.unwrap_err();
    assert!(
        matches!(&error, AppError::Fatal(Fatal::ResultsTopic { topic, .. }) if *topic == world.results_topic),
        "{error}"
    );
    assert_eq!(world.services().counts(&world.uploads).unwrap().acked, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redelivery_joins_the_running_job() {
    let mut world = World::local().await;
    let faults = world.services().faults().clone();
    let generation = world.put("cat.jpg", CAT).await;
    // The read waits, so that every delivery comes while the first one is being worked on.
    faults.add(Rule::new(Call::Read, Fault::Delay(Duration::from_secs(1)))).unwrap();
    for _ in 0..5 {
        world.announce("cat.jpg", generation).await;
    }
    let worker = world.worker(&[]);
    let id = world.next().await.result.id;
    let object = ObjectId { bucket: world.bucket.clone(), name: "cat.jpg".into(), generation: Some(generation) };
    assert_eq!(id, result_id(&object, stoker::model::Bundle::builtin().unwrap().digest()));
    within(world.services().wait_idle(&world.uploads)).await.unwrap();
    let counts = worker.metrics.snapshot();
    assert_eq!((counts.labeled, counts.joined, counts.acked), (1, 4, 5));
    worker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_connections_lose_nothing() {
    let mut world = World::local().await;
    world.services().notify(&world.bucket, &world.uploads_topic, Payload::JsonApiV1).unwrap();
    // What was on its way over a stream that broke comes again when its lease ends: the shortest there is.
    let worker = world.worker(&[("--lease-extension", "10s")]);
    let mut labeled = BTreeSet::new();
    for round in 0..3 {
        for photo in 0..4 {
            let (name, content) = (format!("{round}/{photo}.jpg"), Content::new(ROCKET, "image/jpeg"));
            world.services().put_object(&world.bucket, &name, content).unwrap();
        }
        labeled.insert(world.next().await.result.object.unwrap().name);
        world.services().reset_connections();
    }
    // A result whose confirmation was cut off may come twice: at least one each is the promise.
    while labeled.len() < 12 {
        labeled.insert(world.next().await.result.object.unwrap().name);
    }
    within(world.services().wait_idle(&world.uploads)).await.unwrap();
    worker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn exactly_once_acks_are_confirmed() {
    let mut world = World::local_with(|uploads| uploads.set_enable_exactly_once_delivery(true)).await;
    for name in ["a.jpg", "b.jpg", "c.jpg"] {
        world.upload(name, CAT).await;
    }
    let worker = world.worker(&[]);
    world.results(3).await;
    within(world.services().wait_idle(&world.uploads)).await.unwrap();
    let metrics = worker.metrics.clone();
    assert_eq!(worker.stop().await.unwrap(), Ended::Drained);
    let counts = metrics.snapshot();
    assert_eq!((counts.acked, counts.unconfirmed), (3, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_finishes_what_is_held_and_returns_nothing_unfinished() {
    let mut world = World::local().await;
    for photo in 0..40 {
        let name = format!("{photo}.jpg");
        world.upload(Box::leak(name.into_boxed_str()), CAT).await;
    }
    let worker = world.worker(&[("--max-outstanding", "16"), ("--grace", "30s")]);
    world.next().await;
    assert_eq!(worker.stop().await.unwrap(), Ended::Drained);
    let counts = world.services().counts(&world.uploads).unwrap();
    assert_eq!(counts.outstanding, 0, "a message waits for its lease to end: {counts:?}");
    assert!(counts.acked >= 1 && counts.acked < 40, "{counts:?}");
    // What was acknowledged has its result, and the next worker does the rest.
    let next = world.worker(&[]);
    within(world.services().wait_idle(&world.uploads)).await.unwrap();
    world.results(39).await;
    next.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_starts_nothing_new() {
    let mut world = World::local().await;
    let faults = world.services().faults().clone();
    for photo in 0..30 {
        let name = format!("{photo}.jpg");
        world.upload(Box::leak(name.into_boxed_str()), CAT).await;
    }
    faults.add(Rule::new(Call::Read, Fault::Delay(Duration::from_secs(1))).always()).unwrap();
    let worker = world.worker(&[("--fetch-concurrency", "2"), ("--grace", "60s")]);
    within(faults.wait_for(Call::Read, 2)).await;
    assert_eq!(worker.stop().await.unwrap(), Ended::Drained);
    assert!(faults.count(Call::Read) <= 4, "it went on to read {} objects", faults.count(Call::Read));
    let counts = world.services().counts(&world.uploads).unwrap();
    assert_eq!(counts.outstanding, 0, "{counts:?}");
    assert!(counts.acked >= 2, "what had begun was finished: {counts:?}");
    world.next().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_returns_what_the_grace_does_not_cover() {
    let world = World::local().await;
    let faults = world.services().faults().clone();
    faults.add(Rule::new(Call::Read, Fault::Stall).always()).unwrap();
    world.upload("cat.jpg", CAT).await;
    let worker = world.worker(&[("--grace", "1s")]);
    within(faults.wait_for(Call::Read, 1)).await;
    assert_eq!(worker.stop().await.unwrap(), Ended::Returned);
    let counts = world.services().counts(&world.uploads).unwrap();
    assert_eq!((counts.outstanding, counts.acked), (0, 0), "not returned at once: {counts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_subscription_ends_the_worker_and_says_so() {
    let world = World::local().await;
    world.services().delete_subscription(&world.uploads).unwrap();
    let error = world.worker(&[]).ended().await.unwrap_err();
    assert!(matches!(error, AppError::Fatal(Fatal::Stream { .. })), "{error}");
    assert!(error.to_string().contains(&world.uploads), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_results_topic_ends_the_worker_and_returns_the_message() {
    let world = World::local().await;
    world.upload("cat.jpg", CAT).await;
    let worker = world.worker(&[("--results-topic", "projects/stoker/topics/nowhere")]);
    let error = worker.ended().await.unwrap_err();
    assert!(
        matches!(&error, AppError::Fatal(Fatal::ResultsTopic { topic, .. }) if topic.ends_with("nowhere")),
        "{error}"
    );
    let returned = world.services().wait_until(&world.uploads, |counts| counts.outstanding == 0);
    let counts = tokio::time::timeout(Duration::from_secs(5), returned).await.expect("not returned").unwrap();
    assert_eq!(counts.acked, 0, "{counts:?}");
}
