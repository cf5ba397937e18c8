//! `sluice check`: what `serve` would say about the files, and what a running server would do about them.

use std::process::ExitCode;

use serde_json::json;

use super::admin::{AdminServer, run_within};
use super::{ADMIN_TOKEN, CheckArgs, complain, print_json, token};
use crate::admin::config::LiveOutline;
use crate::config::settings::secret::read_token;
use crate::config::{Loaded, Problem};
use crate::control::as_json;
use crate::registry::changes::{self, ConfigChange};
use crate::registry::outline::Outline;

pub(super) fn run(args: &CheckArgs) -> ExitCode {
    let loaded = match args.config.load() {
        Ok(loaded) => loaded,
        Err(problems) => {
            match args.json {
                true => print_json(&json!({ "problems": problems })),
                false => print_problems(&problems),
            }
            return ExitCode::FAILURE;
        }
    };
    if !args.json {
        print_loaded(&loaded);
    }
    let against = args.against.as_deref().map(|url| (url, plan(args, url, &loaded)));
    let plan = match against {
        None => None,
        Some((url, Ok(plan))) => Some((url, plan)),
        Some((_, Err(error))) => return complain(&error),
    };
    match (args.json, plan) {
        (false, None) => {}
        (false, Some((url, plan))) => plan.print(url),
        (true, None) => print_json(&json!({"problems": [], "warnings": loaded.hot.warnings})),
        (true, Some((_, plan))) => {
            let changes: Vec<String> = plan.changes.iter().map(ConfigChange::to_string).collect();
            print_json(&json!({"problems": [], "warnings": loaded.hot.warnings, "changes": changes}));
        }
    }
    ExitCode::SUCCESS
}

fn print_loaded(loaded: &Loaded) {
    for warning in &loaded.hot.warnings {
        println!("warning: {warning}");
    }
    let domains = loaded.hot.registry.domain_names().count();
    let named = loaded.hot.registry.named().count();
    let files = loaded.hot.files.len();
    println!("ok: {files} files, {domains} domains, {named} named limits");
}

/// What a reload of these files would change in a server.
struct ReloadPlan {
    /// What is live there.
    version: u64,
    changes: Vec<ConfigChange>,
}

impl ReloadPlan {
    fn print(&self, url: &str) {
        for change in &self.changes {
            println!("{change}");
        }
        let what =
            if self.changes.is_empty() { "no changes".to_owned() } else { changes::summary(&self.changes) };
        println!("against {url}, version {}: {what}", self.version);
    }
}

fn plan(args: &CheckArgs, url: &str, loaded: &Loaded) -> anyhow::Result<ReloadPlan> {
    let token = match (token(ADMIN_TOKEN), &loaded.settings.admin.token_file) {
        (Some(token), _) => Some(token),
        (None, Some(file)) => read_token(file).ok(),
        (None, None) => None,
    };
    let server = AdminServer::at(url, &args.tls, token)?;
    let live: LiveOutline = run_within(url, server.get("/v1/config/limits"))?;
    Ok(ReloadPlan { version: live.version, changes: changes_against(&live, loaded) })
}

fn changes_against(live: &LiveOutline, loaded: &Loaded) -> Vec<ConfigChange> {
    let mut files = Outline::of(&loaded.hot.registry);
    files.keep_api_limits_of(&live.limits);
    let mut changes = changes::between(&live.limits, &files);
    changes.extend(changes::of_policy(&live.retry_policy, &as_json(&loaded.hot.retry_policy)));
    changes
}

/// Every problem on a line of its own, on standard error.
pub(super) fn print_problems(problems: &[Problem]) {
    for problem in problems {
        eprintln!("{problem}");
    }
    let count = problems.len();
    eprintln!("{count} {} found", if count == 1 { "problem" } else { "problems" });
}
