//! `sluice top`: the heaviest limits of a running server and what happens there, in a terminal.
//!
//! One loop waits for a key, an answer, an event or a tick, and draws the [`TopState`]. Without a terminal, or with `--json`, it
//! prints once. Refuses to know how anything looks.

mod state;
mod stream;
mod view;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use serde::Deserialize;
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use self::state::{Heaviest, Input, TopState};
use super::admin::{AdminServer, TIMEOUT, run_within};
use super::{TopArgs, complain, print_json};
use crate::activity::By;

/// How often the heaviest are asked for.
const INTERVAL: Duration = Duration::from_secs(1);

/// How long a look for a key lasts, so that the thread that looks notices that nobody listens any more.
const KEY_WAIT: Duration = Duration::from_millis(200);

/// What may wait to be drawn: the server sends at most 100 events a second.
const INPUTS_MAX: usize = 256;

pub(super) fn run(args: &TopArgs) -> ExitCode {
    match top(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(&error),
    }
}

fn top(args: &TopArgs) -> anyhow::Result<()> {
    let server = args.server.server()?;
    // Asked before the terminal is taken, so that a wrong address or token is said like any mistake.
    let json: Value = run_within(args.server.address(), server.get(&path(args.by)))?;
    if args.json {
        print_json(&json);
        return Ok(());
    }
    let mut state = TopState::new(args.server.address(), args.by);
    state.take(Input::Heaviest(Ok(Heaviest::deserialize(&json)?)));
    if !std::io::stdout().is_terminal() {
        print!("{}", view::text(&state));
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")?;
    // Sets a panic hook that gives the terminal back, too.
    let terminal = ratatui::try_init().context("this terminal can't be used")?;
    let ended = runtime.block_on(watch(terminal, state, server));
    ratatui::restore();
    ended
}

fn path(by: By) -> String {
    format!("/v1/top?by={}&limit=100", by.name())
}

/// Draws until somebody quits, or the terminal or the process has to go.
async fn watch(
    mut terminal: DefaultTerminal,
    mut state: TopState,
    server: AdminServer,
) -> anyhow::Result<()> {
    let (sender, mut inputs) = mpsc::channel(INPUTS_MAX);
    // Reading a terminal blocks, so it has a thread; it ends when `keys` is dropped.
    let (key_sender, mut keys) = mpsc::channel(INPUTS_MAX);
    std::thread::spawn(move || while send_key(&key_sender) {});
    let mut tasks = JoinSet::new();
    tasks.spawn(stream::follow(server.clone(), sender));
    let mut asking = JoinSet::new();
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut terminate, mut hangup) = (signal(SignalKind::terminate())?, signal(SignalKind::hangup())?);
    while !state.is_done {
        terminal.draw(|frame| view::draw(&state, frame)).context("the terminal")?;
        let asked = state.by;
        let input = tokio::select! {
            key = keys.recv() => key.unwrap_or(Input::Quit),
            Some(input) = inputs.recv() => input,
            Some(answer) = asking.join_next() => Input::Heaviest(answer.unwrap_or_else(|error| Err(error.to_string()))),
            _ = ticks.tick() => {
                // One question at a time: a server that is slow is not asked more.
                if asking.is_empty() {
                    asking.spawn(ask(server.clone(), state.by));
                }
                continue;
            }
            _ = terminate.recv() => Input::Quit,
            _ = hangup.recv() => Input::Quit,
        };
        state.take(input);
        if state.by != asked {
            // The question under way is about another list, which is not shown any more.
            asking.abort_all();
            while asking.join_next().await.is_some() {}
            asking.spawn(ask(server.clone(), state.by));
        }
    }
    Ok(())
}

async fn ask(server: AdminServer, by: By) -> Result<Heaviest, String> {
    let path = path(by);
    let answer = tokio::time::timeout(TIMEOUT, server.get(&path)).await;
    let answer = answer.map_err(|_| format!("no answer in {TIMEOUT:?}"))?;
    answer.map_err(|error| format!("{error:#}"))
}

/// Looks for a key once. False when there is nobody to tell, or no terminal.
fn send_key(keys: &mpsc::Sender<Input>) -> bool {
    let read = match event::poll(KEY_WAIT) {
        Ok(true) => event::read(),
        Ok(false) => return !keys.is_closed(),
        Err(_) => return false,
    };
    match read.map(input_of) {
        Ok(Some(input)) => keys.blocking_send(input).is_ok(),
        Ok(None) => true,
        Err(_) => false,
    }
}

fn input_of(event: Event) -> Option<Input> {
    match event {
        Event::Resize(..) => Some(Input::Redraw),
        Event::Key(key) if key.kind != KeyEventKind::Release => match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Some(Input::Quit),
            KeyCode::Char('q') | KeyCode::Esc => Some(Input::Quit),
            KeyCode::Char('d') => Some(Input::Count(By::Denied)),
            KeyCode::Char('a') => Some(Input::Count(By::Admitted)),
            KeyCode::Char('u') => Some(Input::Count(By::Used)),
            _ => None,
        },
        _ => None,
    }
}
