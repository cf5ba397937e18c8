//! `sluice top`: in a real terminal, and where there is none. `SLUICE_TEST_TMUX` names tmux; without it the first fails.

use std::process::Command;

use serde_json::Value;

use crate::sluice::{Sluice, directory, run, serve, sluice};
use crate::wait::until;

const LIMITS: &str = "\
domain: d
descriptors:
- {key: tenant, rate_limit: {unit: hour, requests_per_unit: 1}}
";

/// A terminal that a test types into and reads. The shell in it stays when a program ends.
struct Terminal {
    socket: tempfile::TempDir,
}

impl Terminal {
    fn open(width: u16, height: u16) -> Self {
        let terminal = Self { socket: tempfile::tempdir().unwrap() };
        let (width, height) = (width.to_string(), height.to_string());
        terminal.tmux(&["new-session", "-d", "-x", &width, "-y", &height, "env PS1='shell$ ' sh"]);
        terminal
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let program = std::env::var_os("SLUICE_TEST_TMUX")
            .expect("SLUICE_TEST_TMUX must name a program: run `make test`, which installs it");
        let mut command = Command::new(program);
        command
            .env("TERM", "xterm-256color")
            .env_remove("TMUX")
            .arg("-S")
            .arg(self.socket.path().join("tmux"));
        let ran = run(command.args(["-f", "/dev/null"]).args(arguments));
        assert_eq!(ran.code, 0, "{arguments:?}: {ran:?}");
        ran.stdout
    }

    fn type_in(&self, keys: &str) {
        self.tmux(&["send-keys", "-l", keys]);
    }

    fn enter(&self, line: &str) {
        self.type_in(line);
        self.tmux(&["send-keys", "Enter"]);
    }

    fn resize(&self, width: u16, height: u16) {
        self.tmux(&["resize-window", "-x", &width.to_string(), "-y", &height.to_string()]);
    }

    async fn shows(&self, what: &str) -> String {
        until(&format!("the terminal to show {what:?}"), async || {
            let screen = self.tmux(&["capture-pane", "-p"]);
            if screen.contains(what) { Ok(screen) } else { Err(screen) }
        })
        .await
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

fn deny(served: &Sluice, tenant: &str) {
    let entry = format!("tenant={tenant}");
    let code = |_| run(&mut sluice(served.dir.path(), &["try", "--grpc", &served.grpc, "d", &entry])).code;
    assert_eq!([0, 1].map(code), [0, 2]);
}

#[tokio::test]
async fn top_is_live_in_a_terminal_and_gives_it_back() {
    let mut served = Sluice::with_limits(LIMITS).await;
    deny(&served, "acme");
    let terminal = Terminal::open(90, 20);
    terminal.shows("shell$").await;
    let program = env!("CARGO_BIN_EXE_sluice");
    terminal.enter(&format!("{program} top --admin {}; echo code $?", served.admin));
    terminal.shows("d:tenant=acme").await;
    deny(&served, "globex");
    let screen = terminal.shows("denied 1  d:tenant=globex").await;
    assert!(screen.contains("Requests denied in the last 300 s") && !screen.contains("shell$"), "{screen}");
    terminal.type_in("u");
    terminal.shows("Units used in the last").await;
    terminal.resize(30, 6);
    terminal.shows("too small").await;
    terminal.resize(90, 20);
    terminal.shows("Units used in the last").await;

    // The server goes and comes back at the same port.
    served.process.signal("TERM");
    served.process.exit().await;
    terminal.shows("away: no server at").await;
    let admin = served.admin.to_string();
    let dir = directory(&[("config/limits/limits.yaml", LIMITS)]);
    let command = serve(dir.path(), &["--grpc", "127.0.0.1:0", "--admin", &admin]);
    let served = Sluice::start(dir, command).await;
    terminal.shows("  live").await;
    terminal.type_in("d");
    until("the events of the new server", async || {
        // The stream is opened again a moment after the server is back.
        run(&mut sluice(served.dir.path(), &["try", "--grpc", &served.grpc, "d", "tenant=initech"]));
        let screen = terminal.tmux(&["capture-pane", "-p"]);
        let lines = screen.lines().filter(|line| line.contains("d:tenant=initech")).count();
        if lines >= 2 { Ok(()) } else { Err(screen) }
    })
    .await;

    terminal.type_in("q");
    let screen = terminal.shows("code 0").await;
    assert!(screen.contains("shell$") && !screen.contains("What happened"), "{screen}");
    terminal.enter("echo it $((40 + 2))");
    terminal.shows("it 42").await;
}

#[tokio::test]
async fn without_a_terminal_top_prints_once() {
    let served = Sluice::with_limits(LIMITS).await;
    deny(&served, "acme\u{1b}[2J");
    let admin = served.admin.to_string();
    let top = |more: &[&str]| {
        let ran = run(&mut sluice(served.dir.path(), &[&["top", "--admin", &admin], more].concat()));
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{ran:?}");
        ran.stdout
    };
    let denied = until("the denial to be counted", async || {
        let text = top(&[]);
        if text.contains("tenant") { Ok(text) } else { Err(text) }
    });
    assert_eq!(denied.await, "Requests denied in the last 300 s\n1  d:tenant=acme%1B[2J:hour\n");
    let json: Value = serde_json::from_str(&top(&["--json", "--by", "used"])).unwrap();
    assert_eq!((&json["by"], &json["keys"][0]["count"]), (&Value::from("used"), &Value::from(1)), "{json}");
    let ran = run(&mut sluice(served.dir.path(), &["top", "--by", "weight"]));
    assert!(ran.code == 1 && ran.stderr.contains("denied, admitted, used"), "{ran:?}");
    let ran = run(sluice(served.dir.path(), &["top", "--admin", "127.0.0.1:1"]).env("SLUICE_ADMIN", ""));
    assert!(ran.code == 1 && ran.stderr.contains("no server at http://127.0.0.1:1"), "{ran:?}");
}
