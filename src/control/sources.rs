//! What the sources of configuration say. Of each source there is what is live, and what it said after that and could not go live.
//!
//! So a mistake in one source holds up only that source: the others go on with what is live of it. Pure; refuses to know what
//! the contents mean.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::config::{Content, Problem};

/// What a source is called: `files`.
pub(crate) type SourceName = &'static str;

#[derive(Debug, Default)]
pub(super) struct Sources(BTreeMap<SourceName, Source>);

#[derive(Debug, Default)]
struct Source {
    live: Arc<Content>,
    rejected: Option<Rejected>,
}

/// What is newer than what is live, and why it is not live.
#[derive(Debug)]
struct Rejected {
    content: Arc<Content>,
    problems: Vec<Problem>,
}

impl Sources {
    /// What all of them say if `source` says `content`, and the others what is live.
    pub(super) fn with(&self, source: SourceName, content: &Arc<Content>) -> Vec<Arc<Content>> {
        let others = self.0.iter().filter(|(name, _)| **name != source).map(|(_, other)| &other.live);
        others.chain([content]).map(Arc::clone).collect()
    }

    /// `content` is live.
    pub(super) fn accept(&mut self, source: SourceName, content: Arc<Content>) {
        self.0.insert(source, Source { live: content, rejected: None });
    }

    /// `content` can't go live; what is live stays.
    pub(super) fn reject(&mut self, source: SourceName, content: Arc<Content>, problems: Vec<Problem>) {
        self.0.entry(source).or_default().rejected = Some(Rejected { content, problems });
    }

    /// What could not go live, for another try when something else has changed.
    pub(super) fn rejected(&self) -> Vec<(SourceName, Arc<Content>)> {
        let rejected = self.0.iter().filter_map(|(name, source)| Some((*name, source.rejected.as_ref()?)));
        rejected.map(|(name, rejected)| (name, Arc::clone(&rejected.content))).collect()
    }

    /// Why not all that the sources say is live; empty if it is.
    pub(super) fn problems(&self) -> Vec<Problem> {
        let rejected = self.0.values().filter_map(|source| source.rejected.as_ref());
        rejected.flat_map(|rejected| rejected.problems.iter().cloned()).collect()
    }
}
