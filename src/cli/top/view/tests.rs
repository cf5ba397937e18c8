//! Screens of every kind, drawn without a terminal.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use serde_json::json;

use super::super::state::{Heaviest, Input};
use super::*;

fn screen(state: &TopState, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a test screen must open");
    terminal.draw(|frame| draw(state, frame)).expect("a test screen must take it");
    let buffer = terminal.backend().buffer();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..height).map(|y| line(y).trim_end().to_owned() + "\n").collect()
}

fn heaviest(by: &str, keys: serde_json::Value) -> Input {
    let answer = json!({"by": by, "window_seconds": 300, "keys": keys});
    Input::Heaviest(Ok(serde_json::from_value::<Heaviest>(answer).expect("a test must be an answer")))
}

fn two() -> serde_json::Value {
    json!([
        {"key": "d:tenant=acme:rph", "domain": "d", "count": 1200, "error": 0},
        {"key": "d:tenant=\u{1b}[2Jevil:rph", "domain": "d", "count": 12, "error": 2},
    ])
}

fn denied() -> Input {
    let (key, reason) = ("d:tenant=acme:rph".to_owned(), "over_limit".to_owned());
    let retry_after_ms = Some(1500);
    Input::Happened(Happened::Denied { time: 3_723_000, key, reason, retry_after_ms, denials: 7 })
}

fn state(inputs: impl IntoIterator<Item = Input>) -> TopState {
    let mut state = TopState::new("127.0.0.1:8080", By::Denied);
    inputs.into_iter().for_each(|input| state.take(input));
    state
}

#[test]
fn the_heaviest_and_the_events_are_shown() {
    let ledger = Input::Happened(Happened::Ledger { time: 3_724_000, up: false });
    let state = state([heaviest("denied", two()), denied(), ledger]);
    insta::assert_snapshot!(screen(&state, 80, 14), @r"
    sluice top  127.0.0.1:8080  live
    Requests denied in the last 300 s───────────────────────────────────────────────
    count domain               limit
     1200 d                    d:tenant=acme:rph
    10-12 d                    d:tenant=\u{1b}[2Jevil:rph




    What happened (UTC), the latest first───────────────────────────────────────────
    01:02:04  the ledger does not answer
    01:02:03  denied 7  d:tenant=acme:rph  over_limit, told to come in 1500 ms

    d denied  a admitted  u used  q quit
    ");
}

#[test]
fn a_server_that_is_away_leaves_what_was_known() {
    let mut state = state([heaviest("denied", two()), Input::Heaviest(Err("no server".to_owned()))]);
    let away = screen(&state, 80, 14);
    assert!(away.starts_with("sluice top  127.0.0.1:8080  away: no server\n"), "{away}");
    assert!(away.contains("acme"), "{away}");
    state.take(heaviest("denied", json!([])));
    let back = screen(&state, 80, 14);
    assert!(back.contains("  live\n") && back.contains("\nnone\n"), "{back}");
}

#[test]
fn another_count_is_asked_for_anew_and_a_late_answer_is_dropped() {
    let mut state = state([heaviest("denied", two()), Input::Count(By::Used)]);
    assert!(screen(&state, 80, 14).contains("Units used─"), "{}", screen(&state, 80, 14));
    state.take(heaviest("denied", two()));
    assert!(screen(&state, 80, 14).contains("asking …"));
    state.take(heaviest("used", two()));
    assert!(screen(&state, 80, 14).contains("Units used in the last 300 s"));
}

#[test]
fn a_terminal_of_any_size_is_drawn() {
    let state = state([heaviest("denied", two()), denied()]);
    for width in (0..=WIDTH_MIN).chain([500]) {
        for height in (0..=HEIGHT_MIN).chain([300]) {
            let screen = screen(&state, width, height);
            let is_small = width < WIDTH_MIN || height < HEIGHT_MIN;
            assert_eq!(screen.contains("1200"), !is_small, "{width} x {height}:\n{screen}");
        }
    }
    assert!(screen(&state, 30, 5).starts_with("The terminal is too small: 40"));
}

#[test]
fn events_are_bounded() {
    let state = state((0..1000).map(|_| denied()));
    assert_eq!(state.events.len(), 200);
}

#[test]
fn without_a_screen_it_is_text() {
    insta::assert_snapshot!(text(&state([heaviest("denied", two())])), @r"
    Requests denied in the last 300 s
     1200  d:tenant=acme:rph
    10-12  d:tenant=\u{1b}[2Jevil:rph
    ");
    assert_eq!(text(&state([heaviest("denied", json!([]))])), "Requests denied in the last 300 s\nnone\n");
}
