//! One GET that follows the retry rules, and says what it does.
//!
//! ```text
//! cargo run --example retrying_client -- http://127.0.0.1:10000/path
//! ```
//! Exits 0 when the last answer is a success, else 1. The rules are `sluice::client`; this file is the HTTP client
//! around them, with a deadline on each attempt.

use std::process::ExitCode;
use std::time::Duration;

use http::{Method, Request, Uri};
use http_body_util::Empty;
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use sluice::client::{Outcome, Repeat, Rules, mark, retrying};

const CONNECT_TIMEOUT: Duration = Duration::from_millis(350);
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(3);

type HttpClient = Client<HttpConnector, Empty<&'static [u8]>>;

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let url = std::env::args().nth(1);
    let url: Uri =
        url.ok_or_else(|| anyhow::anyhow!("usage: retrying_client http://host:port/path"))?.parse()?;
    let mut connector = HttpConnector::new();
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    let client: HttpClient = Client::builder(TokioExecutor::new()).build(connector);

    let attempt = async |number| send(&client, &url, number).await;
    let sleep = async |wait: Duration| {
        println!("  waiting {} ms", wait.as_millis());
        tokio::time::sleep(wait).await;
    };
    let dice = |n| fastrand::u64(0..=n);
    let repeat = Repeat::from(&Method::GET);
    let (served, stop) = retrying(&Rules::default(), repeat, attempt, sleep, dice).await;
    println!("  done: {stop:?}");
    Ok(if served { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// One attempt; the flag says whether it was served.
async fn send(client: &HttpClient, url: &Uri, number: u32) -> (Outcome, bool) {
    let mut request = Request::new(Empty::new());
    *request.uri_mut() = url.clone();
    mark(request.headers_mut(), number);
    let answer = match tokio::time::timeout(ATTEMPT_TIMEOUT, client.request(request)).await {
        Err(_) => {
            println!("attempt {number}: no answer in {} s", ATTEMPT_TIMEOUT.as_secs());
            return (Outcome::Lost, false);
        }
        Ok(Err(error)) => {
            println!("attempt {number}: {error}");
            return (if error.is_connect() { Outcome::NotSent } else { Outcome::Lost }, false);
        }
        Ok(Ok(answer)) => answer,
    };
    let outcome = Outcome::of(answer.status(), answer.headers());
    println!("attempt {number}: {} {outcome:?}", answer.status());
    (outcome, answer.status().is_success())
}
