//! `stoker bundle`: from a checkpoint to a worker's labels, through the program itself.

use std::path::Path;
use std::process::{Output, Stdio};

use serde_json::Value;
use tokio::process::Command;

use super::{Bucket, Scratch};
use crate::models::fixture;
use crate::world::within;

const LITE0: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/models/efficientnet-lite0");
const PHOTOS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/photos");

async fn stoker(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stoker"));
    command.args(words).env_clear().stdin(Stdio::null()).kill_on_drop(true);
    within(command.output()).await.unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The arguments that make the built-in model anew, but for those in `other`.
async fn make(out: &Path, other: &[&str]) -> Output {
    let (weights, labels) = (format!("{LITE0}/model.safetensors"), format!("{LITE0}/labels.txt"));
    let (cat, coffee) = (format!("{PHOTOS}/chelsea.jpg"), format!("{PHOTOS}/coffee.jpg"));
    let mut words = vec!["bundle", "--out", out.to_str().unwrap(), "--architecture", "efficientnet-lite0"];
    words.extend(["--preprocess", "tensorflow-lite", &cat, &coffee]);
    for (flag, value) in [("--weights", &weights), ("--labels", &labels)] {
        if !other.contains(&flag) {
            words.extend([flag, value]);
        }
    }
    words.extend(other);
    stoker(&words).await
}

#[tokio::test]
async fn a_bundle_is_made_checked_and_served_from_a_bucket() {
    let scratch = Scratch::new();
    let out = scratch.path().join("cats");
    let output = make(&out, &["--embedding", "normalized"]).await;
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{shown}{}", text(&output.stderr));
    assert!(shown.contains("golden/chelsea.png\n") && shown.contains("tiger cat"), "{shown}");
    assert!(shown.contains("espresso") && shown.contains("Not compared with the training code"), "{shown}");

    let manifest: Value = serde_json::from_slice(&std::fs::read(out.join("model.json")).unwrap()).unwrap();
    assert_eq!((&manifest["name"], &manifest["classes"]), (&"cats".into(), &1000.into()));
    assert_eq!(manifest["preprocess"]["crop_fraction"], 0.875);
    assert_eq!(manifest["preprocess"]["mean"], serde_json::json!([127.0, 127.0, 127.0]));

    let checked = stoker(&["bundle", "--check", out.to_str().unwrap()]).await;
    assert_eq!(checked.status.code(), Some(0), "{}", text(&checked.stderr));
    assert!(text(&checked.stdout).contains("2 golden images on CPU"), "{}", text(&checked.stdout));

    let bucket = Bucket::new().await;
    for entry in ["model.json", "model.safetensors", "labels.txt", "golden/logits.safetensors"] {
        bucket.put(&format!("cats/{entry}"), std::fs::read(out.join(entry)).unwrap());
    }
    for entry in ["golden/chelsea.png", "golden/coffee.png"] {
        bucket.put(&format!("cats/{entry}"), std::fs::read(out.join(entry)).unwrap());
    }
    let storage = bucket.services.storage_endpoint();
    let cache = scratch.path().join("cache");
    let photo = format!("{PHOTOS}/chelsea.jpg");
    let place = "gs://models/lite0/cats";
    let words = ["label", "--json", "--storage-endpoint", &storage, "--model-cache", cache.to_str().unwrap()];
    let labeled = stoker(&[&words[..], &["--model", place, &photo]].concat()).await;
    assert_eq!(labeled.status.code(), Some(0), "{}", text(&labeled.stderr));
    let line: Value = serde_json::from_slice(&labeled.stdout).unwrap();
    assert_eq!(line["labels"][0]["name"], "tiger cat");
    let length: f64 = line["embedding"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap().powi(2)).sum();
    assert!((length - 1.0).abs() < 1e-5, "{length}");
    assert_eq!(std::fs::read_dir(&cache).unwrap().count(), 5);
    let checked = stoker(&["bundle", "--storage-endpoint", &storage, "--check", place]).await;
    assert_eq!(checked.status.code(), Some(0), "{}", text(&checked.stderr));
}

#[tokio::test]
async fn a_directory_in_use_is_replaced_only_by_force() {
    let scratch = Scratch::new();
    let out = scratch.path();
    std::fs::create_dir(out.join("golden")).unwrap();
    std::fs::write(out.join("golden/old.png"), "old").unwrap();
    let output = make(out, &[]).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("--force"), "{}", text(&output.stderr));
    assert!(!out.join("model.json").exists());
    let output = make(out, &["--force", "--half"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(!out.join("golden/old.png").exists(), "a file that model.json does not name");
}

#[tokio::test]
async fn reference_logits_become_the_golden_ones_unless_they_differ() {
    let scratch = Scratch::new();
    let out = scratch.path().join("model");
    assert_eq!(make(&out, &[]).await.status.code(), Some(0));
    let reference = scratch.path().join("reference.safetensors");
    let logits = std::fs::read(out.join("golden/logits.safetensors")).unwrap();
    let mut close = logits.clone();
    let last = close.len() - 4;
    let value = f32::from_le_bytes(*close[last..].first_chunk().unwrap());
    close[last..].copy_from_slice(&(value + 1e-4).to_le_bytes());
    std::fs::write(&reference, &close).unwrap();
    let output = make(&out, &["--force", "--reference", reference.to_str().unwrap()]).await;
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("The reference logits differ by"), "{}", text(&output.stdout));
    assert!(std::fs::read(out.join("golden/logits.safetensors")).unwrap() == close);

    let half = make(&out, &["--force", "--half", "--reference", reference.to_str().unwrap()]).await;
    assert_eq!(half.status.code(), Some(0), "{}", text(&half.stderr));
    // Not bit for bit: the formulation of each convolution is chosen by measurement, in each run anew.
    let golden = std::fs::read(out.join("golden/logits.safetensors")).unwrap();
    let own = f32::from_le_bytes(*golden[last..].first_chunk().unwrap());
    assert!((own - value).abs() < 5e-5, "rounded weights have logits of their own: {own}, {value} before");

    let mut far = logits;
    far[last..].copy_from_slice(&(value + 1.0).to_le_bytes());
    std::fs::write(&reference, &far).unwrap();
    let output = make(&out, &["--force", "--reference", reference.to_str().unwrap()]).await;
    assert_eq!(output.status.code(), Some(4));
    let told = text(&output.stderr);
    assert!(told.contains("golden/coffee.png: logit 999") && told.contains("in the reference"), "{told}");
    let checked = stoker(&["bundle", "--check", out.to_str().unwrap()]).await;
    assert_eq!(checked.status.code(), Some(0), "a failed attempt leaves the bundle as it was");
}

#[tokio::test]
async fn what_cannot_become_a_bundle_is_told() {
    let scratch = Scratch::new();
    let module = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/checkpoints/module.pt");
    let plain = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/checkpoints/plain.pt");
    let labels = scratch.path().join("labels.txt");
    std::fs::write(&labels, "cat\ndog\n").unwrap();
    let out = scratch.path().join("model");
    for (other, code, expected) in [
        (&["--weights", module][..], 4, "module.pt: the weights cannot be used: "),
        (&["--weights", module], 4, "save the state dict instead"),
        (&["--weights", plain], 4, "does not take its tensors ("),
        (&["--weights", plain], 4, "is missing"),
        (&["--weights", "/nonexistent"], 1, "cannot read /nonexistent"),
        (&["--labels", labels.to_str().unwrap()], 4, "2 classes, as many as there are labels"),
        (&["--labels", labels.to_str().unwrap()], 4, "has the shape [1000, 1280], the network needs [2, 1280]"),
        (&["--resize", "short-side:100"], 2, "`preprocess.resize.short_side` is 100"),
        (&["--resize", "middle"], 2, "--resize takes short-side:256"),
        (&["--mean", "124,116,104"], 2, "values between 0 and 1"),
        (&["--filter", "nearest"], 2, "invalid value 'nearest' for '--filter"),
        (&["--activation", "argmax"], 2, "invalid value 'argmax' for '--activation"),
        (&["--variant", r#"{"depths": "x"}"#], 2, "`variant.depths`: invalid type: string"),
    ] {
        let output = make(&out, other).await;
        assert_eq!(output.status.code(), Some(code), "{other:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(expected), "{other:?}: {}", text(&output.stderr));
        assert!(!out.exists(), "{other:?}");
    }
    let output = stoker(&["bundle", "--out", out.to_str().unwrap()]).await;
    assert_eq!(output.status.code(), Some(2));
    for flag in ["--weights", "--labels", "--architecture", "--preprocess"] {
        assert!(text(&output.stderr).contains(flag), "{flag} is not in\n{}", text(&output.stderr));
    }
}

#[tokio::test]
async fn a_bundle_that_computes_something_else_fails_its_check() {
    let scratch = Scratch::new();
    let out = scratch.path().join("model");
    assert_eq!(make(&out, &[]).await.status.code(), Some(0));
    std::fs::write(out.join("labels.txt"), fixture("models/efficientnet-lite0/labels.txt").to_ascii_uppercase())
        .unwrap();
    let checked = stoker(&["bundle", "--check", out.to_str().unwrap()]).await;
    assert_eq!(checked.status.code(), Some(4));
    assert!(text(&checked.stderr).contains("labels.txt: SHA-256 is"), "{}", text(&checked.stderr));
}

#[test]
fn docs_models_shows_a_model_json_that_is_read() {
    let docs = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/models.md")).unwrap();
    let block = docs.split("```json\n").nth(1).unwrap().split("```").next().unwrap();
    stoker::model::Manifest::parse(block.as_bytes()).unwrap();
    let fields: Value = serde_json::from_str(block).unwrap();
    for field in fields.as_object().unwrap().keys().map(String::as_str).chain(["variant"]) {
        assert!(docs.contains(&format!("| `{field}")), "{field} is not described");
    }
}
