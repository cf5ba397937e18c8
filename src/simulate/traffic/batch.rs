//! Some requests, with all their words in one text, so that reading a request allocates nothing.

use std::ops::Range;

use smallvec::SmallVec;

use crate::limit::key::Entry;
use crate::registry::{Ask, OverrideLimit};

/// A part of the text of a batch.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Span {
    start: u32,
    end: u32,
}

impl Span {
    fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

#[derive(Debug, Clone, Copy)]
struct Descriptor {
    entries: Span,
    /// Its own, instead of those of the request.
    hits: Option<u64>,
    limit: Option<OverrideLimit>,
}

/// One request, and what the log says became of it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Request {
    /// Which file, by its place among all, and the line.
    pub(crate) file: u32,
    pub(crate) line: u64,
    pub(crate) time_ms: u64,
    pub(crate) hits: u64,
    /// Whether it was answered 429, if that is known.
    pub(crate) was_denied: Option<bool>,
    pub(crate) duration_ms: Option<u64>,
    /// What it asks, in its batch, which sets both.
    pub(crate) domain: Span,
    pub(crate) descriptors: Span,
}

#[derive(Debug, Default)]
pub(crate) struct Batch {
    text: String,
    entries: Vec<(Span, Span)>,
    descriptors: Vec<Descriptor>,
    requests: Vec<Request>,
}

/// How far a batch was filled when a line began.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark {
    text: usize,
    entries: usize,
    descriptors: usize,
}

/// Lines are bounded, and so is what a batch holds of them: both fit in 32 bits by far.
fn place(n: usize) -> u32 {
    u32::try_from(n).expect("a batch must be far below 4 GiB")
}

impl Batch {
    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(crate) fn clear(&mut self) {
        self.text.clear();
        self.entries.clear();
        self.descriptors.clear();
        self.requests.clear();
    }

    /// Bytes of words.
    pub(crate) fn bytes(&self) -> usize {
        self.text.len()
    }

    pub(crate) fn mark(&self) -> Mark {
        let (entries, descriptors) = (self.entries.len(), self.descriptors.len());
        Mark { text: self.text.len(), entries, descriptors }
    }

    /// Forgets what was added since.
    pub(crate) fn back_to(&mut self, mark: Mark) {
        self.text.truncate(mark.text);
        self.entries.truncate(mark.entries);
        self.descriptors.truncate(mark.descriptors);
    }

    pub(crate) fn word(&mut self, word: &str) -> Span {
        let start = place(self.text.len());
        self.text.push_str(word);
        Span { start, end: place(self.text.len()) }
    }

    pub(crate) fn entry(&mut self, key: &str, value: &str) {
        let entry = (self.word(key), self.word(value));
        self.entries.push(entry);
    }

    /// How many entries there are since the last descriptor began.
    pub(crate) fn entries_since(&self, mark: usize) -> usize {
        self.entries.len() - mark
    }

    pub(crate) fn entries_len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn forget_entries(&mut self, from: usize) {
        self.entries.truncate(from);
    }

    /// The entries since `from` are a descriptor.
    pub(crate) fn descriptor(&mut self, from: usize, hits: Option<u64>, limit: Option<OverrideLimit>) {
        let entries = Span { start: place(from), end: place(self.entries.len()) };
        self.descriptors.push(Descriptor { entries, hits, limit });
    }

    pub(crate) fn descriptors_since(&self, mark: Mark) -> usize {
        self.descriptors.len() - mark.descriptors
    }

    /// The descriptors since `mark` are a request.
    pub(crate) fn request(&mut self, mark: Mark, domain: Span, request: Request) {
        let descriptors = Span { start: place(mark.descriptors), end: place(self.descriptors.len()) };
        self.requests.push(Request { domain, descriptors, ..request });
    }

    /// Takes back the last request, which began at `mark`.
    pub(crate) fn drop_last(&mut self, mark: Mark) {
        self.requests.pop();
        self.back_to(mark);
    }

    /// Adds a request of another batch.
    pub(crate) fn copy(&mut self, other: &Batch, index: usize) {
        let request = other.requests[index];
        let mark = self.mark();
        let domain = self.word(&other.text[request.domain.range()]);
        for descriptor in &other.descriptors[request.descriptors.range()] {
            let from = self.entries.len();
            for (key, value) in &other.entries[descriptor.entries.range()] {
                self.entry(&other.text[key.range()], &other.text[value.range()]);
            }
            self.descriptor(from, descriptor.hits, descriptor.limit);
        }
        self.request(mark, domain, request);
    }

    pub(crate) fn get(&self, index: usize) -> &Request {
        &self.requests[index]
    }

    pub(crate) fn domain(&self, request: &Request) -> &str {
        &self.text[request.domain.range()]
    }

    /// As the registry takes them.
    pub(crate) fn asks(&self, request: &Request) -> SmallVec<[Ask<'_>; 4]> {
        let descriptors = &self.descriptors[request.descriptors.range()];
        descriptors.iter().map(|descriptor| self.ask(descriptor, request.hits)).collect()
    }

    fn ask(&self, descriptor: &Descriptor, hits: u64) -> Ask<'_> {
        let entries = &self.entries[descriptor.entries.range()];
        let word = |span: Span| &self.text[span.range()];
        let entries = entries.iter().map(|&(key, value)| Entry { key: word(key), value: word(value) });
        Ask { entries: entries.collect(), hits: descriptor.hits.unwrap_or(hits), limit: descriptor.limit }
    }
}
