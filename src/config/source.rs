//! What a source of configuration says: all of its documents as they are now, each with the place it came from.
//!
//! Files are such a source, an xDS server is another. Each hands over its newest whole content, or what is wrong with it.
//! Refuses to know how a source notices that something is new, and what the documents mean.

use sha2::{Digest, Sha256};

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
    /// What lies among the documents and is not read.
    pub ignored: Vec<Problem>,
}

/// A hash by which instances can be compared. It is equal exactly if the documents of all sources have the same texts, whatever
/// they are called and wherever they lie.
pub(super) fn hash(contents: &[&Content]) -> String {
    let documents = contents.iter().flat_map(|content| content.limits.iter().chain(&content.retry_policy));
    let texts = documents.map(|document| Sha256::digest(&document.text));
    let resources = contents.iter().flat_map(|content| &content.resources);
    // Its keys are in the order of the alphabet.
    let sent = resources.map(|resource| Sha256::digest(resource.config.to_string()));
    let mut all: Vec<_> = texts.chain(sent).collect();
    all.sort_unstable();
    let hash = all.iter().fold(Sha256::new(), |hash, one| hash.chain_update(one)).finalize();
    hash[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Content {
    /// The names of all documents.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let documents = self.limits.iter().chain(&self.retry_policy).map(|document| &document.name);
        documents.chain(self.resources.iter().map(|resource| &resource.name)).map(String::as_str)
    }
}
