//! The admin port of a running server, asked by a command: where it is, the token, and what its refusals mean.
//!
//! Refuses to know what is asked there.

use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use clap::Args;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

use super::connect::{self, TlsArgs};
use super::{ADMIN_TOKEN, token};
use crate::config::settings::secret::Secret;
use crate::config::settings::value::is_host_and_port;

/// Nobody waits longer for an answer.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);

/// An answer of a server with a hundred thousand limits has some 30 MB.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// Which server's admin port.
#[derive(Debug, Clone, Args)]
pub(super) struct AdminArgs {
    /// The server's admin address: host:port
    #[arg(long, env = "SLUICE_ADMIN", value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    admin: AdminAddress,
    #[command(flatten)]
    tls: TlsArgs,
}

impl AdminArgs {
    /// With the token of the environment.
    pub(super) fn server(&self) -> anyhow::Result<AdminServer> {
        let scheme = if self.tls.is_none() { "http" } else { "https" };
        AdminServer::at(&format!("{scheme}://{}", self.admin.0), &self.tls, token(ADMIN_TOKEN))
    }

    pub(super) fn address(&self) -> &str {
        &self.admin.0
    }
}

/// `host:port`. The URL that `check --against` takes is understood as well; --ca decides about TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
struct AdminAddress(String);

impl FromStr for AdminAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bare = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://")).unwrap_or(text);
        let bare = bare.trim_end_matches('/');
        match is_host_and_port(bare) {
            true => Ok(Self(bare.to_owned())),
            false => Err("must be host:port, as in 127.0.0.1:8080".to_owned()),
        }
    }
}

/// A server whose admin port is asked.
#[derive(Debug, Clone)]
pub(super) struct AdminServer {
    /// Without a slash at its end.
    url: String,
    tls: TlsArgs,
    token: Option<Secret>,
}

impl AdminServer {
    pub(super) fn at(url: &str, tls: &TlsArgs, token: Option<Secret>) -> anyhow::Result<Self> {
        match url.split_once("://") {
            Some(("http", _)) => {}
            Some(("https", _)) if tls.is_none() => {
                bail!("{url} needs --ca, the authority of its certificate")
            }
            Some(("https", _)) => {}
            _ => bail!("{url} must begin with http:// or https://, as in http://127.0.0.1:8080"),
        }
        Ok(Self { url: url.trim_end_matches('/').to_owned(), tls: tls.clone(), token })
    }

    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.ask(Method::GET, path, Bytes::new()).await
    }

    pub(super) async fn post<T: DeserializeOwned>(&self, path: &str, body: Vec<u8>) -> anyhow::Result<T> {
        self.ask(Method::POST, path, body.into()).await
    }

    /// An answer that is no JSON.
    pub(super) async fn text(&self, path: &str) -> anyhow::Result<String> {
        let body = self.bytes(Method::GET, path, Bytes::new()).await?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    async fn ask<T: DeserializeOwned>(&self, method: Method, path: &str, body: Bytes) -> anyhow::Result<T> {
        let body = self.bytes(method, path, body).await?;
        serde_json::from_slice(&body).with_context(|| format!("{} is no Sluice", self.url))
    }

    async fn bytes(&self, method: Method, path: &str, body: Bytes) -> anyhow::Result<Bytes> {
        let mut tasks = JoinSet::new();
        self.read(self.send(method, path, body, &mut tasks).await?).await
    }

    /// An answer that stays open for as long as `tasks` live.
    pub(super) async fn open(&self, path: &str, tasks: &mut JoinSet<()>) -> anyhow::Result<Incoming> {
        let answer = self.send(Method::GET, path, Bytes::new(), tasks).await?;
        Ok(answer.into_body())
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        tasks: &mut JoinSet<()>,
    ) -> anyhow::Result<Response<Incoming>> {
        let url = &self.url;
        let uri: http::Uri = format!("{url}{path}").parse().with_context(|| format!("{url} is no URL"))?;
        let mut request = Request::builder().method(method).uri(uri);
        if !body.is_empty() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {}", token.expose()));
        }
        let request = request.body(Full::new(body)).context("the token can't be sent")?;
        let answer = connect::send(request, &self.tls, tasks).await?;
        match answer.status() {
            StatusCode::OK => Ok(answer),
            StatusCode::UNAUTHORIZED if self.token.is_some() => {
                bail!("{url} needs the admin token, and SLUICE_ADMIN_TOKEN is another")
            }
            StatusCode::UNAUTHORIZED => bail!("{url} needs the admin token: set SLUICE_ADMIN_TOKEN"),
            other => {
                let body = self.read(answer).await?;
                bail!("{url} answered {other}: {}", said(&body))
            }
        }
    }

    async fn read(&self, answer: Response<Incoming>) -> anyhow::Result<Bytes> {
        let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| anyhow::anyhow!("{} stopped in the middle: {error}", self.url))?;
        Ok(body.to_bytes())
    }
}

/// The detail of an error that a Sluice answers, or whatever it was.
fn said(body: &[u8]) -> String {
    let json = serde_json::from_slice::<serde_json::Value>(body).ok();
    let detail = json.as_ref().and_then(|json| json.get("detail")?.as_str());
    detail.map_or_else(|| String::from_utf8_lossy(body).into_owned(), str::to_owned)
}

/// Asks a server one question and waits for the answer, but no longer than a command may take.
pub(super) fn run_within<T>(
    server: &str,
    asking: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")?;
    let answer = runtime.block_on(async { tokio::time::timeout(TIMEOUT, asking).await });
    answer.with_context(|| format!("{server} did not answer in {TIMEOUT:?}"))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_admin_address_is_a_host_and_a_port() {
        for text in ["sluice:8080", "http://sluice:8080", "https://sluice:8080/"] {
            assert_eq!(text.parse(), Ok(AdminAddress("sluice:8080".to_owned())), "{text}");
        }
        for text in ["", "sluice", "http://sluice", "sluice:8080/path", "ftp://sluice:1"] {
            text.parse::<AdminAddress>().unwrap_err();
        }
    }

    #[test]
    fn what_a_server_says_is_its_detail_or_all_of_it() {
        assert_eq!(
            said(br#"{"error": "invalid", "detail": "domain: must not be empty"}"#),
            "domain: must not be empty"
        );
        assert_eq!(said(b"<html>"), "<html>");
    }
}
