//! The settings: what they accept, what they refuse, and that `docs/settings.md` lists each as the program has it.

use std::fmt::Write as _;

use clap::Args as _;
use stoker::config::{PlanSource, RunArgs};
use stoker::model::Device;
use stoker::vram::Threads;

const NEEDED: [(&str, &str); 2] =
    [("--subscription", "projects/p/subscriptions/s"), ("--results-topic", "projects/p/topics/t")];

fn problems(flags: &[(&str, &str)]) -> Vec<String> {
    let args = RunArgs::from_flags(NEEDED.into_iter().chain(flags.iter().copied())).unwrap();
    args.check().map_or_else(|error| error.problems().to_vec(), |_| Vec::new())
}

#[test]
fn the_defaults_hold_together() {
    let config = RunArgs::from_flags(NEEDED).unwrap().check().unwrap();
    assert_eq!(config.subscription, "projects/p/subscriptions/s");
    assert_eq!(config.model.device, Device::Cpu);
    assert!(config.model.gpu.fusion);
    assert!(matches!(config.pipeline.decode_threads, Threads::UpTo(1..)));
    assert_eq!((config.vram.plan, config.vram.fraction, config.vram.limit), (PlanSource::Measure, 0.9, None));
    assert!(config.services.pubsub_endpoint.is_none());
}

#[test]
fn an_id_takes_the_project() {
    let flags = [("--subscription", "s"), ("--results-topic", "t"), ("--project", "shop")];
    let config = RunArgs::from_flags(flags).unwrap().check().unwrap();
    assert_eq!(config.subscription, "projects/shop/subscriptions/s");
    assert_eq!(config.results_topic, "projects/shop/topics/t");
}

#[test]
fn a_flag_wins_over_an_emulator_variable() {
    let flags = [
        ("--pubsub-endpoint", "https://pubsub.example/"),
        ("--pubsub-emulator-host", "localhost:1"),
        ("--storage-emulator-host", "localhost:2"),
    ];
    let services = RunArgs::from_flags(NEEDED.into_iter().chain(flags)).unwrap().check().unwrap().services;
    assert_eq!(services.pubsub_endpoint.as_deref(), Some("https://pubsub.example"));
    assert_eq!(services.storage_endpoint.as_deref(), Some("http://localhost:2"));
}

#[test]
fn every_bad_value_names_its_flag() {
    for (flag, value) in [
        ("--subscription", "projects/p/topics/s"),
        ("--subscription", "a/b"),
        ("--results-topic", "projects//topics/t"),
        ("--pubsub-endpoint", "localhost:8085"),
        ("--storage-endpoint", "http://"),
        ("--event-types", "delete"),
        ("--event-types", ""),
        ("--model", "gs://"),
        ("--model-cache-bytes", "much"),
        ("--device", "tpu"),
        ("--device", "cuda:first"),
        ("--device", "vulkan:last"),
        ("--device", "cpu:1"),
        ("--kernel-fusion", "maybe"),
        ("--top-k", "0"),
        ("--min-score", "1.5"),
        ("--min-score", "NaN"),
        ("--max-batch", "0"),
        ("--canary-interval", "often"),
        ("--model-refresh", "models/current.json"),
        ("--model-refresh", "gs://models"),
        ("--model-refresh-interval", "10ms"),
        ("--max-outstanding", "0"),
        ("--plan", ""),
        ("--vram-fraction", "0"),
        ("--vram-fraction", "1.1"),
        ("--vram-limit", "some"),
        ("--lease-extension", "1s"),
        ("--max-lease", "0s"),
        ("--fetch-concurrency", "many"),
        ("--fetch-timeout", "30"),
        ("--fetch-budget", "big"),
        ("--max-object-bytes", "0"),
        ("--decode-threads", "1.5"),
        ("--decode-memory", ""),
        ("--max-pixels", "0"),
        ("--max-side", "70000"),
        ("--decode-timeout", "10"),
        ("--max-frames", "0"),
        ("--max-metadata-chunks", "many"),
        ("--max-scans", "0"),
        ("--truncated-min-rows", "101"),
        ("--publish-timeout", "soon"),
        ("--grace", ""),
    ] {
        let found = problems(&[(flag, value)]);
        assert!(found.iter().any(|problem| problem.contains(flag)), "{flag} {value:?}: {found:?}");
    }
}

#[test]
fn settings_that_contradict_each_other_are_refused_with_both_numbers() {
    for (flags, told) in [
        ([("--max-batch", "64"), ("--max-outstanding", "32")], ["64", "32"]),
        ([("--max-object-bytes", "64MiB"), ("--fetch-budget", "32MiB")], ["64", "32"]),
        ([("--fetch-timeout", "9m"), ("--max-lease", "9m")], ["9m", "9m"]),
        ([("--model", "gs://m/v3"), ("--model-refresh", "gs://m/now.json")], ["--model ", "--model-refresh "]),
        ([("--grace", "20m"), ("--max-lease", "10m")], ["20m", "10m"]),
    ] {
        let found = problems(&flags);
        assert!(
            found.iter().any(|problem| told.iter().all(|number| problem.contains(number))),
            "{flags:?}: {found:?} should tell {told:?}"
        );
    }
}

#[test]
fn docs_settings_lists_every_setting_as_the_program_has_it() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/settings.md");
    let written = std::fs::read_to_string(path).unwrap();
    let expected = tables();
    assert!(written.contains(&expected), "docs/settings.md should hold these tables:\n\n{expected}");
}

/// A table for each heading of `stoker run --help`.
fn tables() -> String {
    let command = RunArgs::augment_args(clap::Command::new("run"));
    let mut headings: Vec<&str> = Vec::new();
    for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
        let heading = argument.get_help_heading().expect("every setting has a heading");
        if !headings.contains(&heading) {
            headings.push(heading);
        }
    }
    let mut tables = String::new();
    for heading in headings {
        write!(tables, "## {heading}\n\n| flag | variable | default | |\n|---|---|---|---|\n").unwrap();
        for argument in command.get_arguments() {
            if argument.get_help_heading() != Some(heading) || argument.is_hide_set() {
                continue;
            }
            let flag = argument.get_long().unwrap();
            let variable = argument.get_env().unwrap().to_string_lossy();
            let default = argument.get_default_values().iter().map(|value| value.to_string_lossy());
            let default = default.collect::<String>();
            let default = if default.is_empty() { String::new() } else { format!("`{default}`") };
            writeln!(tables, "| `--{flag}` | `{variable}` | {default} | {} |", argument.get_help().unwrap()).unwrap();
        }
        tables.push('\n');
    }
    tables.trim_end().to_owned()
}
