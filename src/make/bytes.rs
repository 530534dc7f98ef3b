//! Bytes read front to back, never beyond their end.

/// The bytes end early.
#[derive(Debug, thiserror::Error)]
#[error("the file ends early")]
pub(super) struct Cut;

/// A place in bytes.
#[derive(Clone, Debug)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(super) fn take(&mut self, length: u64) -> Result<&'a [u8], Cut> {
        let length = usize::try_from(length).map_err(|_| Cut)?;
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(Cut)?;
        self.rest = rest;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Cut> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(Cut)?;
        self.rest = rest;
        Ok(*taken)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Cut> {
        self.array().map(|[byte]| byte)
    }

    /// Up to the end of the line, without it. What is no UTF-8 is an empty line.
    pub(super) fn line(&mut self) -> Result<&'a str, Cut> {
        let end = memchr::memchr(b'\n', self.rest).ok_or(Cut)?;
        let line = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        Ok(std::str::from_utf8(line).unwrap_or_default().trim_end_matches('\r'))
    }
}
