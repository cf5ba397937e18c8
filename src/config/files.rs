//! Reading the files of a configuration directory. The only place here that touches a disk.

/// A file and what was in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFile {
    /// The path as the user gave it.
    pub name: String,
    pub text: String,
}
