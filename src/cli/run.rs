//! `stoker run`: the worker.

use std::sync::Arc;

use clap::Args;

use stoker::app;
use stoker::config::RunArgs;
use stoker::metrics::Metrics;
use stoker::pipeline::Ended;

use super::{Exit, runtime};

/// Work through a subscription until told to stop
#[derive(Args, Debug)]
pub(crate) struct Run {
    #[command(flatten)]
    settings: RunArgs,
}

impl Run {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let config = self.settings.check()?;
        runtime::block_on(|stop| async move {
            Ok(match app::run(&config, Arc::new(Metrics::default()), stop).await? {
                Ended::Drained => Exit::Done,
                Ended::Returned => Exit::Returned,
            })
        })
    }
}
