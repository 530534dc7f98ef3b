//! A file's bytes for a decoder: against the clock, with bytes changed or added where that lets a decoder go on.

use std::io::{self, BufRead, ErrorKind, Read, Seek, SeekFrom};

use super::super::limits::Deadline;

/// Most bytes that are handed out between two looks at the clock.
const STEP: usize = 64 << 10;

/// What stands for bytes that did not come: a mid grey where they are samples.
const FILLING: [u8; 4096] = [128; 4096];

/// A reader of a file in memory. Reads fail once the deadline has passed.
pub(super) struct Source<'a> {
    bytes: &'a [u8],
    at: u64,
    /// Bytes that replace the file's, and where.
    patch: (u64, Vec<u8>),
    /// Where the file ends, with filling if that is beyond its bytes.
    end: u64,
    deadline: Deadline,
    unchecked: usize,
}

impl<'a> Source<'a> {
    pub(super) fn new(bytes: &'a [u8], deadline: Deadline) -> Self {
        Source { bytes, at: 0, patch: (0, Vec::new()), end: bytes.len() as u64, deadline, unchecked: 0 }
    }

    /// Shows these bytes in place of the file's own.
    pub(super) fn with_patch(mut self, at: usize, bytes: Vec<u8>) -> Self {
        self.patch = (at as u64, bytes);
        self
    }

    /// Goes on with filling after the file's end, up to this length in bytes.
    pub(super) fn filled_to(mut self, length: u64) -> Self {
        self.end = self.end.max(length);
        self
    }
}

impl BufRead for Source<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.unchecked >= STEP {
            self.unchecked = 0;
            self.deadline.check().map_err(|error| io::Error::new(ErrorKind::TimedOut, error.to_string()))?;
        }
        let (patch_at, patch) = (self.patch.0, &self.patch.1);
        let patch_end = patch_at + patch.len() as u64;
        let most = usize::try_from(self.end.saturating_sub(self.at)).unwrap_or(usize::MAX).min(STEP);
        let segment = if (patch_at..patch_end).contains(&self.at) {
            patch.get(index(self.at - patch_at)..)
        } else {
            let next_patch = if self.at < patch_at { index(patch_at) } else { usize::MAX };
            self.bytes.get(index(self.at)..next_patch.min(self.bytes.len()))
        };
        let segment = segment.filter(|segment| !segment.is_empty()).unwrap_or(&FILLING);
        Ok(&segment[..most.min(segment.len())])
    }

    fn consume(&mut self, amount: usize) {
        self.at += amount as u64;
        self.unchecked += amount;
    }
}

impl Read for Source<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(buffer)?;
        self.consume(read);
        Ok(read)
    }
}

impl Seek for Source<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => self.end.checked_add_signed(by),
        };
        self.at = at.ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "a seek to before the start"))?;
        Ok(self.at)
    }
}

fn index(at: u64) -> usize {
    usize::try_from(at).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, SeekFrom};
    use std::time::Duration;

    use super::{Deadline, Source};
    use crate::image::Limits;

    #[test]
    fn shows_patches_and_filling() {
        let deadline = Deadline::start(&Limits::default());
        let mut source = Source::new(b"abcdef", deadline).with_patch(2, b"XY".to_vec()).filled_to(8);
        let mut read = Vec::new();
        source.read_to_end(&mut read).unwrap();
        assert_eq!(read, b"abXYef\x80\x80");
        source.seek(SeekFrom::End(-6)).unwrap();
        let mut read = [0; 2];
        source.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"XY");
        source.seek(SeekFrom::Start(100)).unwrap();
        assert_eq!(source.read(&mut read).unwrap(), 0);
    }

    #[test]
    fn reads_fail_once_the_time_is_up() {
        let bytes = vec![0; 1 << 20];
        let deadline = Deadline::start(&Limits { time: Duration::ZERO, ..Limits::default() });
        assert!(Source::new(&bytes, deadline).read_to_end(&mut Vec::new()).is_err());
    }
}
