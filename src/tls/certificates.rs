//! All files that the TLS of this process is made of: they are loaded, looked at every second, and it is known what is wrong with
//! them.
//!
//! Their content counts, not their time: a Kubernetes volume swaps a link, and `cp -p` keeps the time. A certificate and its
//! key are two files, so that a look may see one new and one old. What doesn't fit is therefore complained of only at the
//! second look that finds it so; what fits is used at once.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use super::contents::{Contents, Fingerprint};
use super::{Alpn, ClientFiles, ClientTls, FileError, ServerFiles, ServerTls, client, pem, server};
use crate::clock;
use crate::telemetry::Metrics;

/// A change is live after at most one of these, and a mistake is told after two.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What is made of files, and can be made again.
pub(super) trait Reload: Send + Sync + std::fmt::Debug {
    fn paths(&self) -> Vec<PathBuf>;

    /// The file with the certificate that we show, if we show one.
    fn certificate(&self) -> Option<&Path>;

    /// Changes what is current, or nothing.
    fn reload(&self, contents: &Contents) -> Result<(), FileError>;
}

/// Why what a file says now is not in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileProblem {
    pub error: FileError,
    pub since_unix_ms: u64,
}

/// The TLS of this process.
#[derive(Debug)]
pub struct Certificates {
    /// A plain mutex: taken at start, and by the look, which is one at a time and on a thread where it may wait for a disk.
    watched: Mutex<Vec<Watched>>,
    problems: ArcSwap<Vec<FileProblem>>,
    metrics: Arc<Metrics>,
}

impl Certificates {
    pub(crate) fn new(metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self { watched: Mutex::default(), problems: ArcSwap::default(), metrics })
    }

    /// The TLS of a port, which from now on follows its files.
    pub(crate) fn server(&self, files: &ServerFiles, alpn: Alpn) -> Result<Arc<ServerTls>, FileError> {
        let contents = Contents::read(server::paths(files));
        let server = Arc::new(ServerTls::new(files, alpn, &contents)?);
        self.watch(Arc::clone(&server) as Arc<dyn Reload>, &contents);
        Ok(server)
    }

    /// The TLS towards a peer, which from now on follows its files.
    pub fn client(&self, files: &ClientFiles, alpn: Alpn) -> Result<Arc<ClientTls>, FileError> {
        let contents = Contents::read(client::paths(files));
        let client = Arc::new(ClientTls::new(files, alpn, &contents)?);
        self.watch(Arc::clone(&client) as Arc<dyn Reload>, &contents);
        Ok(client)
    }

    fn watch(&self, target: Arc<dyn Reload>, contents: &Contents) {
        let watched = Watched::new(target, contents);
        self.publish(&watched);
        self.watched.lock().push(watched);
    }

    /// What is wrong now, each once.
    pub(crate) fn problems(&self) -> Arc<Vec<FileProblem>> {
        self.problems.load_full()
    }

    /// Follows the files for ever.
    pub(crate) async fn keep_current(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(LOOK_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let this = Arc::clone(&self);
            // A panic there would leave certificates that are never renewed: it ends this task, whose owner hears of it.
            let looked = tokio::task::spawn_blocking(move || this.look(clock::unix_ms())).await;
            looked.expect("a look must not panic");
        }
    }

    /// Looks once at all of them.
    pub(super) fn look(&self, now_unix_ms: u64) {
        let mut problems: Vec<FileProblem> = Vec::new();
        let mut expired: Vec<PathBuf> = Vec::new();
        for watched in self.watched.lock().iter_mut() {
            let contents = Contents::read(watched.target.paths());
            match watched.look(&contents, now_unix_ms) {
                Look::Same => {}
                Look::Reloaded => {
                    self.metrics.tls.reloaded(true);
                    self.publish(watched);
                    tracing::info!("TLS: read again: {}", names(&watched.target.paths()));
                }
                Look::Failed(error) => {
                    self.metrics.tls.reloaded(false);
                    tracing::error!("TLS: {error}; what was in use stays in use");
                }
            }
            // Two ports may have the same files.
            let known = |problem: &&FileProblem| problems.iter().all(|other| other.error != problem.error);
            let new = watched.problem.iter().find(known).cloned();
            problems.extend(new);
            expired.extend(watched.newly_expired(now_unix_ms));
        }
        expired.sort();
        expired.dedup();
        for file in expired {
            tracing::warn!("TLS: {}: its certificate has expired, so that peers refuse it", file.display());
        }
        self.problems.store(Arc::new(problems));
    }

    /// Shows when the certificate ends that is in use now.
    fn publish(&self, watched: &Watched) {
        if let Some(expiry) = &watched.expiry {
            self.metrics.tls.expires(&expiry.file, expiry.unix_seconds);
        }
    }
}

fn names(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| Path::display(path).to_string()).collect::<Vec<_>>().join(", ")
}

/// Something made of files, and what is known of them.
#[derive(Debug)]
struct Watched {
    target: Arc<dyn Reload>,
    /// Of what is in use.
    used: Fingerprint,
    /// Of the last content that did not fit.
    unfit: Option<Fingerprint>,
    /// The last look found something that did not fit, and nobody was told yet.
    waits: bool,
    problem: Option<FileProblem>,
    expiry: Option<Expiry>,
}

/// When the certificate in use ends.
#[derive(Debug)]
struct Expiry {
    file: PathBuf,
    unix_seconds: u64,
    /// Somebody was told that it has ended.
    is_told: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Look {
    Same,
    /// New files are in use, or the files again have what is in use already.
    Reloaded,
    Failed(FileError),
}

impl Watched {
    fn new(target: Arc<dyn Reload>, contents: &Contents) -> Self {
        let expiry = target.certificate().and_then(|file| {
            let unix_seconds = pem::expiry(file, contents)?;
            Some(Expiry { file: file.to_owned(), unix_seconds, is_told: false })
        });
        Self { target, used: contents.fingerprint(), unfit: None, waits: false, problem: None, expiry }
    }

    /// The file of a certificate that has expired, once.
    fn newly_expired(&mut self, now_unix_ms: u64) -> Option<PathBuf> {
        let expiry = self.expiry.as_mut()?;
        if expiry.is_told || now_unix_ms / 1000 <= expiry.unix_seconds {
            return None;
        }
        expiry.is_told = true;
        Some(expiry.file.clone())
    }

    fn look(&mut self, contents: &Contents, now_unix_ms: u64) -> Look {
        let fingerprint = contents.fingerprint();
        if fingerprint == self.used {
            (self.unfit, self.waits) = (None, false);
            return if self.problem.take().is_some() { Look::Reloaded } else { Look::Same };
        }
        if self.unfit == Some(fingerprint) && !self.waits {
            return Look::Same;
        }
        match self.target.reload(contents) {
            Ok(()) => {
                *self = Self::new(Arc::clone(&self.target), contents);
                Look::Reloaded
            }
            Err(_) if self.problem.is_none() && !self.waits => {
                (self.unfit, self.waits) = (Some(fingerprint), true);
                Look::Same
            }
            Err(error) => {
                (self.unfit, self.waits) = (Some(fingerprint), false);
                let since_unix_ms = self.problem.take().map_or(now_unix_ms, |problem| problem.since_unix_ms);
                self.problem = Some(FileProblem { error: error.clone(), since_unix_ms });
                Look::Failed(error)
            }
        }
    }
}
