//! `stoker bundle`: makes a model's bundle, or checks one.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::Args;

use stoker::app::{self, Loaded};
use stoker::config::{BundleArgs, LabelConfig};
use stoker::download::ModelSource;
use stoker::event::printable;
use stoker::make::{Made, Recipe, Selection};
use stoker::model::{Bundle as ModelBundle, labels};

use super::output;
use super::source::{self, Listing, Reader, Source, Unread};
use super::{Exit, runtime, usage_error};
use fields::FieldArgs;

mod fields;

/// Largest checkpoint that is read, in bytes.
const MAX_CHECKPOINT: u64 = 16 << 30;
/// Largest file of labels or reference logits that is read, in bytes.
const MAX_SMALL: u64 = 256 << 20;
/// Labels shown for each sample.
const SHOWN: usize = 5;

/// Make a model bundle from a checkpoint, labels and sample images, or check one
#[derive(Args, Debug)]
pub(crate) struct Bundle {
    /// Sample images, which become the golden ones: files, folders and objects as gs://BUCKET/NAME; one to three do
    #[arg(value_name = "FILE|DIR|gs://…", conflicts_with = "check", required_unless_present = "check")]
    samples: Vec<String>,
    /// Check the bundle there instead: every file, and the golden images on --device
    #[arg(long, value_name = "DIR|gs://…")]
    check: Option<ModelSource>,
    /// Directory that becomes the bundle
    #[arg(long, value_name = "DIR", conflicts_with = "check", required_unless_present = "check")]
    out: Option<PathBuf>,
    /// Write into a directory that is not empty
    #[arg(long)]
    force: bool,
    /// Trained weights: a safetensors file, or what torch.save(model.state_dict(), …) wrote
    #[arg(long, value_name = "FILE", conflicts_with = "check", required_unless_present = "check")]
    weights: Option<PathBuf>,
    /// Key of the state dict in a checkpoint with other things [default: state_dict, model_state_dict, model]
    #[arg(long, value_name = "KEY")]
    entry: Option<String>,
    /// Take only tensors whose name begins with this, without it [default: remove module., model. and their like]
    #[arg(long, value_name = "TEXT")]
    prefix: Option<String>,
    /// Round large tensors to half precision, which halves the file
    #[arg(long)]
    half: bool,
    /// Class names: one a line, a JSON list, or JSON with id2label
    #[arg(long, value_name = "FILE", conflicts_with = "check", required_unless_present = "check")]
    labels: Option<PathBuf>,
    /// The training code's logits for golden/*.png, as .npy or as tensor "logits" of a .safetensors: refuse to differ
    #[arg(long, value_name = "FILE")]
    reference: Option<PathBuf>,
    #[command(flatten)]
    fields: FieldArgs,
    #[command(flatten)]
    settings: BundleArgs,
}

impl Bundle {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let source = self.check.clone().unwrap_or(ModelSource::Builtin);
        let config = self.settings.check(source)?;
        if self.check.is_some() {
            return runtime::block_on(|_| async move { check(&config).await });
        }
        runtime::block_on(|_| async move { self.make(&config).await })
    }

    async fn make(self, config: &LabelConfig) -> anyhow::Result<Exit> {
        let needed = |flag: &str| format!("{flag} is missing: see stoker bundle --help");
        let out = self.out.clone().with_context(|| needed("--out"))?;
        let weights = self.weights.clone().with_context(|| needed("--weights"))?;
        let labels = self.labels.clone().with_context(|| needed("--labels"))?;
        check_target(&out, self.force)?;
        let fields = match self.fields.json(&out) {
            Ok(fields) => fields,
            Err(error) => {
                usage_error(&format!("{error:#}"));
                return Ok(Exit::Usage);
            }
        };
        let recipe = Recipe {
            fields,
            checkpoint: read(&weights, MAX_CHECKPOINT)?,
            selection: Selection { entry: self.entry.clone(), prefix: self.prefix.clone(), half: self.half },
            labels: read(&labels, MAX_SMALL)?,
            samples: samples(&self.samples, config).await?,
            reference: self.reference.as_deref().map(|file| read(file, MAX_SMALL)).transpose()?,
            limits: config.limits,
        };
        let made = tokio::task::spawn_blocking(move || recipe.make()).await?;
        let made = made.with_context(|| format!("no bundle can be made of {}", weights.display()))?;
        write(&out, &made)?;
        show(&made.bundle)?;
        let digest = made.bundle.digest();
        output::line(format!("{}: {} bytes, {digest}", out.display(), size(&made)))?;
        match made.reference_error {
            Some(error) => output::line(format!("The reference logits differ by {error:.1e} of the largest one."))?,
            None => output::line(
                "Not compared with the training code: compute logits for golden/*.png there and give them with --reference.",
            )?,
        }
        Ok(Exit::Done)
    }
}

