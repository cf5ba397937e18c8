//! `sluice check`: what `serve` would say about the files, and what a running server would do about them.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use http::{StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty, Limited};
use tokio::task::JoinSet;

use super::connect::{self, TlsArgs};
use super::{ADMIN_TOKEN, CheckArgs, complain, token};
use crate::admin::config::LiveOutline;
use crate::config::settings::secret::{Secret, read_token};
use crate::config::{self, Loaded, Problem};
use crate::control::as_json;
use crate::registry::changes::{self, Change};
use crate::registry::outline::Outline;

/// Nobody waits longer for an answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// An answer of a server with a hundred thousand limits has some 30 MB.
const ANSWER_BYTES_MAX: usize = 256 << 20;

pub(super) fn run(args: &CheckArgs) -> ExitCode {
    let loaded = match config::load(args.config.config_dir.as_deref()) {
        Ok(loaded) => loaded,
        Err(problems) => {
            print_problems(&problems);
            return ExitCode::FAILURE;
        }
    };
    for warning in &loaded.hot.warnings {
        println!("warning: {warning}");
    }
    let domains = loaded.hot.registry.domain_names().count();
    let named = loaded.hot.registry.named().count();
    let files = loaded.hot.files.len();
    println!("ok: {files} files, {domains} domains, {named} named limits");
    match &args.against {
        None => ExitCode::SUCCESS,
        Some(url) => match plan(url, &args.tls, &loaded) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => complain(&error),
        },
    }
}

/// Prints what a reload of these files would change in the server at `url`.
fn plan(url: &str, tls: &TlsArgs, loaded: &Loaded) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")?;
    let token = match (token(ADMIN_TOKEN), &loaded.settings.admin.token_file) {
        (Some(token), _) => Some(token),
        (None, Some(file)) => read_token(file).ok(),
        (None, None) => None,
    };
    let asking = async { tokio::time::timeout(TIMEOUT, ask(url, tls, token)).await };
    let live = runtime.block_on(asking).with_context(|| format!("{url} did not answer in {TIMEOUT:?}"))??;
    let changes = changes_against(&live, loaded);
    for change in &changes {
        println!("{change}");
    }
    let what = if changes.is_empty() { "no changes".to_owned() } else { changes::summary(&changes) };
    println!("against {url}, version {}: {what}", live.version);
    Ok(())
}

fn changes_against(live: &LiveOutline, loaded: &Loaded) -> Vec<Change> {
    let mut files = Outline::of(&loaded.hot.registry);
    files.keep_api_limits_of(&live.limits);
    let mut changes = changes::between(&live.limits, &files);
    changes.extend(changes::of_policy(&live.retry_policy, &as_json(&loaded.hot.retry_policy)));
    changes
}

async fn ask(url: &str, tls: &TlsArgs, token: Option<Secret>) -> anyhow::Result<LiveOutline> {
    let base = url.trim_end_matches('/');
    match base.split_once("://") {
        Some(("http", _)) => {}
        Some(("https", _)) if tls.is_none() => bail!("{url} needs --ca, the authority of its certificate"),
        Some(("https", _)) => {}
        _ => bail!("{url} must begin with http:// or https://, as in http://127.0.0.1:8080"),
    }
    let uri: Uri = format!("{base}/v1/config/limits").parse().with_context(|| format!("{url} is no URL"))?;
    let mut request = http::Request::get(uri);
    if let Some(token) = token {
        request = request.header(header::AUTHORIZATION, format!("Bearer {}", token.expose()));
    }
    let request = request.body(Empty::<Bytes>::new()).context("the token can't be sent")?;
    let mut tasks = JoinSet::new();
    let response = connect::get(request, tls, &mut tasks).await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
    let body = body.map_err(|error| anyhow::anyhow!("{url} stopped in the middle: {error}"))?.to_bytes();
    match status {
        StatusCode::OK => serde_json::from_slice(&body).with_context(|| format!("{url} is no Sluice")),
        StatusCode::UNAUTHORIZED => bail!("{url} needs the admin token: set SLUICE_ADMIN_TOKEN"),
        other => bail!("{url} answered {other}: {}", String::from_utf8_lossy(&body)),
    }
}

/// Every problem on a line of its own, on standard error.
pub(super) fn print_problems(problems: &[Problem]) {
    for problem in problems {
        eprintln!("{problem}");
    }
    let count = problems.len();
    eprintln!("{count} {} found", if count == 1 { "problem" } else { "problems" });
}
