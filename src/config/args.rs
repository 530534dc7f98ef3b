//! The arguments as people type them. Values stay text, so that `check` can report every mistake at once.

use clap::{Args, Parser};

use crate::event::EventType;

/// Arguments of `stoker run`.
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    #[command(flatten)]
    pub(super) services: ServiceArgs,
    /// Subscription with the upload events: a full name, or an id in --project
    #[arg(long, env = "STOKER_SUBSCRIPTION", value_name = "NAME", help_heading = "Google Cloud")]
    pub(super) subscription: Option<String>,
    /// Topic that takes the results: a full name, or an id in --project
    #[arg(long, env = "STOKER_RESULTS_TOPIC", value_name = "NAME", help_heading = "Google Cloud")]
    pub(super) results_topic: Option<String>,
    /// Project of subscription and topic given by id (else GOOGLE_CLOUD_PROJECT)
    #[arg(long, env = "STOKER_PROJECT", value_name = "ID", help_heading = "Google Cloud")]
    pub(super) project: Option<String>,
    #[arg(long, env = "GOOGLE_CLOUD_PROJECT", hide = true)]
    pub(super) google_cloud_project: Option<String>,

    #[command(flatten)]
    pub(super) filters: FilterArgs,
    #[command(flatten)]
    pub(super) model: ModelArgs,
    /// Pause between runs of the golden images (wrong numbers end the worker); 0: at start and after device errors alone
    #[arg(long, env = "STOKER_CANARY_INTERVAL", default_value = "10m", value_name = "TIME", help_heading = "Model")]
    pub(super) canary_interval: String,
    /// Follow an object that names the model, gs://BUCKET/NAME, in place of --model: see docs/reload.md
    #[arg(long, env = "STOKER_MODEL_REFRESH", value_name = "gs://…", help_heading = "Model")]
    pub(super) model_refresh: Option<String>,
    /// Pause between two looks at that object, 100ms or more
    #[arg(
        long,
        env = "STOKER_MODEL_REFRESH_INTERVAL",
        default_value = "60s",
        value_name = "TIME",
        help_heading = "Model"
    )]
    pub(super) model_refresh_interval: String,
    #[command(flatten)]
    pub(super) fetch: FetchArgs,
    #[command(flatten)]
    pub(super) image: ImageArgs,

    #[command(flatten)]
    pub(super) vram: VramArgs,
    /// How far ahead a lease is extended, 10s to 10m
    #[arg(long, env = "STOKER_LEASE_EXTENSION", default_value = "60s", value_name = "TIME", help_heading = "Pipeline")]
    pub(super) lease_extension: String,
    /// A message held longer than this goes back to Pub/Sub
    #[arg(long, env = "STOKER_MAX_LEASE", default_value = "10m", value_name = "TIME", help_heading = "Pipeline")]
    pub(super) max_lease: String,
    /// Replace a stream on which nothing came for so long though more messages may be leased; 0: never
    #[arg(long, env = "STOKER_STREAM_SILENCE", default_value = "15s", value_name = "TIME", help_heading = "Pipeline")]
    pub(super) stream_silence: String,
    /// Acknowledge events about an object whose result was confirmed within this time, without new work; 0: label again
    #[arg(long, env = "STOKER_REPEAT_WINDOW", default_value = "10m", value_name = "TIME", help_heading = "Pipeline")]
    pub(super) repeat_window: String,
    /// Deadline of one result's publish, retries included
    #[arg(long, env = "STOKER_PUBLISH_TIMEOUT", default_value = "30s", value_name = "TIME", help_heading = "Pipeline")]
    pub(super) publish_timeout: String,
    /// How long a stop may take; Cloud Run kills after 10s
    #[arg(long, env = "STOKER_GRACE", default_value = "8s", value_name = "TIME", help_heading = "Pipeline")]
    pub(super) grace: String,
    /// Name of this worker in its results (else HOSTNAME)
    #[arg(long, env = "STOKER_INSTANCE", value_name = "NAME", help_heading = "Pipeline")]
    pub(super) instance: Option<String>,
    #[arg(long, env = "HOSTNAME", hide = true)]
    pub(super) hostname: Option<String>,
}

