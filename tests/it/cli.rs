//! The program itself: commands, output, exit codes, signals.

use std::path::Path;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use stoker::local::{Call, Fault, Rule};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::world::{CAT, World, within};

fn stoker(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stoker"));
    command.args(words).env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.kill_on_drop(true);
    command
}

pub(crate) async fn run(words: &[&str]) -> Output {
    within(stoker(words).output()).await.unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn fixture(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name).display().to_string()
}

/// `stoker run` against `world`, with what else `words` say.
pub(crate) fn worker(world: &World, words: &[&str]) -> Child {
    let mut command = stoker(&["run", "--log-format", "json"]);
    command.args(["--pubsub-endpoint", &world.pubsub, "--storage-endpoint", &world.storage]);
    command.args(["--subscription", &world.uploads, "--results-topic", &world.results_topic]).args(words);
    command.stdout(Stdio::null()).spawn().unwrap()
}

pub(crate) fn signal(pid: &str, signal: &str) {
    assert!(std::process::Command::new("kill").args(["-s", signal, pid]).status().unwrap().success());
}

pub(crate) fn pid(child: &Child) -> String {
    child.id().expect("still running").to_string()
}

#[tokio::test]
async fn demo_labels_the_sample_photos() {
    let output = run(&["demo"]).await;
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{shown}{}", text(&output.stderr));
    for (photo, label) in [("chelsea.jpg", "tiger cat"), ("coffee.jpg", "espresso"), ("rocket.jpg", "missile")] {
        let line = shown.lines().find(|line| line.contains(photo)).unwrap_or_else(|| panic!("no {photo} in\n{shown}"));
        assert!(line.contains(label), "{line}");
    }
    assert!(shown.contains("7 labeled, 0 failed"), "{shown}");
}

#[tokio::test]
async fn demo_takes_a_folder_and_shows_what_failed() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("demo-{}", std::process::id()));
    std::fs::create_dir_all(dir.join("below")).unwrap();
    std::fs::write(dir.join("below/a cat.jpg"), CAT).unwrap();
    std::fs::write(dir.join("notes.txt"), "no image").unwrap();
    let output = run(&["demo", dir.to_str().unwrap()]).await;
    std::fs::remove_dir_all(&dir).unwrap();
    let shown = text(&output.stdout);
    assert!(shown.lines().any(|line| line.contains("below/a cat.jpg") && line.contains("tiger cat")), "{shown}");
    assert!(shown.lines().any(|line| line.contains("notes.txt") && line.contains("not_an_image")), "{shown}");
    assert!(shown.contains("1 labeled, 1 failed"), "{shown}");
    assert_eq!(output.status.code(), Some(1));
}

#[tokio::test]
async fn label_prints_json_lines_in_the_order_given() {
    let (cat, text_file) = (fixture("photos/chelsea.jpg"), fixture("README.md"));
    let output = run(&["label", "--json", "--top-k", "2", &text_file, &cat]).await;
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let lines: Vec<Value> = text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0]["source"], text_file);
    assert_eq!(lines[0]["error"]["code"], "not_an_image");
    assert_eq!(lines[1]["source"], cat);
    assert_eq!(lines[1]["labels"][0]["name"], "tiger cat");
    assert_eq!(lines[1]["labels"].as_array().unwrap().len(), 2);
    assert_eq!(lines[1]["image"]["format"], "jpeg");
}

#[tokio::test]
async fn label_reads_objects() {
    let world = World::local().await;
    world.put("a/cat.jpg", CAT).await;
    let object = format!("gs://{}/a/cat.jpg", world.bucket);
    let output = run(&["label", "--storage-endpoint", &world.storage, &object]).await;
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("tiger cat"));
    let gone = format!("gs://{}/a/dog.jpg", world.bucket);
    let output = run(&["label", "--storage-endpoint", &world.storage, &gone]).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("object_gone"));
}

#[tokio::test]
async fn explain_reads_a_file() {
    let output = run(&["explain", "--json", &fixture("events/audit-log.json")]).await;
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let explanation: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(explanation["verdict"], "label");
    let output = run(&["explain", "--name-prefixes", "elsewhere/", &fixture("events/audit-log.json")]).await;
    assert!(text(&output.stdout).contains("name_filter"), "{}", text(&output.stdout));
}

#[tokio::test]
async fn every_wrong_setting_is_reported_at_once() {
    let output = run(&["run", "--max-batch", "0", "--grace", "soon", "--fetch-budget", "1MiB"]).await;
    assert_eq!(output.status.code(), Some(2));
    let shown = text(&output.stderr);
    for flag in ["--subscription", "--results-topic", "--max-batch", "--grace", "--fetch-budget"] {
        assert!(shown.contains(flag), "{flag} is not in\n{shown}");
    }
}

#[tokio::test]
async fn settings_come_from_the_environment_too() {
    let mut command = stoker(&["run"]);
    command.env("STOKER_SUBSCRIPTION", "uploads").env("STOKER_PROJECT", "p").env("STOKER_MAX_BATCH", "many");
    let output = within(command.output()).await.unwrap();
    assert_eq!(output.status.code(), Some(2));
    let shown = text(&output.stderr);
    assert!(shown.contains("--max-batch") && shown.contains("--results-topic"), "{shown}");
    assert!(!shown.contains("--subscription"), "{shown}");
}

#[tokio::test]
async fn without_credentials_it_says_so_and_ends() {
    let mut command = stoker(&["run", "--project", "p", "--subscription", "s", "--results-topic", "t"]);
    // Nothing answers there: the metadata server of a machine that is not on Google Cloud.
    command.env("GCE_METADATA_HOST", "127.0.0.1:9").env("HOME", "/nonexistent");
    let started = Instant::now();
    let output = within(command.output()).await.unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stderr).contains("gcloud auth application-default login"), "{}", text(&output.stderr));
    assert!(started.elapsed() < Duration::from_secs(60), "it hung");
}

