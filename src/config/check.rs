//! Arguments → settings: every value read, every rule between settings in one place.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::thread::available_parallelism;
use std::time::Duration;

use bytesize::ByteSize;
use humantime::format_duration;

use super::args::{
    BundleArgs, DeviceArgs, FetchArgs, FilterArgs, ImageArgs, LabelArgs, ModelArgs, PlanArgs, RunArgs, ServiceArgs,
    VramArgs,
};
use super::problems::Problems;
use super::{
    ConfigError, FetchConfig, HostConfig, LabelConfig, ModelConfig, PipelineConfig, PlanConfig, PlanSource,
    RefreshConfig, RunConfig, ServiceConfig, VramConfig,
};
use super::{cache, proxy};
use crate::download::ModelSource;
use crate::event::{EventType, Filters, ObjectId};
use crate::image::Limits;
use crate::model::{Device, GpuSettings};
use crate::vram::{Threads, UNMEASURED_BATCH};

impl RunArgs {
    /// Reads every argument and checks them against each other.
    ///
    /// # Errors
    /// Lists every problem, each naming its flag.
    pub fn check(&self) -> Result<RunConfig, ConfigError> {
        let mut problems = Problems::default();
        let config = RunConfig {
            services: self.services.read(&mut problems),
            subscription: self.resource(&mut problems, "--subscription", &self.subscription, "subscriptions"),
            results_topic: self.resource(&mut problems, "--results-topic", &self.results_topic, "topics"),
            filters: self.filters.read(&mut problems),
            model: self.model.read(&mut problems),
            vram: self.vram.read(&mut problems),
            canary_interval: problems.duration_or_never("--canary-interval", &self.canary_interval),
            refresh: self.refresh(&mut problems),
            pipeline: self.pipeline(&mut problems),
            limits: self.image.read(&mut problems),
            instance: first_set([&self.instance, &self.hostname]).map_or_else(random_name, str::to_owned),
        };
        cross_check(&config.pipeline, &mut problems);
        problems.finish(config)
    }

    fn resource(&self, problems: &mut Problems, flag: &str, name: &Option<String>, kind: &str) -> String {
        let example = format!("projects/PROJECT/{kind}/ID");
        let Some(name) = first_set([name]) else {
            problems.add(format!("{flag} is missing: give {example}, or an ID and --project"));
            return example;
        };
        if let [first, project, middle, id] = name.split('/').collect::<Vec<_>>()[..] {
            problems.ensure(first == "projects" && middle == kind && !project.is_empty() && !id.is_empty(), || {
                format!("{flag} takes {example} or an ID, not {name:?}")
            });
            return name.to_owned();
        }
        problems.ensure(!name.contains('/'), || format!("{flag} takes {example} or an ID, not {name:?}"));
        match first_set([&self.project, &self.google_cloud_project]) {
            Some(project) => {
                problems.ensure(!project.contains(['/', ' ']), || format!("--project takes an ID, not {project:?}"));
                format!("projects/{project}/{kind}/{name}")
            }
            None => {
                problems.add(format!("{flag} {name:?} is an ID: give --project as well, or {example}"));
                example
            }
        }
    }

    fn refresh(&self, problems: &mut Problems) -> Option<RefreshConfig> {
        let shortest = Duration::from_millis(100);
        let interval = problems.duration("--model-refresh-interval", &self.model_refresh_interval);
        problems.relate(&["--model-refresh-interval"], interval >= shortest, || {
            format!("--model-refresh-interval takes 100ms or more, not {}", format_duration(interval))
        });
        let text = first_set([&self.model_refresh])?;
        let parts = text.strip_prefix("gs://").and_then(|rest| rest.split_once('/'));
        problems.ensure(self.model.is_default(), || {
            "--model and --model-refresh both say which model runs: leave one out".to_owned()
        });
        let Some((bucket, name)) = parts.filter(|(bucket, name)| !bucket.is_empty() && !name.is_empty()) else {
            problems.add(format!("--model-refresh takes gs://BUCKET/NAME, not {text:?}"));
            return None;
        };
        let pointer = ObjectId { bucket: bucket.to_owned(), name: name.to_owned(), generation: None };
        Some(RefreshConfig { pointer, interval })
    }

