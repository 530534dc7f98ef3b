//! Standard output. A reader that went away (`stoker label … | head`) ends the command quietly.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

/// Prints one line.
pub(super) fn line(text: impl Display) -> io::Result<()> {
    match writeln!(io::stdout().lock(), "{text}") {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        printed => printed,
    }
}
