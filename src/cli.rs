//! The commands, one file each, and the exit code that each kind of end gives.

use std::io;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use stoker::app::AppError;
use stoker::config::ConfigError;
use stoker::event::printable;
use stoker::make::MakeError;
use stoker::pipeline::Fatal;
use stoker::telemetry::LogFormat;

mod bundle;
#[cfg(feature = "local")]
mod demo;
mod explain;
mod label;
mod output;
mod plan;
mod run;
mod runtime;
mod source;
mod table;

/// Labels uploaded images: events from Pub/Sub, objects from Cloud Storage, a Burn vision model, results to Pub/Sub.
#[derive(Debug, Parser)]
#[command(version, about, max_term_width = 110)]
pub(crate) struct Cli {
    /// Log format
    #[arg(long, env = "STOKER_LOG_FORMAT", value_enum, default_value = "auto", global = true, value_name = "FORMAT")]
    pub(crate) log_format: LogFormat,
    /// Log level, or a list of target=level; default info for run, warn for the others
    #[arg(long, env = "STOKER_LOG", global = true, value_name = "FILTER")]
    log: Option<String>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    #[cfg(feature = "local")]
    Demo(Box<demo::Demo>),
    Run(Box<run::Run>),
    Label(Box<label::Label>),
    Plan(Box<plan::Plan>),
    Bundle(Box<bundle::Bundle>),
    Explain(explain::Explain),
}

impl Cli {
    /// Commands for people print their own output; the worker's output is its log.
    pub(crate) fn log_filter(&self) -> &str {
        match (&self.log, &self.command) {
            (Some(filter), _) => filter,
            (None, Command::Run(_)) => "info",
            (None, _) => "warn",
        }
    }
}

/// How the process ends. The numbers are documented in the README and never change meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// All done; for `run`: stopped as told, with everything finished.
    Done = 0,
    /// Something failed that is none of the below; for `label` and `demo`: an image has no labels.
    Failed = 1,
    /// Wrong arguments or settings.
    Usage = 2,
    /// No usable credentials, or a client could not be built.
    Connect = 3,
    /// The model could not be loaded, or gave wrong numbers on this device.
    Model = 4,
    /// The worker gave up while running; what it held is back with Pub/Sub.
    Fatal = 5,
    /// Stopped as told, but the grace ran out; what was left is back with Pub/Sub.
    Returned = 6,
    /// A second signal ended it at once.
    Aborted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Prints an error and what caused it, and gives its exit code.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
        return Exit::Done.into();
    }
    let text = format!("{error:#}");
    // Settings' problems come one a line, and hold nothing foreign.
    eprintln!("error: {}", if error.is::<ConfigError>() { text } else { printable(&text) });
    exit_of(error).into()
}

/// Prints a mistake in the arguments that clap cannot know.
pub(crate) fn usage_error(message: &str) -> ExitCode {
    eprintln!("error: {message}");
    Exit::Usage.into()
}

fn exit_of(error: &anyhow::Error) -> Exit {
    if error.is::<ConfigError>() {
        return Exit::Usage;
    }
    if let Some(error) = error.downcast_ref::<MakeError>() {
        return match error {
            MakeError::Manifest(_) => Exit::Usage,
            MakeError::Sample { .. } | MakeError::Encode(..) => Exit::Failed,
            _ => Exit::Model,
        };
    }
    match error.downcast_ref::<AppError>() {
        Some(AppError::Connect(_)) => Exit::Connect,
        // Wrong numbers are the same matter at the start and later.
        Some(AppError::Load(_) | AppError::Fatal(Fatal::Canary(_))) => Exit::Model,
        // The limits are settings.
        Some(AppError::Planning(error)) if error.is_of_settings() => Exit::Usage,
        Some(AppError::Planning(_)) => Exit::Model,
        Some(AppError::Fatal(_)) => Exit::Fatal,
        Some(_) | None => Exit::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stoker::model::golden::GoldenError;

    #[test]
    fn wrong_numbers_have_one_exit_code_at_the_start_and_later() {
        let wrong = || GoldenError::Shape { expected: 1000, found: 0 };
        for error in [AppError::Load(wrong().into()), AppError::Fatal(wrong().into())] {
            assert_eq!(exit_of(&error.into()), Exit::Model);
        }
        assert_eq!(exit_of(&AppError::Fatal(Fatal::EngineDied).into()), Exit::Fatal);
    }
}
