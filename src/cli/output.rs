//! Standard output. A reader that went away (`stoker label … | head`) ends the command quietly: see `report`.

use std::fmt::Display;
use std::io::{self, Write};

use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};

/// Prints one line.
pub(super) fn line(text: impl Display) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{text}")
}

/// A progress bar on standard error, if that is a terminal; it is gone once it is dropped.
pub(super) fn progress(photos: usize) -> ProgressBar {
    let template = "{bar:40} {pos}/{len} photos  {per_sec}  {eta} left";
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(photos as u64).with_style(style).with_finish(ProgressFinish::AndClear)
}