/// Which uploads are labelled.
#[derive(Args, Clone, Debug)]
pub struct FilterArgs {
    /// Storage events that are uploads, comma-separated: finalize, metadata_update
    #[arg(long, env = "STOKER_EVENT_TYPES", default_value = "finalize", value_name = "LIST", help_heading = "Filters")]
    pub(super) event_types: String,
    /// Label only objects whose name begins with one of these, comma-separated
    #[arg(long, env = "STOKER_NAME_PREFIXES", default_value = "", value_name = "LIST", help_heading = "Filters")]
    pub(super) name_prefixes: String,
    /// Label only objects whose name ends with one of these, comma-separated
    #[arg(long, env = "STOKER_NAME_SUFFIXES", default_value = "", value_name = "LIST", help_heading = "Filters")]
    pub(super) name_suffixes: String,
    /// Label only objects declared as one of these types, comma-separated; image/* is a family
    #[arg(long, env = "STOKER_CONTENT_TYPES", default_value = "", value_name = "LIST", help_heading = "Filters")]
    pub(super) content_types: String,
}

/// Where Google's services are.
#[derive(Args, Clone, Debug, Default)]
pub struct ServiceArgs {
    /// Pub/Sub endpoint instead of Google's; http:// means an emulator, reached without credentials
    #[arg(long, env = "STOKER_PUBSUB_ENDPOINT", value_name = "URL", help_heading = "Google Cloud")]
    pub(super) pubsub_endpoint: Option<String>,
    #[arg(long, env = "PUBSUB_EMULATOR_HOST", hide = true)]
    pub(super) pubsub_emulator_host: Option<String>,
    /// Cloud Storage endpoint instead of Google's; http:// means an emulator, reached without credentials
    #[arg(long, env = "STOKER_STORAGE_ENDPOINT", value_name = "URL", help_heading = "Google Cloud")]
    pub(super) storage_endpoint: Option<String>,
    #[arg(long, env = "STORAGE_EMULATOR_HOST", hide = true)]
    pub(super) storage_emulator_host: Option<String>,
}

/// Which model runs where.
#[derive(Args, Clone, Debug)]
pub struct ModelArgs {
    /// Model bundle: a directory, gs://BUCKET/PREFIX, or "builtin" for the compiled-in EfficientNet-Lite0
    #[arg(long, env = "STOKER_MODEL", default_value = "builtin", value_name = "DIR|gs://…", help_heading = "Model")]
    pub(super) model: String,
    /// Directory that keeps models from Cloud Storage, or "none"; "auto" is the user's cache directory, and none on Cloud Run
    #[arg(long, env = "STOKER_MODEL_CACHE", default_value = "auto", value_name = "DIR", help_heading = "Model")]
    pub(super) model_cache: String,
    /// Most bytes that it keeps; what was not used for longest goes first
    #[arg(
        long,
        env = "STOKER_MODEL_CACHE_BYTES",
        default_value = "20GiB",
        value_name = "BYTES",
        help_heading = "Model"
    )]
    pub(super) model_cache_bytes: String,
    #[command(flatten)]
    pub(super) device: DeviceArgs,
    /// Labels an image, at most
    #[arg(long, env = "STOKER_TOP_K", default_value = "5", value_name = "N", help_heading = "Model")]
    pub(super) top_k: String,
    /// Leave out labels below this score, 0 to 1
    #[arg(long, env = "STOKER_MIN_SCORE", default_value = "0", value_name = "SCORE", help_heading = "Model")]
    pub(super) min_score: String,
    /// Images in one batch, at most; "auto" is what the plan finds, and 8 without one
    #[arg(long, env = "STOKER_MAX_BATCH", default_value = "auto", value_name = "N", help_heading = "Model")]
    pub(super) max_batch: String,
}