    fn pipeline(&self, problems: &mut Problems) -> PipelineConfig {
        PipelineConfig {
            max_outstanding: self.vram.max_outstanding(problems),
            lease_extension: problems.duration("--lease-extension", &self.lease_extension),
            max_lease: problems.duration("--max-lease", &self.max_lease),
            stream_silence: problems.duration_or_never("--stream-silence", &self.stream_silence).unwrap_or_default(),
            repeat_window: problems.duration_or_never("--repeat-window", &self.repeat_window).unwrap_or_default(),
            fetch: self.fetch.read(problems),
            decode_threads: self.vram.threads(problems),
            max_batch: self.model.max_batch(problems),
            publish_timeout: problems.duration("--publish-timeout", &self.publish_timeout),
            grace: problems.duration("--grace", &self.grace),
        }
    }
}

impl VramArgs {
    fn read(&self, problems: &mut Problems) -> VramConfig {
        let fraction = problems.number("--vram-fraction", &self.vram_fraction, 0.0..=1.0);
        problems.relate(&["--vram-fraction"], fraction > 0.0, || "--vram-fraction 0 leaves nothing to use".to_owned());
        VramConfig {
            plan: match self.plan.trim() {
                "measure" => PlanSource::Measure,
                "off" => PlanSource::Off,
                "" => {
                    problems.add("--plan takes measure, off or a file");
                    PlanSource::Off
                }
                file => PlanSource::File(file.into()),
            },
            fraction,
            limit: first_set([&self.vram_limit]).map(|text| problems.bytes("--vram-limit", text)),
        }
    }

    fn max_outstanding(&self, problems: &mut Problems) -> Option<usize> {
        problems.number_or_auto("--max-outstanding", &self.max_outstanding, 1..=10_000)
    }

    fn threads(&self, problems: &mut Problems) -> Threads {
        match problems.number("--decode-threads", &self.decode_threads, 0..=1024) {
            0 => Threads::UpTo(available_parallelism().map_or(1, usize::from)),
            threads => Threads::Fixed(threads),
        }
    }
}

impl PlanArgs {
    /// Reads the arguments.
    ///
    /// # Errors
    /// Lists every problem, each naming its flag.
    pub fn check(&self) -> Result<PlanConfig, ConfigError> {
        let mut problems = Problems::default();
        let config = PlanConfig {
            services: self.services.read(&mut problems),
            model: self.model.read(&mut problems),
            vram: self.vram.read(&mut problems),
            host: HostConfig {
                fetch: self.fetch.read(&mut problems),
                limits: self.image.read(&mut problems),
                decode_threads: self.vram.threads(&mut problems),
                max_outstanding: self.vram.max_outstanding(&mut problems),
                max_batch: self.model.max_batch(&mut problems),
            },
        };
        problems.finish(config)
    }
}

impl FilterArgs {
    /// Reads the arguments.
    ///
    /// # Errors
    /// Lists every problem, each naming its flag.
    pub fn check(&self) -> Result<Filters, ConfigError> {
        let mut problems = Problems::default();
        let filters = self.read(&mut problems);
        problems.finish(filters)
    }

    fn read(&self, problems: &mut Problems) -> Filters {
        let event_types = Problems::list(&self.event_types)
            .iter()
            .filter_map(|text| match text.parse() {
                Ok(kind @ (EventType::Finalize | EventType::MetadataUpdate)) => Some(kind),
                _ => {
                    problems.add(format!("--event-types takes finalize and metadata_update, not {text:?}"));
                    None
                }
            })
            .collect::<Vec<_>>();
        problems.ensure(!self.event_types.trim().is_empty(), || "--event-types is empty: no event would count".into());
        Filters {
            event_types,
            name_prefixes: Problems::list(&self.name_prefixes),
            name_suffixes: Problems::list(&self.name_suffixes),
            content_types: Problems::list(&self.content_types),
        }
    }
}

/// The first that is set to more than blanks: an empty variable counts as not set.
fn first_set<const N: usize>(values: [&Option<String>; N]) -> Option<&str> {
    values.into_iter().flatten().map(|value| value.trim()).find(|value| !value.is_empty())
}

/// A name for a worker that nobody named. The standard library's hash keys are random in each process.
fn random_name() -> String {
    format!("stoker-{:016x}", RandomState::new().build_hasher().finish())
}

