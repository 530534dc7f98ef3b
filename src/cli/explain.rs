//! `stoker explain`: what an event means to the worker.

use std::io::{Read, stdin};
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;

use stoker::config::FilterArgs;
use stoker::event::{explain, parse_message_file};

use super::{Exit, output};

/// Most bytes that are read: Pub/Sub's largest message, as base64, with room for a list of them.
const MAX_BYTES: u64 = 64 << 20;

/// Show what an event means to the worker, and why
#[derive(Args, Debug)]
pub(crate) struct Explain {
    /// File with a message: as gcloud prints it, a push envelope, {"attributes", "data"}, or the bare payload; - is standard input
    file: PathBuf,
    /// Print JSON, one line a message
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    filters: FilterArgs,
}

impl Explain {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let filters = self.filters.check()?;
        let shown = self.file.display();
        let bytes = self.read().with_context(|| format!("cannot read {shown}"))?;
        let messages = parse_message_file(&bytes).with_context(|| format!("cannot find a message in {shown}"))?;
        anyhow::ensure!(!messages.is_empty(), "there is no message in {shown}");
        for (index, message) in messages.iter().enumerate() {
            let explanation = explain(&message.attributes, &message.data, &filters);
            if self.json {
                output::line(serde_json::to_string(&explanation)?)?;
                continue;
            }
            if messages.len() > 1 {
                let id = message.id.as_deref().unwrap_or("without an id");
                output::line(format!("{}message {} ({id})", if index > 0 { "\n" } else { "" }, index + 1))?;
            }
            output::line(explanation)?;
        }
        Ok(Exit::Done)
    }

    fn read(&self) -> anyhow::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let source: Box<dyn Read> = match self.file.as_os_str().to_str() {
            Some("-") => Box::new(stdin().lock()),
            _ => Box::new(std::fs::File::open(&self.file)?),
        };
        source.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
        anyhow::ensure!(bytes.len() as u64 <= MAX_BYTES, "it is over {MAX_BYTES} bytes");
        Ok(bytes)
    }
}
