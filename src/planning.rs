//! The plan at the start: read from its file or measured, and what follows for the worker.

use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use bytesize::ByteSize;

use crate::app::Loaded;
use crate::config::{HostConfig, PlanSource, VramConfig};
use crate::image::Pixels;
use crate::model::{Bundle, Device, Formulations, GpuSettings};
use crate::vram::{
    Asked, Budget, DeviceMemory, HostMemory, HostTooSmall, HostWork, Key, MAX_PLAN_BYTES, MeasureError, MemoryError,
    Plan, PlanError, Planner, Refused, Sizing, Wanted, measure, memory_of,
};

/// Batches on the device at a time. One runs; the next is gathered meanwhile.
const IN_FLIGHT: usize = 1;

/// Largest batch that is tried where nobody says otherwise, in images.
const MAX_BATCH: usize = 1024;

/// Room for a batch that is kept when decode threads are counted, where both are in the host's memory: the least that a
/// batch takes, and what was not measured, in bytes.
const BATCH_MARGIN: u64 = 64 << 20;

/// There is no plan for this worker.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanningError {
    /// The file is of no use here.
    #[error("--plan {}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// Why.
        source: PlanError,
    },
    /// Not even a single image fits.
    #[error("the limits leave no room for a batch")]
    Refused(#[from] Refused),
    /// The host's memory does not do.
    #[error("the limits do not go together")]
    Host(#[from] HostTooSmall),
    /// Nothing could be measured.
    #[error("no plan can be measured")]
    Measure(#[from] MeasureError),
}

impl PlanningError {
    /// Whether other settings would do; else it is the device.
    pub fn is_of_settings(&self) -> bool {
        !matches!(self, Self::Measure(MeasureError::Device(_)))
    }
}

/// What is known before the model is loaded.
pub(crate) struct Start {
    memory: Result<Arc<dyn DeviceMemory>, MemoryError>,
    /// Whether the model runs in the host's memory.
    on_host: bool,
    /// The plan file and its path.
    file: Option<(PathBuf, Plan)>,
}

impl Start {
    /// Reads the plan file, if there is one.
    pub(crate) fn new(vram: &VramConfig, device: Device) -> Result<Self, PlanningError> {
        let file = match &vram.plan {
            PlanSource::File(path) => {
                let read = read(path).map_err(|source| PlanningError::File { path: path.clone(), source })?;
                Some((path.clone(), read))
            }
            PlanSource::Measure | PlanSource::Off => None,
        };
        Ok(Self {
            memory: memory_of(device, vram.limit),
            on_host: matches!(device, Device::Cpu | Device::VulkanCpu),
            file,
        })
    }

    /// What the plan knows of convolutions.
    pub(crate) fn formulations(&self) -> Formulations {
        self.file.as_ref().map(|(_, plan)| plan.measured.formulations.clone()).unwrap_or_default()
    }

    /// The sizes of a worker. A device whose memory nobody knows gets those of one without a plan.
    pub(crate) fn size(
        self,
        model: &mut Loaded,
        vram: &VramConfig,
        host: &HostConfig,
        gpu: &GpuSettings,
    ) -> Result<Sizing, PlanningError> {
        let unknown = self.memory.as_ref().err();
        if let (Some(error), PlanSource::Measure) = (unknown, &vram.plan) {
            tracing::warn!(%error, "no plan");
        }
        if unknown.is_some() || vram.plan == PlanSource::Off {
            let (threads, _) = threads(host, 0)?;
            return Ok(Sizing::unmeasured(host.max_batch, host.max_outstanding, threads));
        }
        let (threads, set_aside) = threads(host, if self.on_host { BATCH_MARGIN } else { 0 })?;
        let set_aside = if self.on_host { set_aside } else { 0 };
        let memory = self.memory.clone().map_err(MeasureError::from)?;
        let plan = self.plan(model, vram, host, gpu)?;
        let budget = Budget { fraction: vram.fraction, limit: vram.limit, set_aside, ..plan.measured.budget };
        let planner = planner(memory.clone(), plan.key.clone(), budget, wanted(host));
        Ok(Sizing { planner: Some(planner), ..Sizing::planned(&plan, memory, budget, threads) })
    }

    /// The plan.
    pub(crate) fn plan(
        self,
        model: &mut Loaded,
        vram: &VramConfig,
        host: &HostConfig,
        gpu: &GpuSettings,
    ) -> Result<Plan, PlanningError> {
        let started = Instant::now();
        let memory = self.memory.map_err(MeasureError::from)?;
        let (_, set_aside) = threads(host, if self.on_host { BATCH_MARGIN } else { 0 })?;
        let set_aside = if self.on_host { set_aside } else { 0 };
        let key = Key {
            device: model.classifier.identity(),
            model: model.bundle.digest().to_owned(),
            fusion: gpu.fusion,
            stoker: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let wanted = wanted(host);
        let whose = memory.limit();
        let (plan, source) = match self.file {
            Some((path, file)) => {
                file.check(&key).map_err(|source| PlanningError::File { path: path.clone(), source })?;
                // What this machine has, not what the one had that was measured.
                let now = memory.read().map_err(MeasureError::from)?;
                let budget = Budget::new(now, vram.fraction, vram.limit, set_aside);
                let measured = crate::vram::Measured { budget, ..file.measured };
                (Plan::new(key, measured, wanted, whose)?, path.display().to_string())
            }
            None => {
                let images = images(&model.bundle);
                let asked =
                    Asked { fraction: vram.fraction, limit: vram.limit, set_aside, max_batch: wanted.max_batch };
                let formulations = model.formulations.clone();
                let measured = measure(&mut *model.classifier, &images, &*memory, asked, formulations)?;
                (Plan::new(key, measured, wanted, whose)?, "measured".to_owned())
            }
        };
        let decision = &plan.decision;
        tracing::info!(
            source,
            batch = decision.batch,
            outstanding = decision.outstanding,
            images_per_second = decision.images_per_second,
            model = %ByteSize(decision.fixed_bytes),
            largest_batch = %ByteSize(decision.batch_bytes),
            budget = %ByteSize(plan.measured.budget.bytes()),
            reason = plan.reason(),
            ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
            "plan"
        );
        Ok(plan)
    }
}

fn wanted(host: &HostConfig) -> Wanted {
    let max_batch = host.max_batch.unwrap_or(MAX_BATCH);
    Wanted { max_batch, in_flight: IN_FLIGHT, outstanding: host.max_outstanding }
}

/// What batches are measured with.
fn images(bundle: &Bundle) -> Vec<&Pixels> {
    bundle.golden().iter().map(|golden| &golden.pixels).collect()
}

/// What measures the models that come later: each on the same device, within the same settings.
fn planner(memory: Arc<dyn DeviceMemory>, key: Key, budget: Budget, wanted: Wanted) -> Planner {
    Arc::new(move |classifier, bundle| {
        let Budget { fraction, limit, set_aside, .. } = budget;
        let asked = Asked { fraction, limit, set_aside, max_batch: wanted.max_batch };
        let measured = measure(classifier, &images(bundle), &*memory, asked, Formulations::default())?;
        let key = Key { model: bundle.digest().to_owned(), ..key.clone() };
        let plan = Plan::new(key, measured, wanted, memory.limit())?;
        tracing::info!(batch = plan.decision.batch, reason = plan.reason(), "plan for the model that comes");
        Ok((plan.decision.fixed_bytes, plan.ladder().collect()))
    })
}

/// Decode threads that the host's memory has room for, and what they and reads may take, in bytes; `beside` is what
/// something else takes that is not there yet.
fn threads(host: &HostConfig, beside: u64) -> Result<(usize, u64), HostTooSmall> {
    let work =
        HostWork { fetch: host.fetch.budget_bytes, decode: host.limits.decoder_bytes, threads: host.decode_threads };
    let memory = HostMemory::default();
    // On a system that does not tell, nobody is refused.
    let threads = match memory.read() {
        Ok(now) => work.fit(now.available(), memory.limit(), now.process.saturating_add(beside))?,
        Err(_) => work.fit(u64::MAX, "", 0)?,
    };
    Ok((threads, work.bytes(threads)))
}

fn read(path: &std::path::Path) -> Result<Plan, PlanError> {
    let mut json = Vec::new();
    File::open(path)?.take(MAX_PLAN_BYTES + 1).read_to_end(&mut json)?;
    if json.len() as u64 > MAX_PLAN_BYTES {
        return Err(PlanError::Malformed(format!("it has over {}", ByteSize(MAX_PLAN_BYTES))));
    }
    Plan::parse(&json)
}
