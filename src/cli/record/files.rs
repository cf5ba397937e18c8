//! The file that is written and those before it: when one is full, the next begins, and the oldest goes.
//!
//! Refuses to know what is in them.

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;

#[derive(Debug)]
pub(super) struct Files {
    path: PathBuf,
    bytes_max: u64,
    /// How many there are at most, the one that is written included.
    count: u32,
    file: BufWriter<File>,
    bytes: u64,
}

impl Files {
    /// Goes on after what is in the file.
    pub(super) fn open(path: &Path, bytes_max: u64, count: u32) -> anyhow::Result<Self> {
        let (file, bytes) = open(path)?;
        Ok(Self { path: path.to_owned(), bytes_max, count, file, bytes })
    }

    /// False if a line is longer than a file may be, and so was left out.
    pub(super) fn write(&mut self, line: &[u8]) -> anyhow::Result<bool> {
        let length = line.len() as u64;
        if length > self.bytes_max {
            return Ok(false);
        }
        if self.bytes + length > self.bytes_max {
            self.begin_another()?;
        }
        self.file.write_all(line).with_context(|| self.path.display().to_string())?;
        self.bytes += length;
        Ok(true)
    }

    pub(super) fn flush(&mut self) -> anyhow::Result<()> {
        self.file.flush().with_context(|| self.path.display().to_string())
    }

    fn begin_another(&mut self) -> anyhow::Result<()> {
        self.flush()?;
        // The oldest is written over; with one file that is the one that is full.
        for age in (1..self.count).rev() {
            let (from, to) = (self.aged(age - 1), self.aged(age));
            match fs::rename(&from, &to) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                renamed => renamed.with_context(|| format!("{} -> {}", from.display(), to.display()))?,
            }
        }
        if self.count == 1 {
            fs::remove_file(&self.path).with_context(|| self.path.display().to_string())?;
        }
        (self.file, self.bytes) = open(&self.path)?;
        Ok(())
    }

    /// The path of a file after which so many others were begun.
    fn aged(&self, age: u32) -> PathBuf {
        if age == 0 {
            return self.path.clone();
        }
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{age}"));
        name.into()
    }
}

/// With its length.
fn open(path: &Path) -> anyhow::Result<(BufWriter<File>, u64)> {
    let opened = OpenOptions::new().append(true).create(true).open(path);
    let file = opened.with_context(|| format!("{} can't be written", path.display()))?;
    let bytes = file.metadata().with_context(|| path.display().to_string())?.len();
    Ok((BufWriter::new(file), bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_bounded_and_the_oldest_goes() {
        for (count, expected) in
            [(1, &["6\n"][..]), (2, &["6\n", "4\n5\n"]), (9, &["6\n", "4\n5\n", "2\n3\n", "0\n1\n"])]
        {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("r");
            for part in [0..3, 3..7] {
                // A second recorder goes on where the first one stopped.
                let mut files = Files::open(&path, 5, count).unwrap();
                for n in part {
                    assert!(files.write(format!("{n}\n").as_bytes()).unwrap());
                }
                assert!(!files.write(b"12345\n").unwrap(), "longer than a file may be");
                files.flush().unwrap();
            }
            let names = ["r", "r.1", "r.2", "r.3"];
            for (name, text) in names.iter().zip(expected) {
                assert_eq!(&fs::read_to_string(dir.path().join(name)).unwrap(), text, "{name} of {count}");
            }
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), expected.len(), "of {count}");
        }
    }

    #[test]
    fn what_can_not_be_written_is_named() {
        let error = Files::open(Path::new("/nowhere/r"), 5, 1).unwrap_err();
        assert!(format!("{error:#}").starts_with("/nowhere/r can't be written: "), "{error:#}");
    }
}