/// Loads the bundle as `stoker run` would and tells how it did.
async fn check(config: &LabelConfig) -> anyhow::Result<Exit> {
    let Loaded { bundle, classifier, golden, .. } = app::load(&config.model, &config.services, &config.fetch).await?;
    let manifest = bundle.manifest();
    output::line(format!("{}, {} classes, {}", printable(&manifest.name), manifest.classes, bundle.digest()))?;
    output::line(format!(
        "{} golden images on {}: off by at most {:.1e} of the largest logit, {:.0e} is allowed.",
        golden.images,
        classifier.device(),
        golden.max_error,
        manifest.golden.tolerance,
    ))?;
    Ok(Exit::Done)
}

/// Refuses to write over anything, unless told to.
fn check_target(out: &Path, force: bool) -> anyhow::Result<()> {
    let used = match fs::read_dir(out) {
        Ok(mut entries) => entries.next().is_some(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
        Err(error) => return Err(error).with_context(|| format!("cannot write into {}", out.display())),
    };
    ensure!(force || !used, "{} is not empty: give another directory, or --force to replace its bundle", out.display());
    Ok(())
}

fn read(path: &Path, limit: u64) -> anyhow::Result<Vec<u8>> {
    let bytes = fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?.len();
    ensure!(bytes <= limit, "{} has {bytes} bytes, over the limit of {limit}", path.display());
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

async fn samples(named: &[String], config: &LabelConfig) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let Listing { found, left_out } = Listing::of(named)?;
    left_out.iter().for_each(|problem| source::warn(problem));
    let reader = Reader::new(&found, config).await?;
    let mut samples = Vec::new();
    for source in &found {
        let bytes = match reader.read(source).await {
            Ok(bytes) => bytes,
            Err(Unread::Failed(failure)) => bail!("{source}: {}", failure.message),
            Err(Unread::Unreadable(error)) => return Err(error),
        };
        let name = match source {
            Source::File(path) => path.file_name().map(|name| name.to_string_lossy().into_owned()),
            Source::Object(object) => object.name.rsplit('/').next().map(str::to_owned),
        };
        samples.push((name.unwrap_or_default(), bytes.to_vec()));
    }
    Ok(samples)
}

/// Writes the files, `model.json` last: without it a directory is no bundle.
fn write(out: &Path, made: &Made) -> anyhow::Result<()> {
    let manifest = out.join("model.json");
    let cannot = |path: &Path| format!("cannot write {}", path.display());
    let golden = out.join("golden");
    for stale in [fs::remove_file(&manifest), fs::remove_dir_all(&golden)] {
        if let Err(error) = stale
            && error.kind() != std::io::ErrorKind::NotFound
        {
            return Err(error).with_context(|| cannot(&manifest));
        }
    }
    fs::create_dir_all(&golden).with_context(|| cannot(&golden))?;
    for (path, bytes) in &made.files {
        let path = out.join(path);
        fs::write(&path, bytes).with_context(|| cannot(&path))?;
    }
    fs::write(&manifest, &made.manifest).with_context(|| cannot(&manifest))
}

/// Shows what the model sees in its samples, so that a person can tell whether it works.
fn show(bundle: &ModelBundle) -> anyhow::Result<()> {
    let manifest = bundle.manifest();
    for golden in bundle.golden() {
        output::line(&golden.name)?;
        for label in labels::top(&golden.logits, bundle.labels(), manifest.activation, SHOWN, 0.0)? {
            output::line(format!("  {:5.1} %  {}", label.score * 100.0, printable(&label.name)))?;
        }
    }
    Ok(())
}

fn size(made: &Made) -> usize {
    made.files.values().map(bytes::Bytes::len).sum::<usize>() + made.manifest.len()
}
