//! The page at `/`: three files in the binary, and the stream that fills them.
//!
//! The files hold nothing of this server and are served without the token; the stream needs it like any read.

use std::convert::Infallible;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::sse;
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt, stream};
use serde::{Deserialize, Serialize};

use super::Admin;
use super::config::ConfigView;
use super::error::ApiError;
use super::events;
use super::limits::LimitView;
use super::overviews::next_second;
use super::top::HeavyView;
use crate::activity::By;
use crate::clock;
use crate::service::watch::{Listing, Sort};

/// Where the page's files are.
pub(super) const FILES: [&str; 3] = ["/", "/page.js", "/page.css"];

const HTML: &str = include_str!("page/index.html");
const SCRIPT: &str = include_str!("page/page.js");
const STYLE: &str = include_str!("page/page.css");

/// Nothing from elsewhere, nothing inline, in nobody's frame. The one image is the empty icon.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const LIMITS_SHOWN: usize = 200;
const HEAVY_SHOWN: usize = 10;

pub(crate) async fn html() -> Response {
    file(HTML, "text/html; charset=utf-8")
}

pub(crate) async fn script() -> Response {
    file(SCRIPT, "text/javascript; charset=utf-8")
}

pub(crate) async fn style() -> Response {
    file(STYLE, "text/css; charset=utf-8")
}

fn file(text: &'static str, kind: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        // A new binary may have another page.
        (header::CACHE_CONTROL, "no-cache"),
    ];
    let mut response = text.into_response();
    for (name, value) in headers {
        let (name, value): (HeaderName, _) = (name, HeaderValue::from_static(value));
        response.headers_mut().insert(name, value);
    }
    response
}

#[derive(Debug, Deserialize)]
pub(crate) struct LiveQuery {
    #[serde(default)]
    prefix: String,
}

/// Everything that the page shows.
#[derive(Serialize)]
struct Overview<'o> {
    time: u64,
    version: &'static str,
    /// Why requests can't be answered; null if they can.
    ready: Option<String>,
    ledger_up: bool,
    decisions: Decisions,
    denied: Vec<HeavyView>,
    used: Vec<HeavyView>,
    /// Null while the ledger can't be asked.
    limits: Option<Vec<LimitView<'o>>>,
    limits_total: usize,
    line: Vec<QueueRow>,
    config: ConfigView,
}

/// Since the start.
#[derive(Serialize)]
struct Decisions {
    allowed: u64,
    denied: std::collections::BTreeMap<&'static str, u64>,
}

#[derive(Serialize)]
struct QueueRow {
    key: String,
    jobs: usize,
    amount: u64,
}

/// `GET /v1/live`: the events of `/v1/events`, and an overview once a second.
pub(crate) async fn live(
    State(admin): State<Admin>,
    query: Result<Query<LiveQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(LiveQuery { prefix }) = query?;
    let listing = Listing { prefix, sort: Sort::Used, limit: LIMITS_SHOWN };
    let happened = events::of(&admin.service)?;
    let overviews = overviews(admin, listing);
    // The stream ends when either does: both end when the server stops.
    Ok(events::sent(stream::select(happened, overviews)))
}

fn overviews(admin: Admin, listing: Listing) -> impl Stream<Item = Result<sse::Event, Infallible>> {
    let is_first = true;
    let messages = stream::unfold((admin, listing, is_first), |(admin, listing, is_first)| async move {
        if !is_first {
            tokio::select! {
                () = next_second() => {}
                () = admin.service.watching_ends() => return None,
            }
        }
        let text = admin.overviews.get(&listing.prefix, overview(&admin, &listing)).await;
        let message = sse::Event::default().event("overview").data(text);
        Some((Ok(message), (admin, listing, false)))
    });
    messages.fuse()
}

async fn overview(admin: &Admin, listing: &Listing) -> String {
    let service = &admin.service;
    let (decided, found) = (service.decided(), service.find_limits(listing).await.ok());
    let limits_total = found.as_ref().map_or(0, |found| found.total);
    let line = service.lines(HEAVY_SHOWN).into_iter();
    let overview = Overview {
        time: clock::unix_ms(),
        version: env!("CARGO_PKG_VERSION"),
        ready: service.ready().err(),
        ledger_up: service.is_ledger_up(),
        decisions: Decisions {
            allowed: decided.allowed,
            denied: decided.denied().map(|(reason, count)| (reason.name(), count)).collect(),
        },
        denied: HeavyView::list(service, By::Denied, None, HEAVY_SHOWN),
        used: HeavyView::list(service, By::Used, None, HEAVY_SHOWN),
        limits: found.as_ref().map(|found| found.limits.iter().map(LimitView::new).collect()),
        limits_total,
        line: line
            .map(|it| QueueRow { key: it.limit.to_string(), jobs: it.jobs, amount: it.amount })
            .collect(),
        config: ConfigView::new(admin),
    };
    serde_json::to_string(&overview).unwrap_or_default()
}