/// How much of the device and of the host a worker takes.
#[derive(Args, Clone, Debug)]
pub struct VramArgs {
    /// The plan of batch sizes: "measure" at the start, "off", or a file that stoker plan --write made (see docs/vram.md)
    #[arg(long, env = "STOKER_PLAN", default_value = "measure", value_name = "FILE", help_heading = "Concurrency")]
    pub(super) plan: String,
    /// Share of the device's free memory that may be used, over 0 and up to 1
    #[arg(
        long,
        env = "STOKER_VRAM_FRACTION",
        default_value = "0.9",
        value_name = "SHARE",
        help_heading = "Concurrency"
    )]
    pub(super) vram_fraction: String,
    /// Most of the device's memory that may be used
    #[arg(long, env = "STOKER_VRAM_LIMIT", value_name = "BYTES", help_heading = "Concurrency")]
    pub(super) vram_limit: Option<String>,
    /// Messages leased at a time; "auto" is what keeps the device fed by the plan, and 128 without one
    #[arg(
        long,
        env = "STOKER_MAX_OUTSTANDING",
        default_value = "auto",
        value_name = "N",
        help_heading = "Concurrency"
    )]
    pub(super) max_outstanding: String,
    /// Threads that decode; 0 is one a core, or fewer where the memory has no room for them
    #[arg(long, env = "STOKER_DECODE_THREADS", default_value = "0", value_name = "N", help_heading = "Concurrency")]
    pub(super) decode_threads: String,
}

/// Arguments of `stoker plan` that are settings.
#[derive(Args, Clone, Debug)]
pub struct PlanArgs {
    #[command(flatten)]
    pub(super) services: ServiceArgs,
    #[command(flatten)]
    pub(super) model: ModelArgs,
    #[command(flatten)]
    pub(super) vram: VramArgs,
    #[command(flatten)]
    pub(super) fetch: FetchArgs,
    #[command(flatten)]
    pub(super) image: ImageArgs,
}

/// What the model runs on.
#[derive(Args, Clone, Debug)]
pub struct DeviceArgs {
    /// Device: cpu, cuda, cuda:INDEX, vulkan, vulkan:INDEX
    #[arg(long, env = "STOKER_DEVICE", default_value = "cpu", value_name = "DEVICE", help_heading = "Model")]
    pub(super) device: String,
    /// Directory that keeps a GPU's compiled and tuned kernels, or "none"; "auto" is as for --model-cache
    #[arg(long, env = "STOKER_KERNEL_CACHE", default_value = "auto", value_name = "DIR", help_heading = "Model")]
    pub(super) kernel_cache: String,
    /// Whether a GPU computes neighbouring operations as one kernel, true or false: faster, unless a driver gets it wrong
    #[arg(long, env = "STOKER_KERNEL_FUSION", default_value = "true", value_name = "BOOL", help_heading = "Model")]
    pub(super) kernel_fusion: String,
}

/// What an image may cost.
#[derive(Args, Clone, Debug)]
pub struct ImageArgs {
    /// Most pixels an image may have
    #[arg(long, env = "STOKER_MAX_PIXELS", default_value = "250000000", value_name = "N", help_heading = "Images")]
    pub(super) max_pixels: String,
    /// Longest side an image may have, in pixels
    #[arg(long, env = "STOKER_MAX_SIDE", default_value = "65535", value_name = "N", help_heading = "Images")]
    pub(super) max_side: String,
    /// Memory one decoder may take
    #[arg(long, env = "STOKER_DECODE_MEMORY", default_value = "512MiB", value_name = "BYTES", help_heading = "Images")]
    pub(super) decode_memory: String,
    /// Longest that decoding an image may take
    #[arg(long, env = "STOKER_DECODE_TIMEOUT", default_value = "10s", value_name = "TIME", help_heading = "Images")]
    pub(super) decode_timeout: String,
    /// Most frames or pages an image may have; the first is labelled
    #[arg(long, env = "STOKER_MAX_FRAMES", default_value = "10000", value_name = "N", help_heading = "Images")]
    pub(super) max_frames: String,
    /// Most chunks, segments or tags of metadata an image may have
    #[arg(
        long,
        env = "STOKER_MAX_METADATA_CHUNKS",
        default_value = "10000",
        value_name = "N",
        help_heading = "Images"
    )]
    pub(super) max_metadata_chunks: String,
    /// Most scans a JPEG may have
    #[arg(long, env = "STOKER_MAX_SCANS", default_value = "100", value_name = "N", help_heading = "Images")]
    pub(super) max_scans: String,
    /// Share of its rows that an image which ends early must have to be labelled, in percent
    #[arg(
        long,
        env = "STOKER_TRUNCATED_MIN_ROWS",
        default_value = "50",
        value_name = "PERCENT",
        help_heading = "Images"
    )]
    pub(super) truncated_min_rows: String,
    /// Decode a JPEG to at least this many times the model's input, 1 to 1000: more is slower and more exact
    #[arg(
        long,
        env = "STOKER_JPEG_OVERSAMPLING",
        default_value = "1.4",
        value_name = "RATIO",
        help_heading = "Images"
    )]
    pub(super) jpeg_oversampling: String,
}

