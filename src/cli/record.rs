//! `sluice record`: what a running server is asked, into files that `sluice simulate` reads.
//!
//! One loop waits for a line, a tick, a signal or the end of the time, and writes what is complete. The server needs no disk,
//! and nothing is recorded there when this is not running. Refuses to know what is done with the files.

mod files;
mod order;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use clap::Args;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;

use self::files::Files;
use self::order::Order;
use super::admin::{AdminArgs, AdminServer, TIMEOUT};
use super::complain;
use super::simulate::percent;
use crate::clock;
use crate::record::{Message, RecordLine};

pub(super) const HELP: &str = "\
Examples:
  sluice record traffic.jsonl                        until Ctrl-C
  sluice record --seconds 3600 --sample 10% traffic.jsonl
  sluice record --hash-values --max-bytes 1GB --files 3 traffic.jsonl
  sluice record --admin sluice.mesh:8080 --ca ca.pem traffic.jsonl    where the admin port has TLS

A server with an admin token is asked with SLUICE_ADMIN_TOKEN. Several files are read together: sluice simulate traffic.jsonl*";

#[derive(Debug, Args)]
pub(super) struct RecordArgs {
    #[command(flatten)]
    server: AdminArgs,
    /// Record only this share of the tenants, each with all of its requests, such as 10%
    ///
    /// A tenant is known by the entries of its first descriptor. It is in or out at all instances.
    #[arg(long, value_name = "PERCENT", default_value = "100%", value_parser = share)]
    sample: f64,
    /// Write hashes in the place of values, but for those that the limits files mention
    ///
    /// A value has the same hash at all instances with the same leases.secrets.
    #[arg(long)]
    hash_values: bool,
    /// Begin another file beyond this size, as in 500kB, 100MB or 1GB
    #[arg(long, value_name = "SIZE", default_value = "100MB", value_parser = bytes)]
    max_bytes: u64,
    /// Keep this many files: FILE, and before it FILE.1, FILE.2 and so on
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    files: u32,
    /// How long; without it until a signal comes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    seconds: Option<u64>,
    /// Where to write, after what is there already
    file: PathBuf,
}

/// Ten years.
const FOREVER_MS: u64 = 10 * 365 * 86_400_000;

/// Between two tries to reach a server that has gone.
const PAUSE: Duration = Duration::from_secs(1);

/// A server says something every 10 seconds, if only that it is there.
const QUIET_MS: u64 = 30_000;

/// When the recording is to stop: how long nothing must have come, and how long we wait for that.
const LAST_QUIET: Duration = Duration::from_millis(500);
const LAST_AT_MOST: Duration = Duration::from_secs(2);

/// How often what is complete is written.
const TICK: Duration = Duration::from_millis(200);

/// The server keeps no longer line.
const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// `10%`, or `10`, as a part of 1.
fn share(text: &str) -> Result<f64, String> {
    let share = percent(text).ok().filter(|share| *share > 0.0);
    share.ok_or_else(|| "a percentage above 0% and at most 100%, such as 10%".to_owned())
}

/// A size: a whole number of bytes, kB, MB or GB.
fn bytes(text: &str) -> Result<u64, String> {
    const SMALLEST: u64 = 1_000;
    let units = [("kB", 1_000), ("MB", 1_000_000), ("GB", 1_000_000_000), ("B", 1)];
    let (number, unit) =
        units.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit))).unwrap_or((text, 1));
    let size = number.trim().parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    let size = size.filter(|size| *size >= SMALLEST);
    size.ok_or_else(|| "a size is at least 1kB, and written as in 500kB, 100MB or 1GB".to_owned())
}

pub(super) fn run(args: &RecordArgs) -> ExitCode {
    match record(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(&error),
    }
}

fn record(args: &RecordArgs) -> anyhow::Result<()> {
    let server = args.server.server()?;
    let files = Files::open(&args.file, args.max_bytes, args.files)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")?;
    let mut recorder = Recorder { files, order: Order::default(), lines: 0, missed: 0 };
    runtime.block_on(recorder.run(args, &server))?;
    recorder.write_all()?;
    println!("recorded {} requests to {}", recorder.lines, args.file.display());
    if recorder.missed > 0 {
        eprintln!(
            "sluice: {} more were missed: they came faster than they could be written",
            recorder.missed
        );
    }
    Ok(())
}

