//! Logs: readable on a terminal, one JSON object a line where Cloud Logging reads them.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{IsTerminal, stderr, stdout};
use std::panic::{self, PanicHookInfo};
use std::time::SystemTime;

use google_cloud_wkt::Timestamp;
use serde::Serialize;
use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For `run` away from a terminal JSON, else text.
    Auto,
    /// Text on standard error.
    Text,
    /// One JSON object a line on standard output, as Cloud Logging reads it.
    Json,
}

/// Installs the process's log output. Later calls change nothing.
///
/// `service` says that nobody reads the output but a log collector, unless standard error is a terminal: it decides
/// what `Auto` is. `filter` is a level (`info`) or a list of `target=level` (`warn,stoker=debug`).
///
/// # Errors
/// `filter` is malformed.
pub fn init(format: LogFormat, service: bool, filter: &str) -> Result<(), tracing_subscriber::filter::ParseError> {
    let targets: Targets = filter.parse()?;
    let registry = tracing_subscriber::registry().with(targets);
    let installed = match format {
        LogFormat::Auto if !service || stderr().is_terminal() => text(registry),
        LogFormat::Auto | LogFormat::Json => registry.with(CloudLogging { out: stdout }).try_init(),
        LogFormat::Text => text(registry),
    };
    // A second call keeps the first one's output.
    if installed.is_ok() {
        panic::set_hook(Box::new(log_panic));
    }
    Ok(())
}

/// A panic as a log line like any other. Those of an image decoder are caught and fail their image alone.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let location = panic.location().map(ToString::to_string);
    let thread = std::thread::current();
    tracing::error!(location, thread = thread.name(), reason = panic.payload_as_str(), "panicked");
}

fn text(
    registry: impl Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a> + Send + Sync,
) -> Result<(), tracing_subscriber::util::TryInitError> {
    let lines =
        tracing_subscriber::fmt::layer().with_writer(stderr).with_ansi(stderr().is_terminal()).with_target(false);
    registry.with(lines).try_init()
}

/// Writes each event as a line that Cloud Logging takes apart: `severity`, `time`, `message`, and the event's fields.
struct CloudLogging<W> {
    out: W,
}

#[derive(Serialize)]
struct Line<'a> {
    severity: &'static str,
    time: String,
    message: String,
    target: &'a str,
    #[serde(flatten)]
    fields: BTreeMap<&'static str, Value>,
}

impl<S: Subscriber, W: for<'a> MakeWriter<'a> + 'static> Layer<S> for CloudLogging<W> {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields(BTreeMap::new());
        event.record(&mut fields);
        let message = match fields.0.remove("message") {
            Some(Value::String(text)) => text,
            Some(other) => other.to_string(),
            // An outcome has no message of its own: its verdict is one.
            None => fields.0.get("verdict").and_then(Value::as_str).unwrap_or_default().to_owned(),
        };
        let line = Line {
            severity: severity(*event.metadata().level()),
            time: Timestamp::try_from(SystemTime::now()).map(String::from).unwrap_or_default(),
            message,
            target: event.metadata().target(),
            fields: fields.0,
        };
        let Ok(mut bytes) = serde_json::to_vec(&line) else { return };
        bytes.push(b'\n');
        // There is nowhere to report that logging failed.
        drop(std::io::Write::write_all(&mut self.out.make_writer(), &bytes));
    }
}

/// Severities of Cloud Logging's `LogSeverity`.
fn severity(level: Level) -> &'static str {
    match level {
        Level::ERROR => "ERROR",
        Level::WARN => "WARNING",
        Level::INFO => "INFO",
        Level::DEBUG | Level::TRACE => "DEBUG",
    }
}

struct Fields(BTreeMap<&'static str, Value>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name(), value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.0.insert(field.name(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name(), value.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn each_line_is_an_object_that_cloud_logging_takes_apart() {
        let buffer = Buffer::default();
        let out = buffer.clone();
        let subscriber = tracing_subscriber::registry().with(CloudLogging { out: move || out.clone() });
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(object = "gs://b/\"x\"\n", attempt = 3, "lost\nand found");
            tracing::info!(verdict = "labeled", attempt = None::<i32>, score = 0.5);
        });
        let text = String::from_utf8(buffer.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0]["severity"], "WARNING");
        assert_eq!(lines[0]["message"], "lost\nand found");
        assert_eq!(lines[0]["object"], "gs://b/\"x\"\n");
        assert_eq!(lines[0]["attempt"], 3);
        assert!(lines[0]["time"].as_str().unwrap().ends_with('Z'));
        assert_eq!(lines[1]["message"], "labeled");
        assert_eq!(lines[1]["score"], 0.5);
        assert_eq!(lines[1].get("attempt"), None);
    }
}
