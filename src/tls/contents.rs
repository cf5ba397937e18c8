//! What some files held at one moment, and whether that is what they held before.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::FileError;

/// A bundle of all public authorities has some 200 KiB.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Files and what was in each, or why it can't be read.
#[derive(Debug)]
pub(super) struct Contents(Vec<(PathBuf, Result<Vec<u8>, String>)>);

/// Equal for equal contents. The contents themselves are not kept: there are keys among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fingerprint([u8; 32]);

impl Contents {
    pub(super) fn read(paths: Vec<PathBuf>) -> Self {
        let read = |path: PathBuf| {
            let content = read(&path);
            (path, content)
        };
        Self(paths.into_iter().map(read).collect())
    }

    /// What was in one of the files.
    pub(super) fn of(&self, file: &Path) -> Result<&[u8], FileError> {
        let (_, content) =
            self.0.iter().find(|(path, _)| path == file).expect("a file that is used must have been read");
        content.as_deref().map_err(|message| FileError::new(file, message))
    }

    pub(super) fn fingerprint(&self) -> Fingerprint {
        let mut hash = Sha256::new();
        for (_, content) in &self.0 {
            let (kind, bytes) = match content {
                Ok(bytes) => (0, bytes.as_slice()),
                Err(message) => (1, message.as_bytes()),
            };
            hash.update([kind]);
            hash.update(bytes.len().to_be_bytes());
            hash.update(bytes);
        }
        Fingerprint(hash.finalize().into())
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let cannot = |error: std::io::Error| format!("can't be read: {error}");
    // A pipe would be waited for, forever.
    if !fs::metadata(path).map_err(cannot)?.is_file() {
        return Err("is no regular file".to_owned());
    }
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes))
        .map_err(cannot)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("is longer than {FILE_BYTES_MAX} bytes"));
    }
    Ok(bytes)
}