#[tokio::test]
async fn an_emulator_that_does_not_answer_is_named() {
    let mut command = stoker(&["run", "--project", "p", "--subscription", "s", "--results-topic", "t"]);
    command.env("PUBSUB_EMULATOR_HOST", "127.0.0.1:1").env("STORAGE_EMULATOR_HOST", "127.0.0.1:1");
    let output = within(command.output()).await.unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stderr).contains("nothing answers at http://127.0.0.1:1"), "{}", text(&output.stderr));
}

#[tokio::test]
async fn a_proxy_in_the_way_is_named() {
    let mut command = stoker(&["demo"]);
    let output = within(command.env("http_proxy", "http://127.0.0.1:9").output()).await.unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("http_proxy"), "{}", text(&output.stderr));
    let mut command = stoker(&["demo"]);
    command.env("http_proxy", "http://127.0.0.1:9").env("NO_PROXY", "localhost,127.0.0.1");
    assert_eq!(within(command.output()).await.unwrap().status.code(), Some(0));
}

#[tokio::test]
async fn one_bad_entry_of_a_folder_costs_only_itself() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("odd-{}", std::process::id()));
    std::fs::create_dir_all(dir.join("below")).unwrap();
    std::fs::write(dir.join("cat.jpg"), CAT).unwrap();
    std::os::unix::fs::symlink("nowhere", dir.join("dangling.jpg")).unwrap();
    std::os::unix::fs::symlink("..", dir.join("below/up")).unwrap();
    let socket = std::os::unix::net::UnixListener::bind(dir.join("below/socket.jpg")).unwrap();
    for words in [["label", dir.to_str().unwrap()], ["demo", dir.to_str().unwrap()]] {
        let output = run(&words).await;
        let (shown, warned) = (text(&output.stdout), text(&output.stderr));
        assert!(shown.contains("tiger cat"), "{words:?}: {shown}{warned}");
        for entry in ["dangling.jpg", "below/up", "below/socket.jpg"] {
            assert!(warned.contains(entry), "{entry} is not in\n{warned}");
        }
        assert_eq!(output.status.code(), Some(1), "{words:?}");
    }
    drop(socket);
    std::fs::remove_dir_all(&dir).unwrap();
}

#[tokio::test]
async fn label_ends_quietly_when_nobody_reads_on() {
    let cat = fixture("photos/chelsea.jpg");
    let words: Vec<&str> = ["label", "--json", "--max-batch", "1"].into_iter().chain([cat.as_str(); 200]).collect();
    let mut child = stoker(&words).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(within(lines.next_line()).await.unwrap().unwrap().contains("tiger cat"));
    drop(lines);
    let output = within(child.wait_with_output()).await.unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(text(&output.stderr), "");
}

#[tokio::test]
async fn the_emulator_variables_are_honoured() {
    let mut world = World::local().await;
    world.upload("cat.jpg", CAT).await;
    let mut command = stoker(&["run", "--subscription", &world.uploads, "--results-topic", &world.results_topic]);
    command.env("PUBSUB_EMULATOR_HOST", world.pubsub.strip_prefix("http://").unwrap());
    command.env("STORAGE_EMULATOR_HOST", &world.storage);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    assert_eq!(world.next().await.result.labels[0].name, "tiger cat");
    signal(&pid(&child), "TERM");
    assert_eq!(within(child.wait_with_output()).await.unwrap().status.code(), Some(0));
}

#[tokio::test]
async fn sigterm_drains_and_ends_with_zero() {
    let mut world = World::local().await;
    for photo in 0..30 {
        let name = format!("{photo}.jpg");
        world.upload(Box::leak(name.into_boxed_str()), CAT).await;
    }
    let child = worker(&world, &["--max-outstanding", "8", "--grace", "30s"]);
    world.next().await;
    signal(&pid(&child), "TERM");
    let output = within(child.wait_with_output()).await.unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let counts = world.services().counts(&world.uploads).unwrap();
    assert_eq!(counts.outstanding, 0, "a message waits for its lease to end: {counts:?}");
    assert!(counts.acked >= 1 && counts.acked < 30, "{counts:?}");
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once() {
    let world = World::local().await;
    let faults = world.services().faults().clone();
    faults.add(Rule::new(Call::Read, Fault::Stall).always()).unwrap();
    world.upload("cat.jpg", CAT).await;
    let mut child = worker(&world, &["--grace", "100s", "--fetch-timeout", "200s"]);
    let child_id = pid(&child);
    within(faults.wait_for(Call::Read, 1)).await;
    // Signals within a second are one; so it takes a few.
    let mut again = tokio::time::interval(Duration::from_millis(300));
    let status = within(async {
        loop {
            tokio::select! {
                status = child.wait() => return status.unwrap(),
                _ = again.tick() => signal(&child_id, "INT"),
            }
        }
    });
    assert_eq!(status.await.code(), Some(130));
    assert_eq!(world.services().counts(&world.uploads).unwrap().outstanding, 0, "what it held is not back");
}

#[tokio::test]
async fn a_bad_model_is_refused_before_the_first_pull() {
    let world = World::local().await;
    world.upload("cat.jpg", CAT).await;
    let child = worker(&world, &["--model", "/nonexistent"]);
    let output = within(child.wait_with_output()).await.unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", text(&output.stderr));
    assert_eq!(world.services().faults().count(Call::StreamingPull), 1, "only the test itself pulls, its results");
}
