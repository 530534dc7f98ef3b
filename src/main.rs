//! Arguments → config → telemetry → command → exit code.

use std::process::ExitCode;

use clap::Parser;

use stoker::telemetry;

mod cli;

use cli::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let service = matches!(cli.command, Command::Run(_));
    if let Err(error) = telemetry::init(cli.log_format, service, cli.log_filter()) {
        return cli::usage_error(&format!("--log takes a level or a list of target=level: {error}"));
    }
    let result = match cli.command {
        #[cfg(feature = "local")]
        Command::Demo(command) => command.run(),
        Command::Run(command) => command.run(),
        Command::Label(command) => command.run(),
        Command::Plan(command) => command.run(),
        Command::Bundle(command) => command.run(),
        Command::Explain(command) => command.run(),
    };
    match result {
        Ok(code) => code.into(),
        Err(error) => cli::report(&error),
    }
}
