//! The lines of a file, one at a time: plain or gzip, which its first bytes say. Bounded, whatever the file holds.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;

use super::STDIN;

/// A line that is longer is broken. Envoy's longest are some kilobytes.
pub(super) const LINE_BYTES_MAX: usize = 1 << 20;

const BUFFER_BYTES: usize = 128 << 10;

/// What every gzip file begins with.
const GZIP: [u8; 2] = [0x1f, 0x8b];

pub(super) struct Lines {
    reader: Box<dyn BufRead + Send>,
    line: Vec<u8>,
    number: u64,
}

/// One line, or what is wrong with it.
pub(super) enum Next<'l> {
    Line(u64, &'l [u8]),
    TooLong(u64),
    Unreadable(u64, io::Error),
    End,
}

/// Counts the bytes that were read from a disk, so that somebody can tell how far it is.
struct Counted<R> {
    inner: R,
    bytes: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.bytes.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

/// What was packed, if it was.
fn unpacked(inner: impl Read + Send + 'static) -> io::Result<Box<dyn BufRead + Send>> {
    let mut reader = BufReader::with_capacity(BUFFER_BYTES, inner);
    Ok(match reader.fill_buf()?.starts_with(&GZIP) {
        true => Box::new(BufReader::with_capacity(BUFFER_BYTES, MultiGzDecoder::new(reader))),
        false => Box::new(reader),
    })
}

/// All of a file, plain or gzip.
pub(in crate::simulate) fn text_of(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    unpacked(File::open(path)?)?.read_to_string(&mut text)?;
    Ok(text)
}

impl Lines {
    pub(super) fn open(path: &Path, bytes: Arc<AtomicU64>) -> io::Result<Self> {
        let inner: Box<dyn Read + Send> = match path.to_str() {
            Some(STDIN) => Box::new(io::stdin()),
            _ if path.is_dir() => return Err(io::Error::other("is a directory")),
            _ => Box::new(File::open(path)?),
        };
        Ok(Self { reader: unpacked(Counted { inner, bytes })?, line: Vec::new(), number: 0 })
    }

    /// The next line that is not empty, without its end.
    pub(super) fn next(&mut self) -> Next<'_> {
        loop {
            self.line.clear();
            let mut bounded = (&mut self.reader).take(LINE_BYTES_MAX as u64 + 1);
            let count = match bounded.read_until(b'\n', &mut self.line) {
                Ok(count) => count,
                Err(error) => return Next::Unreadable(self.number + 1, error),
            };
            if count == 0 {
                return Next::End;
            }
            self.number += 1;
            if self.line.last() == Some(&b'\n') {
                self.line.pop();
            } else if count > LINE_BYTES_MAX {
                return match self.skip_line() {
                    Ok(()) => Next::TooLong(self.number),
                    Err(error) => Next::Unreadable(self.number, error),
                };
            }
            if !self.line.trim_ascii().is_empty() {
                break;
            }
        }
        let line = self.line.strip_suffix(b"\r").unwrap_or(&self.line);
        Next::Line(self.number, line)
    }

    fn skip_line(&mut self) -> io::Result<()> {
        loop {
            let there = self.reader.fill_buf()?;
            let end = there.iter().position(|byte| *byte == b'\n');
            let (count, is_over) =
                (end.map_or(there.len(), |end| end + 1), end.is_some() || there.is_empty());
            self.reader.consume(count);
            if is_over {
                return Ok(());
            }
        }
    }
}

impl std::fmt::Debug for Lines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lines({} read)", self.number)
    }
}
