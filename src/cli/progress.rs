//! A bar on standard error for what takes long: which part is done, and how long the rest will take.
//!
//! Only where that is a terminal, and only after a moment. Refuses to know what is done.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::clock;

/// What is done sooner needs no bar.
const AFTER: Duration = Duration::from_millis(500);

const INTERVAL: Duration = Duration::from_millis(100);

const CELLS: usize = 30;

/// From the begin of the line to its end.
const CLEAR: &str = "\r\x1b[K";

#[derive(Debug)]
pub(super) struct Bar {
    is_terminal: bool,
    began: Instant,
    /// When it was last drawn, if it is to be seen.
    drawn: Option<Instant>,
}

impl Bar {
    pub(super) fn begin() -> Self {
        Self { is_terminal: std::io::stderr().is_terminal(), began: clock::instant(), drawn: None }
    }

    /// Draws it, if it is time for that.
    pub(super) fn draw(&mut self, requests: u64, part: Option<f64>) {
        if !self.is_terminal {
            return;
        }
        let now = clock::instant();
        let due = self.drawn.map_or(self.began + AFTER, |drawn| drawn + INTERVAL);
        if now >= due {
            say(&format!("{CLEAR}{}", bar(requests, part, now - self.began)));
            self.drawn = Some(now);
        }
    }

    /// Makes room for something else.
    pub(super) fn clear(&mut self) {
        if self.drawn.is_some() {
            say(CLEAR);
        }
    }
}

/// A terminal that can't be written to is no reason to stop.
fn say(text: &str) {
    let mut terminal = std::io::stderr().lock();
    let _ = terminal.write_all(text.as_bytes()).and_then(|()| terminal.flush());
}

fn bar(requests: u64, part: Option<f64>, elapsed: Duration) -> String {
    let Some(part) = part.map(|part| part.clamp(0.0, 1.0)) else {
        return format!("{requests} requests");
    };
    let full = (0..CELLS).filter(|cell| ((cell + 1) as f64) <= part * CELLS as f64).count();
    let (full, empty) = ("#".repeat(full), "-".repeat(CELLS - full));
    let mut text = format!("[{full}{empty}] {:>3.0} %, {requests} requests", part * 100.0);
    // Before that nobody knows.
    if part > 0.01 {
        let left_seconds = elapsed.as_secs_f64() * (1.0 - part) / part;
        text.push_str(&format!(", {left_seconds:.0} s left"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_says_how_far_it_is() {
        let after = Duration::from_secs(8);
        assert_eq!(bar(5, None, after), "5 requests");
        assert_eq!(bar(5, Some(0.0), after), format!("[{}]   0 %, 5 requests", "-".repeat(30)));
        let half = format!("[{}{}]  50 %, 1000 requests, 8 s left", "#".repeat(15), "-".repeat(15));
        assert_eq!(bar(1000, Some(0.5), after), half);
        // A file may grow while it is read.
        assert_eq!(bar(7, Some(1.5), after), format!("[{}] 100 %, 7 requests, 0 s left", "#".repeat(30)));
    }
}
