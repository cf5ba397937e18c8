//! A small file that is there whole or not at all, whatever the power does.
//!
//! Refuses to know what is in it.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::Path;

/// The text of a file, if there is one.
pub(super) fn read(path: &Path) -> Result<Option<String>, String> {
    let bytes = read_bytes(path)?;
    bytes.map(String::from_utf8).transpose().map_err(|error| format!("can't be read: {error}"))
}

/// The bytes of a file, if there is one.
pub(super) fn read_bytes(path: &Path) -> Result<Option<Vec<u8>>, String> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("can't be read: {error}")),
    }
}

/// Replaces a file, which is on the disk when this returns. The directory is made if it isn't there.
///
/// The order, and the loss that each step prevents: the new text is on the disk before it has the name, or a crash would
/// leave the name on half a file; the directory is on the disk before we say so, or a crash would bring the old file back.
pub(super) fn write(dir: &Path, name: &str, text: &str) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let new = dir.join(format!(".{name}.new"));
    let written = File::create(&new).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    let done = written.and_then(|()| fs::rename(&new, dir.join(name))).and_then(|()| sync(dir));
    if done.is_err() {
        // What is left of it is overwritten next time.
        let _ = fs::remove_file(&new);
    }
    done
}

/// Removes a file, if there is one.
pub(super) fn remove(dir: &Path, name: &str) -> io::Result<()> {
    match fs::remove_file(dir.join(name)) {
        Ok(()) => sync(dir),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

pub(super) fn sync(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}
