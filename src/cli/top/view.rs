//! How the state looks: on a screen of any size, and as text. Pure.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Table, Wrap};

use super::super::text::plain;
use super::state::{Happened, Heavy, TopState};
use crate::activity::By;

/// Below this there is no room for a key.
const WIDTH_MIN: u16 = 40;
const HEIGHT_MIN: u16 = 10;

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const DIM: Style = Style::new().add_modifier(Modifier::DIM);
const REVERSED: Style = Style::new().add_modifier(Modifier::REVERSED);

pub(super) fn draw(state: &TopState, frame: &mut Frame<'_>) {
    let area = frame.area();
    if area.width < WIDTH_MIN || area.height < HEIGHT_MIN {
        let text = format!(
            "The terminal is too small: {WIDTH_MIN} columns and {HEIGHT_MIN} lines are needed. q quits."
        );
        return frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), area);
    }
    let [top, heaviest, events, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Percentage(60),
        Constraint::Min(3),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(status(state)), top);
    draw_heaviest(state, frame, heaviest);
    draw_events(state, frame, events);
    frame.render_widget(Paragraph::new(keys_line(state)), keys);
}

fn status(state: &TopState) -> Line<'_> {
    let name = Span::styled(format!("sluice top  {}  ", state.server), BOLD);
    match &state.away {
        None => Line::from(vec![name, Span::raw("live")]),
        Some(why) => Line::from(vec![name, Span::styled(format!("away: {}", plain(why)), REVERSED)]),
    }
}

/// What is counted, in words.
fn title(state: &TopState) -> String {
    let what = match state.by {
        By::Denied => "Requests denied",
        By::Admitted => "Requests admitted",
        By::Used => "Units used",
    };
    match &state.heaviest {
        Some(heaviest) => format!("{what} in the last {} s", heaviest.window_seconds),
        None => what.to_owned(),
    }
}

fn draw_heaviest(state: &TopState, frame: &mut Frame<'_>, area: Rect) {
    let block = Block::new().borders(Borders::TOP).title(title(state));
    let heavy = match &state.heaviest {
        Some(heaviest) if !heaviest.keys.is_empty() => &heaviest.keys,
        found => {
            let text = if found.is_some() { "none" } else { "asking …" };
            return frame.render_widget(Paragraph::new(text).style(DIM).block(block), area);
        }
    };
    let rows = heavy.iter().map(|heavy| {
        let count = Line::from(count(heavy)).right_aligned();
        Row::new([Cell::from(count), Cell::from(plain(&heavy.domain)), Cell::from(plain(&heavy.key))])
    });
    let count_width = heavy.iter().map(|heavy| count(heavy).len()).max().unwrap_or(0).max(5);
    let widths = [
        Constraint::Length(u16::try_from(count_width).unwrap_or(u16::MAX)),
        Constraint::Max(20),
        Constraint::Fill(3),
    ];
    let header = Row::new([Cell::from(Line::from("count").right_aligned()), "domain".into(), "limit".into()]);
    frame.render_widget(Table::new(rows, widths).header(header.style(DIM)).block(block), area);
}

/// The true number is between both.
fn count(heavy: &Heavy) -> String {
    match heavy.error {
        0 => heavy.count.to_string(),
        error => format!("{}-{}", heavy.count.saturating_sub(error), heavy.count),
    }
}

fn draw_events(state: &TopState, frame: &mut Frame<'_>, area: Rect) {
    let block = Block::new().borders(Borders::TOP).title("What happened (UTC), the latest first");
    let lines: Vec<Line<'_>> = match state.events.is_empty() {
        true => vec![Line::styled("nothing since this was opened", DIM)],
        false => state.events.iter().take(area.height.into()).map(|it| Line::from(happened(it))).collect(),
    };
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

fn happened(event: &Happened) -> String {
    match event {
        Happened::Denied { time, key, reason, retry_after_ms, denials } => {
            let again = match retry_after_ms {
                Some(ms) => format!(", told to come in {ms} ms"),
                None => String::new(),
            };
            format!("{}  denied {denials}  {}  {}{again}", clock(*time), plain(key), plain(reason))
        }
        Happened::Reload { time, result, version } if result == "ok" => {
            format!("{}  version {version} of the files is live", clock(*time))
        }
        Happened::Reload { time, version, .. } => {
            format!("{}  the files are wrong; version {version} stays live", clock(*time))
        }
        Happened::Ledger { time, up: true } => format!("{}  the ledger answers", clock(*time)),
        Happened::Ledger { time, up: false } => format!("{}  the ledger does not answer", clock(*time)),
    }
}

/// The time of day, UTC.
fn clock(unix_ms: u64) -> String {
    let seconds = unix_ms / 1000 % 86_400;
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

fn keys_line(state: &TopState) -> Line<'static> {
    let key = |by: By, text: &'static str| match by == state.by {
        true => Span::styled(text, REVERSED),
        false => Span::raw(text),
    };
    Line::from(vec![
        key(By::Denied, "d denied"),
        Span::raw("  "),
        key(By::Admitted, "a admitted"),
        Span::raw("  "),
        key(By::Used, "u used"),
        Span::raw("  q quit"),
    ])
}

/// The heaviest, where there is no screen.
pub(super) fn text(state: &TopState) -> String {
    let keys = state.heaviest.as_ref().map_or(&[][..], |heaviest| &heaviest.keys);
    let mut text = format!("{}\n", title(state));
    if keys.is_empty() {
        text.push_str("none\n");
    }
    let width = keys.iter().map(|heavy| count(heavy).len()).max().unwrap_or(0);
    for heavy in keys {
        text.push_str(&format!("{:>width$}  {}\n", count(heavy), plain(&heavy.key)));
    }
    text
}

#[cfg(test)]
mod tests;
