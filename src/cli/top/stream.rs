//! The events of a server, as a stream that is opened again whenever it ends.

use std::time::Duration;

use anyhow::{Context, bail};
use http_body_util::BodyExt;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::super::admin::{AdminServer, TIMEOUT};
use super::state::{Happened, Input};

/// Between two tries.
const PAUSE: Duration = Duration::from_secs(1);

/// A server says something every 10 seconds, if only that it is there.
const QUIET: Duration = Duration::from_secs(30);

/// A message is an event of one limit or the problems of the files.
const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// Follows the events until nobody listens.
pub(super) async fn follow(server: AdminServer, to: mpsc::Sender<Input>) {
    while !to.is_closed() {
        // Why a stream ended is not told: the question about the heaviest fails as well, and that is shown.
        let _ = once(&server, &to).await;
        tokio::time::sleep(PAUSE).await;
    }
}

async fn once(server: &AdminServer, to: &mpsc::Sender<Input>) -> anyhow::Result<()> {
    let mut tasks = JoinSet::new();
    let opening = tokio::time::timeout(TIMEOUT, server.open("/v1/events", &mut tasks));
    let mut body = opening.await.context("no answer")??;
    let mut messages = Messages::default();
    while let Some(frame) = tokio::time::timeout(QUIET, body.frame()).await.context("it is quiet")? {
        let Ok(data) = frame?.into_data() else { continue };
        for event in messages.push(&data)? {
            to.send(Input::Happened(event)).await?;
        }
    }
    Ok(())
}

/// Server-sent events out of bytes that come in any pieces.
#[derive(Debug, Default)]
struct Messages {
    rest: Vec<u8>,
}

impl Messages {
    fn push(&mut self, bytes: &[u8]) -> anyhow::Result<Vec<Happened>> {
        self.rest.extend_from_slice(bytes);
        let mut found = Vec::new();
        while let Some(end) = self.rest.windows(2).position(|pair| pair == b"\n\n") {
            let message: Vec<u8> = self.rest.drain(..end + 2).collect();
            found.extend(parse(&String::from_utf8_lossy(&message)));
        }
        if self.rest.len() > MESSAGE_BYTES_MAX {
            bail!("a message is too long");
        }
        Ok(found)
    }
}

/// `None` for what this version doesn't know.
fn parse(message: &str) -> Option<Happened> {
    let field = |name: &str| message.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let data: serde_json::Value = serde_json::from_str(field("data:")?).ok()?;
    serde_json::from_value(serde_json::json!({ field("event:")?: data })).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = "event: denied\ndata: {\"time\":1,\"domain\":\"d\",\"key\":\"d:a=\u{fc}\",\"reason\":\"over_limit\",\
                          \"retry_after_ms\":null,\"denials\":2}\n\n:\n\nevent: new\ndata: {}\n\nevent: ledger\n\
                          data: {\"time\":2,\"up\":false}\n\nevent: reload\ndata: {\"time\":3,\"result\":\"ok\",\
                          \"version\":4,\"problems\":[]}\n\n";

    #[test]
    fn messages_are_found_however_they_are_cut() {
        for size in [1, 7, STREAM.len()] {
            let mut messages = Messages::default();
            let pieces = STREAM.as_bytes().chunks(size);
            let found: Vec<Happened> =
                pieces.flat_map(|piece| messages.push(piece).expect("it must be short enough")).collect();
            let [Happened::Denied { key, denials: 2, .. }, Happened::Ledger { up: false, .. }, last] =
                &found[..]
            else {
                panic!("{found:?}")
            };
            assert_eq!(key, "d:a=\u{fc}");
            assert!(matches!(last, Happened::Reload { version: 4, .. }), "{last:?}");
        }
    }

    #[test]
    fn a_message_without_an_end_is_given_up() {
        let mut messages = Messages::default();
        messages.push(&vec![b'x'; MESSAGE_BYTES_MAX]).expect("that may still end");
        messages.push(b"x").unwrap_err();
    }
}