struct Recorder {
    files: Files,
    order: Order,
    lines: u64,
    missed: u64,
}

/// What made a stream end.
enum Ended {
    /// Nobody wants more.
    Stopped,
    /// The server has gone, and why.
    Lost(anyhow::Error),
}

/// The signals and the time that end a recording.
struct Stops {
    signals: [Signal; 3],
    at_ms: Option<u64>,
}

impl Stops {
    fn new(seconds: Option<u64>) -> anyhow::Result<Self> {
        let signals = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let [interrupt, terminate, hangup] = signals.map(signal);
        let at_ms = seconds.map(|seconds| clock::monotonic_ms() + seconds * 1000);
        Ok(Self { signals: [interrupt?, terminate?, hangup?], at_ms })
    }

    async fn wait(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.signals;
        let left_ms = self.at_ms.map(|at_ms| at_ms.saturating_sub(clock::monotonic_ms()));
        // Without an end it is a time that nobody lives to see.
        let left = Duration::from_millis(left_ms.unwrap_or(FOREVER_MS));
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
            () = tokio::time::sleep(left) => {}
        }
    }
}

impl Recorder {
    /// Records until somebody wants it to stop. It waits for a server that goes away, but not for one that was never there.
    async fn run(&mut self, args: &RecordArgs, server: &AdminServer) -> anyhow::Result<()> {
        let path = format!("/v1/record?sample={}&hash_values={}", args.sample, args.hash_values);
        let mut stops = Stops::new(args.seconds)?;
        let mut tasks = JoinSet::new();
        let mut body = open(server, &path, &mut tasks).await?;
        eprintln!("recording {} to {}", args.server.address(), args.file.display());
        loop {
            let lost = match self.read(body, &mut stops).await? {
                Ended::Stopped => return Ok(()),
                Ended::Lost(error) => error,
            };
            eprintln!("sluice: {} has gone, what it is asked is missed: {lost:#}", args.server.address());
            body = tokio::select! {
                body = again(server, &path, &mut tasks) => body,
                () = stops.wait() => return Ok(()),
            };
            eprintln!("recording {} again", args.server.address());
        }
    }

    async fn read(&mut self, mut body: Incoming, stops: &mut Stops) -> anyhow::Result<Ended> {
        let mut messages = Lines::default();
        let mut ticks = tokio::time::interval(TICK);
        let mut heard_ms = clock::monotonic_ms();
        loop {
            let frame = tokio::select! {
                frame = body.frame() => frame,
                _ = ticks.tick() => {
                    self.write_complete()?;
                    if clock::monotonic_ms() - heard_ms > QUIET_MS {
                        return Ok(Ended::Lost(anyhow::anyhow!("it said nothing for {} s", QUIET_MS / 1000)));
                    }
                    continue;
                }
                () = stops.wait() => {
                    // What it was asked before is on its way.
                    drop(tokio::time::timeout(LAST_AT_MOST, self.read_rest(&mut body, &mut messages)).await);
                    return Ok(Ended::Stopped);
                }
            };
            let data = match frame {
                Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
                Some(Err(error)) => return Ok(Ended::Lost(error.into())),
                None => return Ok(Ended::Lost(anyhow::anyhow!("it ended the stream"))),
            };
            heard_ms = clock::monotonic_ms();
            self.take(messages.push(&data)?)?;
        }
    }

    /// Reads until nothing comes for a moment.
    async fn read_rest(&mut self, body: &mut Incoming, messages: &mut Lines) -> anyhow::Result<()> {
        while let Ok(Some(Ok(frame))) = tokio::time::timeout(LAST_QUIET, body.frame()).await {
            self.take(messages.push(&frame.into_data().unwrap_or_default())?)?;
        }
        Ok(())
    }

