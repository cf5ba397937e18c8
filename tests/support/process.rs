//! A child process and its one owner: what it says is kept and shown only if the test fails; it is gone when dropped.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crate::wait::until;

/// Kept of each output; the rest is what a test that went wrong printed in a loop.
const KEPT_BYTES_MAX: usize = 1 << 20;

pub struct Process {
    name: &'static str,
    child: Child,
    stdout: Kept,
    stderr: Kept,
}

/// What a process says, and who writes it down.
struct Kept {
    text: Arc<Mutex<String>>,
    writer: Option<JoinHandle<()>>,
}

impl Process {
    pub fn start(name: &'static str, command: &mut Command) -> Self {
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{name} must start: {error}"));
        let stdout = keep(child.stdout.take().expect("it is piped"));
        let stderr = keep(child.stderr.take().expect("it is piped"));
        Self { name, child, stdout, stderr }
    }

    #[allow(dead_code, reason = "shared with another binary")]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn stdout(&self) -> String {
        self.stdout.text.lock().unwrap().clone()
    }

    pub fn stderr(&self) -> String {
        self.stderr.text.lock().unwrap().clone()
    }

    /// `TERM`, `INT`, `STOP`.
    pub fn signal(&self, name: &str) {
        let id = self.id().to_string();
        let status = Command::new("kill").args([&format!("-{name}"), &id]).status().expect("kill must run");
        assert!(status.success(), "{} must be there to be signalled", self.name);
    }

    /// SIGSTOP, and back when none of its threads runs any more.
    pub async fn stop(&self) {
        self.signal("STOP");
        let tasks = format!("/proc/{}/task", self.id());
        until("all threads to stand still", async || {
            for task in std::fs::read_dir(&tasks).expect("it must be there") {
                let stat = task.expect("a thread").path().join("stat");
                let stat = std::fs::read_to_string(stat).unwrap_or_default();
                let state = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
                if !state.starts_with('T') {
                    return Err(stat);
                }
            }
            Ok(())
        })
        .await;
    }

    /// How it ended, once it did.
    pub async fn exit(&mut self) -> ExitStatus {
        let name = self.name;
        until(&format!("{name} to end"), async || self.exited().ok_or_else(|| "it is running".to_owned()))
            .await
    }

    /// How it ended, if it did. From then on all that it said is there.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        let status = self.child.try_wait().expect("a child can be asked")?;
        for writer in [self.stdout.writer.take(), self.stderr.writer.take()].into_iter().flatten() {
            writer.join().expect("reading must not fail");
        }
        Some(status)
    }

    /// What follows `start` on a whole line that it has printed.
    pub async fn line(&mut self, start: &str) -> String {
        let name = self.name;
        until(&format!("{name} to print `{start}`"), async || {
            let text = self.stdout();
            let lines = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
            if let Some(rest) = lines.filter_map(|line| line.strip_prefix(start)).next() {
                return Ok(rest.to_owned());
            }
            match self.exited() {
                Some(status) => panic!("{name} ended ({status}) without a line `{start}`: {}", self.stderr()),
                None => Err(text),
            }
        })
        .await
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // One that is gone already is gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- {}, stdout ---\n{}", self.name, self.stdout());
            eprintln!("--- {}, stderr ---\n{}", self.name, self.stderr());
        }
    }
}

fn keep(mut from: impl Read + Send + 'static) -> Kept {
    let text = Arc::new(Mutex::new(String::new()));
    let to = Arc::clone(&text);
    let writer = std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let mut text = to.lock().unwrap();
            if text.len() < KEPT_BYTES_MAX {
                text.push_str(&String::from_utf8_lossy(&buffer[..count]));
            }
        }
    });
    Kept { text, writer: Some(writer) }
}
