//! Collects what is wrong with the settings, so that one run reports all of it.

use std::fmt;
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

/// Everything that is wrong with the settings; each line names the flag and says what it takes.
#[derive(Debug, PartialEq, Eq)]
pub struct ConfigError(Vec<String>);

impl ConfigError {
    /// One line a problem.
    pub fn problems(&self) -> &[String] {
        &self.0
    }
}

impl Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [one] => write!(f, "{one}"),
            many => {
                write!(f, "{} settings are wrong:", many.len())?;
                many.iter().try_for_each(|problem| write!(f, "\n  - {problem}"))
            }
        }
    }
}

impl std::error::Error for ConfigError {}

/// The problems found so far. A value that cannot be read leaves a stand-in, so that checking goes on.
#[derive(Default)]
pub(super) struct Problems {
    lines: Vec<String>,
    /// Flags whose value is a stand-in.
    unread: Vec<&'static str>,
}

impl Problems {
    pub(super) fn add(&mut self, problem: impl Into<String>) {
        self.lines.push(problem.into());
    }

    fn unread(&mut self, flag: &'static str, problem: String) {
        self.unread.push(flag);
        self.add(problem);
    }

    /// Adds `problem` unless `holds`, or unless one of the flags that it relates could not be read.
    pub(super) fn relate(&mut self, flags: &[&str], holds: bool, problem: impl FnOnce() -> String) {
        if !flags.iter().any(|flag| self.unread.contains(flag)) {
            self.ensure(holds, problem);
        }
    }

    /// Adds `problem` unless `holds`.
    pub(super) fn ensure(&mut self, holds: bool, problem: impl FnOnce() -> String) {
        if !holds {
            self.lines.push(problem());
        }
    }

    /// The value of `flag` if it reads as a `T` within `range`, else `range`'s start.
    pub(super) fn number<T>(&mut self, flag: &'static str, text: &str, range: std::ops::RangeInclusive<T>) -> T
    where
        T: FromStr + PartialOrd + Display + Copy,
    {
        match text.trim().parse() {
            Ok(value) if range.contains(&value) => value,
            _ => {
                let (least, most) = (range.start(), range.end());
                self.unread(flag, format!("{flag} takes a number from {least} to {most}, not {text:?}"));
                *range.start()
            }
        }
    }

    /// The same, with `None` for `auto`.
    pub(super) fn number_or_auto<T>(
        &mut self,
        flag: &'static str,
        text: &str,
        range: std::ops::RangeInclusive<T>,
    ) -> Option<T>
    where
        T: FromStr + PartialOrd + Display + Copy,
    {
        (text.trim() != "auto").then(|| self.number(flag, text, range))
    }

    pub(super) fn bytes(&mut self, flag: &'static str, text: &str) -> u64 {
        match text.trim().parse::<bytesize::ByteSize>() {
            Ok(size) if size.as_u64() > 0 => size.as_u64(),
            _ => {
                self.unread(flag, format!("{flag} takes a size such as 64MiB, not {text:?}"));
                1
            }
        }
    }

    pub(super) fn duration(&mut self, flag: &'static str, text: &str) -> Duration {
        match humantime::parse_duration(text.trim()) {
            Ok(time) if time > Duration::ZERO => time,
            _ => {
                self.unread(flag, format!("{flag} takes a time such as 30s or 5m, not {text:?}"));
                Duration::from_secs(1)
            }
        }
    }

    /// The same, with zero for never.
    pub(super) fn duration_or_never(&mut self, flag: &'static str, text: &str) -> Option<Duration> {
        match text.trim() {
            "0" => None,
            text => Some(self.duration(flag, text)),
        }
    }

    /// The parts of a comma-separated list, trimmed, empty ones left out.
    pub(super) fn list(text: &str) -> Vec<String> {
        text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
    }

    /// `checked` if nothing is wrong.
    pub(super) fn finish<T>(self, checked: T) -> Result<T, ConfigError> {
        if self.lines.is_empty() { Ok(checked) } else { Err(ConfigError(self.lines)) }
    }
}
