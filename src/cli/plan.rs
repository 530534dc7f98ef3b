//! `stoker plan`: measures what a device carries with a model, and says what a worker makes of it.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use bytesize::ByteSize;
use clap::Args;
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{CellAlignment, Table};

use stoker::app;
use stoker::config::PlanArgs;
use stoker::event::printable;
use stoker::vram::Plan as Measured;

use super::{Exit, output, runtime};

/// Characters of a bar.
const BAR: usize = 24;

/// Measure which batches this device carries with a model, and print the plan
///
/// The model runs at batches of 1, 2, 4 … images until the next one would not fit or adds nothing. A worker does the same at
/// its start; with --write here and --plan FILE there it need not. See docs/vram.md.
#[derive(Args, Debug)]
pub(crate) struct Plan {
    /// Print the plan as JSON
    #[arg(long)]
    json: bool,
    /// Write the plan to a file, for stoker run --plan FILE on machines like this one
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    #[command(flatten)]
    settings: PlanArgs,
}

impl Plan {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let config = self.settings.check()?;
        runtime::block_on(|stop| async move {
            let plan = tokio::select! {
                plan = app::plan(&config) => plan?,
                () = stop.cancelled() => return Ok(Exit::Aborted),
            };
            if let Some(path) = &self.write {
                let json = serde_json::to_vec_pretty(&plan)?;
                fs::write(path, json).with_context(|| format!("cannot write {}", path.display()))?;
            }
            if self.json {
                output::line(serde_json::to_string_pretty(&plan)?)?;
            } else {
                print(&plan)?;
            }
            Ok(Exit::Done)
        })
    }
}

fn print(plan: &Measured) -> anyhow::Result<()> {
    let Measured { key, measured, decision, .. } = plan;
    output::line(format!("{} with model {}", printable(&key.device), key.model))?;
    output::line(steps(plan))?;
    let budget = measured.budget;
    let size = |bytes: u64| ByteSize(bytes).to_string();
    output::line(format!("Decision: {}.", plan.reason()))?;
    let mut limits = format!(
        "{} of {} available, --vram-fraction {}",
        size(budget.bytes()),
        size(budget.available),
        budget.fraction
    );
    if let Some(limit) = budget.limit {
        limits += &format!(", --vram-limit {}", ByteSize(limit));
    }
    if budget.set_aside > 0 {
        limits += &format!(", {} set aside for reading and decoding", ByteSize(budget.set_aside));
    }
    let mut table = Table::new();
    table.load_style(UTF8_HORIZONTAL_ONLY);
    let image = size(decision.image_bytes);
    for (what, value) in [
        ("batch", format!("size {}, {} in flight", decision.batch, decision.in_flight)),
        ("messages leased", decision.outstanding.to_string()),
        ("device memory", limits),
        ("model", size(decision.fixed_bytes)),
        ("largest batch", format!("{}, {image} an image", size(decision.batch_bytes))),
    ] {
        table.add_row(vec![what.to_owned(), value]);
    }
    output::line(table)?;
    Ok(())
}

/// The ladder, with throughput and memory drawn.
fn steps(plan: &Measured) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_HORIZONTAL_ONLY);
    table.set_header(vec!["batch", "ms", "images/s", "", "memory", "", ""]);
    let steps = &plan.measured.steps;
    let fastest = steps.iter().map(|step| step.rate()).fold(0.0, f64::max);
    let most = plan.measured.budget.bytes().min(steps.last().map_or(0, |step| step.bytes.saturating_mul(2)));
    for step in steps {
        #[allow(clippy::cast_precision_loss, reason = "the length of a bar")]
        let memory = step.bytes as f64 / most.max(1) as f64;
        table.add_row(vec![
            step.batch.to_string(),
            format!("{:.1}", step.seconds * 1e3),
            format!("{:.1}", step.rate()),
            bar(step.rate() / fastest),
            ByteSize(step.bytes).to_string(),
            bar(memory),
            if step.batch == plan.decision.batch { "← chosen".to_owned() } else { String::new() },
        ]);
    }
    for column in [0, 1, 2, 4] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// A bar for a share from 0 to 1, exact to an eighth of a character.
fn bar(share: f64) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "clamped")]
    let eighths = (share.clamp(0.0, 1.0) * (BAR * 8) as f64).round() as usize;
    let bar = "█".repeat(eighths / 8) + EIGHTHS[eighths % 8];
    format!("{bar:BAR$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_share() {
        assert_eq!(bar(0.0), " ".repeat(BAR));
        assert_eq!(bar(2.0), "█".repeat(BAR));
        assert_eq!(bar(1.5 / BAR as f64), format!("{:BAR$}", "█▌"));
        assert_eq!(bar(f64::NAN).chars().count(), BAR);
    }
}