/// The rules that tie settings to each other.
fn cross_check(it: &PipelineConfig, problems: &mut Problems) {
    let PipelineConfig { max_batch, max_outstanding, .. } = *it;
    if let (Some(max_batch), Some(max_outstanding)) = (max_batch, max_outstanding) {
        problems.relate(&["--max-batch", "--max-outstanding"], max_batch <= max_outstanding, || {
            format!(
                "--max-batch {max_batch} is over --max-outstanding {max_outstanding}: such a batch could never fill"
            )
        });
    }
    let (shortest, longest) = (Duration::from_secs(10), Duration::from_secs(600));
    problems.relate(&["--lease-extension"], (shortest..=longest).contains(&it.lease_extension), || {
        format!("--lease-extension takes 10s to 10m, not {}", format_duration(it.lease_extension))
    });
    problems.relate(&["--lease-extension", "--max-lease"], it.lease_extension <= it.max_lease, || {
        let (ahead, lease) = (format_duration(it.lease_extension), format_duration(it.max_lease));
        format!("--lease-extension ({ahead}) is over --max-lease ({lease}): the last extension would outlive it")
    });
    for (flag, time) in
        [("--fetch-timeout", it.fetch.timeout), ("--publish-timeout", it.publish_timeout), ("--grace", it.grace)]
    {
        problems.relate(&[flag, "--max-lease"], time < it.max_lease, || {
            let (time, lease) = (format_duration(time), format_duration(it.max_lease));
            format!("{flag} ({time}) must be under --max-lease ({lease}): the message would go to another worker")
        });
    }
}

impl ServiceArgs {
    /// Reads the arguments.
    ///
    /// # Errors
    /// Lists every problem, each naming its flag.
    pub fn check(&self) -> Result<ServiceConfig, ConfigError> {
        let mut problems = Problems::default();
        let config = self.read(&mut problems);
        problems.finish(config)
    }

    fn read(&self, problems: &mut Problems) -> ServiceConfig {
        ServiceConfig {
            pubsub_endpoint: endpoint(
                problems,
                ("--pubsub-endpoint", first_set([&self.pubsub_endpoint])),
                ("PUBSUB_EMULATOR_HOST", first_set([&self.pubsub_emulator_host])),
            ),
            storage_endpoint: endpoint(
                problems,
                ("--storage-endpoint", first_set([&self.storage_endpoint])),
                ("STORAGE_EMULATOR_HOST", first_set([&self.storage_emulator_host])),
            ),
        }
    }
}

/// The endpoint as an URL. Emulator variables come as `HOST:PORT` or as an URL; the flag wins over them.
fn endpoint(
    problems: &mut Problems,
    (flag, given): (&str, Option<&str>),
    (variable, emulator): (&str, Option<&str>),
) -> Option<String> {
    let (name, text) = match (given, emulator) {
        (Some(text), _) => (flag, text.to_owned()),
        (None, Some(text)) if text.contains("://") => (variable, text.to_owned()),
        (None, Some(text)) => (variable, format!("http://{text}")),
        (None, None) => return None,
    };
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    problems.ensure(rest.is_some_and(|host| !host.trim_end_matches('/').is_empty()), || {
        format!("{name} takes an URL such as http://localhost:8085, not {text:?}")
    });
    if let Some(variable) = proxy::in_the_way_of(&text) {
        problems.add(format!(
            "{variable} is set and would take the requests to {text} elsewhere: set NO_PROXY=localhost,127.0.0.1"
        ));
    }
    Some(text.trim_end_matches('/').to_owned())
}

impl ModelArgs {
    /// Whether nobody chose a model.
    fn is_default(&self) -> bool {
        self.model.trim() == "builtin"
    }

    fn max_batch(&self, problems: &mut Problems) -> Option<usize> {
        problems.number_or_auto("--max-batch", &self.max_batch, 1..=1024)
    }

    fn read(&self, problems: &mut Problems) -> ModelConfig {
        let (device, gpu) = self.device.read(problems);
        let source = self.model.trim().parse().unwrap_or_else(|error| {
            problems.add(format!("--model: {error}"));
            ModelSource::Builtin
        });
        ModelConfig {
            source,
            cache: cache::directory(&self.model_cache, "models"),
            cache_bytes: problems.bytes("--model-cache-bytes", &self.model_cache_bytes),
            device,
            gpu,
            top_k: problems.number("--top-k", &self.top_k, 1..=100),
            min_score: problems.number("--min-score", &self.min_score, 0.0..=1.0),
        }
    }
}