    fn take(&mut self, lines: Vec<Bytes>) -> anyhow::Result<()> {
        let now_ms = clock::monotonic_ms();
        for line in lines {
            match serde_json::from_slice(&line).context("that is no Sluice of this version")? {
                Message::Asked { line, lease } => {
                    let is_late = !self.order.push(line, lease.map(Into::into), now_ms);
                    self.missed += u64::from(is_late);
                }
                Message::Done { lease, duration_ms } => self.order.done(&lease, duration_ms),
                Message::Missed(missed) => self.missed += missed,
            }
        }
        self.write_complete()
    }

    /// Writes what is complete, in order.
    fn write_complete(&mut self) -> anyhow::Result<()> {
        let now_ms = clock::monotonic_ms();
        while let Some(line) = self.order.next(now_ms) {
            self.write(&line)?;
        }
        self.files.flush()
    }

    /// Writes whatever is there.
    fn write_all(&mut self) -> anyhow::Result<()> {
        while let Some(line) = self.order.pop() {
            self.write(&line)?;
        }
        self.files.flush()
    }

    fn write(&mut self, line: &RecordLine<'_>) -> anyhow::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        if self.files.write(&text)? {
            self.lines += 1;
        } else {
            self.missed += 1;
        }
        Ok(())
    }
}

async fn open(server: &AdminServer, path: &str, tasks: &mut JoinSet<()>) -> anyhow::Result<Incoming> {
    // The connection before this one has ended.
    tasks.abort_all();
    let opening = tokio::time::timeout(TIMEOUT, server.open(path, tasks)).await;
    opening.with_context(|| format!("no answer in {TIMEOUT:?}"))?
}

/// Tries until the server is there.
async fn again(server: &AdminServer, path: &str, tasks: &mut JoinSet<()>) -> Incoming {
    loop {
        tokio::time::sleep(PAUSE).await;
        if let Ok(body) = open(server, path, tasks).await {
            return body;
        }
    }
}

/// Lines out of bytes that come in any pieces.
#[derive(Debug, Default)]
struct Lines {
    rest: Vec<u8>,
}

impl Lines {
    /// Those that are whole now. Empty ones say nothing.
    fn push(&mut self, bytes: &[u8]) -> anyhow::Result<Vec<Bytes>> {
        self.rest.extend_from_slice(bytes);
        let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else {
            if self.rest.len() > MESSAGE_BYTES_MAX {
                bail!("a line is too long: that is no Sluice of this version");
            }
            return Ok(Vec::new());
        };
        let rest = self.rest.split_off(end + 1);
        let whole = Bytes::from(std::mem::replace(&mut self.rest, rest));
        let lines = whole.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        Ok(lines.map(|line| whole.slice_ref(line)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_sizes_are_read_as_people_write_them() {
        for (text, expected) in [("10%", 0.1), ("10", 0.1), ("100%", 1.0), ("1", 0.01), ("0.5 %", 0.005)] {
            assert_eq!(share(text), Ok(expected), "{text}");
        }
        for text in ["0", "0%", "101%", "-1", "", "%", "ten", "NaN", "inf"] {
            share(text).unwrap_err();
        }
        for (text, expected) in [
            ("1kB", 1_000),
            ("100MB", 100_000_000),
            ("2 GB", 2_000_000_000),
            ("5000", 5_000),
            ("5000B", 5_000),
        ] {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for text in
            ["", "999", "0MB", "-1MB", "1.5MB", "1TB", "MB", "99999999999999999999", "99999999999999GB"]
        {
            bytes(text).unwrap_err();
        }
    }

    #[test]
    fn lines_are_found_however_they_are_cut() {
        let text = b"{\"missed\":1}\n\n{\"missed\":2}\n{\"mis";
        for size in [1, 5, text.len()] {
            let mut lines = Lines::default();
            let pieces = text.chunks(size);
            let found: Vec<Bytes> =
                pieces.flat_map(|piece| lines.push(piece).expect("it must be short enough")).collect();
            assert_eq!(found, [&b"{\"missed\":1}"[..], b"{\"missed\":2}"]);
            assert_eq!(lines.rest, b"{\"mis");
        }
        let mut lines = Lines::default();
        lines.push(&vec![b'x'; MESSAGE_BYTES_MAX]).expect("that may still end");
        lines.push(b"x").unwrap_err();
    }
}