/// How objects are read.
#[derive(Args, Clone, Debug)]
pub struct FetchArgs {
    /// Objects read at a time
    #[arg(long, env = "STOKER_FETCH_CONCURRENCY", default_value = "16", value_name = "N", help_heading = "Reading")]
    pub(super) fetch_concurrency: String,
    /// Deadline of one object's read, retries included
    #[arg(long, env = "STOKER_FETCH_TIMEOUT", default_value = "30s", value_name = "TIME", help_heading = "Reading")]
    pub(super) fetch_timeout: String,
    /// Object bytes held at a time, over all reads
    #[arg(long, env = "STOKER_FETCH_BUDGET", default_value = "256MiB", value_name = "BYTES", help_heading = "Reading")]
    pub(super) fetch_budget: String,
    /// Largest object that is read, stored or unzipped
    #[arg(
        long,
        env = "STOKER_MAX_OBJECT_BYTES",
        default_value = "64MiB",
        value_name = "BYTES",
        help_heading = "Reading"
    )]
    pub(super) max_object_bytes: String,
    /// Project billed for reads from requester-pays buckets
    #[arg(long, env = "STOKER_QUOTA_PROJECT", value_name = "ID", help_heading = "Reading")]
    pub(super) quota_project: Option<String>,
}

/// Arguments of `stoker label` that are settings.
#[derive(Args, Clone, Debug)]
pub struct LabelArgs {
    #[command(flatten)]
    pub(super) services: ServiceArgs,
    #[command(flatten)]
    pub(super) model: ModelArgs,
    #[command(flatten)]
    pub(super) fetch: FetchArgs,
    #[command(flatten)]
    pub(super) image: ImageArgs,
}

/// Arguments of `stoker bundle` that are settings.
#[derive(Args, Clone, Debug)]
pub struct BundleArgs {
    #[command(flatten)]
    pub(super) services: ServiceArgs,
    #[command(flatten)]
    pub(super) fetch: FetchArgs,
    #[command(flatten)]
    pub(super) image: ImageArgs,
    #[command(flatten)]
    pub(super) device: DeviceArgs,
}

/// Clap reads arguments through a parser of its own; this one holds nothing else.
#[derive(Parser)]
#[command(args_override_self = true)]
struct Bare {
    #[command(flatten)]
    run: RunArgs,
}

impl RunArgs {
    /// The arguments as if these flags had been typed, with `STOKER_…` variables and defaults for the rest. Of a flag
    /// given twice the last one counts.
    ///
    /// # Errors
    /// Clap's own, which names the flag.
    pub fn from_flags<'a>(flags: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, clap::Error> {
        let words = flags.into_iter().flat_map(|(flag, value)| [flag, value]);
        Ok(Bare::try_parse_from(std::iter::once("stoker").chain(words))?.run)
    }

    /// The same with model, reads and images from `label`, with filters that pass every upload, and with no pointer.
    #[must_use]
    pub fn with_label(self, label: &LabelArgs) -> Self {
        let LabelArgs { model, fetch, image, .. } = label.clone();
        let none = String::new;
        let filters = FilterArgs {
            event_types: EventType::Finalize.as_str().to_owned(),
            name_prefixes: none(),
            name_suffixes: none(),
            content_types: none(),
        };
        Self { filters, model, model_refresh: None, fetch, image, ..self }
    }
}