impl DeviceArgs {
    fn read(&self, problems: &mut Problems) -> (Device, GpuSettings) {
        let device = self.device.parse().unwrap_or_else(|error| {
            problems.add(format!("--device: {error}"));
            Device::Cpu
        });
        let fusion = self.kernel_fusion.trim().parse().unwrap_or_else(|_| {
            problems.add(format!("--kernel-fusion takes true or false, not {:?}", self.kernel_fusion));
            true
        });
        (device, GpuSettings { kernel_cache: cache::directory(&self.kernel_cache, "kernels"), fusion })
    }
}

impl FetchArgs {
    fn read(&self, problems: &mut Problems) -> FetchConfig {
        let config = FetchConfig {
            concurrency: problems.number("--fetch-concurrency", &self.fetch_concurrency, 1..=1024),
            timeout: problems.duration("--fetch-timeout", &self.fetch_timeout),
            max_object_bytes: problems.bytes("--max-object-bytes", &self.max_object_bytes),
            budget_bytes: problems.bytes("--fetch-budget", &self.fetch_budget),
            quota_project: first_set([&self.quota_project]).map(str::to_owned),
        };
        let FetchConfig { max_object_bytes, budget_bytes, .. } = config;
        problems.relate(&["--max-object-bytes", "--fetch-budget"], max_object_bytes <= budget_bytes, || {
            format!(
                "--max-object-bytes ({}) is over --fetch-budget ({}): such an object could never be read",
                ByteSize(max_object_bytes),
                ByteSize(budget_bytes)
            )
        });
        config
    }
}

impl ImageArgs {
    fn read(&self, problems: &mut Problems) -> Limits {
        let max_side = problems.number("--max-side", &self.max_side, 1..=65_535);
        Limits {
            width: max_side,
            height: max_side,
            pixels: problems.number("--max-pixels", &self.max_pixels, 1..=4_000_000_000),
            decoder_bytes: problems.bytes("--decode-memory", &self.decode_memory),
            frames: problems.number("--max-frames", &self.max_frames, 1..=u32::MAX),
            metadata_chunks: problems.number("--max-metadata-chunks", &self.max_metadata_chunks, 1..=u32::MAX),
            scans: problems.number("--max-scans", &self.max_scans, 1..=u32::MAX),
            time: problems.duration("--decode-timeout", &self.decode_timeout),
            min_rows: problems.number("--truncated-min-rows", &self.truncated_min_rows, 0.0..=100.0) / 100.0,
            jpeg_oversampling: problems.number("--jpeg-oversampling", &self.jpeg_oversampling, 1.0..=1000.0),
        }
    }
}

impl BundleArgs {
    /// Reads the arguments: for the checked bundle at `source`, whose every byte is read anew.
    ///
    /// # Errors
    /// Lists every problem, each naming its flag.
    pub fn check(&self, source: ModelSource) -> Result<LabelConfig, ConfigError> {
        let mut problems = Problems::default();
        let (device, gpu) = self.device.read(&mut problems);
        let config = LabelConfig {
            services: self.services.read(&mut problems),
            model: ModelConfig { source, cache: None, cache_bytes: 0, device, gpu, top_k: 5, min_score: 0.0 },
            fetch: self.fetch.read(&mut problems),
            limits: self.image.read(&mut problems),
            max_batch: 1,
        };
        problems.finish(config)
    }
}

impl LabelArgs {
    /// Reads the arguments.
    ///
    /// # Errors
    /// Lists every problem, each naming its flag.
    pub fn check(&self) -> Result<LabelConfig, ConfigError> {
        let mut problems = Problems::default();
        let config = LabelConfig {
            services: self.services.read(&mut problems),
            model: self.model.read(&mut problems),
            fetch: self.fetch.read(&mut problems),
            limits: self.image.read(&mut problems),
            max_batch: self.model.max_batch(&mut problems).unwrap_or(UNMEASURED_BATCH),
        };
        problems.finish(config)
    }
}
