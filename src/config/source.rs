//! What a source of configuration says: all of its documents as they are now, each with the place it came from.
//!
//! Files are such a source, an xDS server is another. Each hands over its newest whole content, or what is wrong with it.
//! Refuses to know how a source notices that something is new, and what the documents mean.

use super::problem::Problem;

/// One text, and where it came from. YAML, and so also JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// The path as the user gave it, or what else leads to it.
    pub name: String,
    pub text: String,
}

/// The limits of one domain that were sent, and not written: they have no lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    /// What it is called in problems and as the origin of its limits: `xds:` and the name of the resource.
    pub name: String,
    /// As a limits file would have it.
    pub config: serde_json::Value,
}

/// All that one source says. Two of them are equal exactly if nothing was edited in between.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Content {
    /// One domain each, by name.
    pub limits: Vec<Document>,
    /// The same, of a source that has no files.
    pub resources: Vec<Resource>,
    pub retry_policy: Option<Document>,
    /// What could not be read. With any of these, nothing of it goes live.
    pub problems: Vec<Problem>,
}

impl Content {
    /// The names of all documents.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let documents = self.limits.iter().chain(&self.retry_policy).map(|document| &document.name);
        documents.chain(self.resources.iter().map(|resource| &resource.name)).map(String::as_str)
    }
}
