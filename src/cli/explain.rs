//! `sluice explain`: which limits a request would meet, where each is written, what each has left, and why it would pass.
//!
//! The server knows all of it; here it gets words.

use std::process::ExitCode;

use serde::Deserialize;
use serde_json::{Value, json};

use super::admin::run_within;
use super::text::plain;
use super::{DENIED, ExplainArgs, complain, print_json};

/// What is read of the answer of `/v1/explain`.
#[derive(Debug, Deserialize)]
struct Explained {
    overall_code: String,
    limits: Vec<Limit>,
}

#[derive(Debug, Deserialize)]
struct Limit {
    key: String,
    capacity: u64,
    window_seconds: Option<u32>,
    timeout_seconds: Option<u32>,
    pending_decrease_to: Option<u64>,
    /// These three are null while the ledger can't be asked.
    used: Option<u64>,
    available: Option<u64>,
    debt: Option<u64>,
    slab: Option<Slab>,
    origin: String,
    amount: u64,
    passes: bool,
    reason: String,
    enforcement: String,
}

#[derive(Debug, Deserialize)]
struct Slab {
    held: u64,
}

pub(super) fn run(args: &ExplainArgs) -> ExitCode {
    match ask(args) {
        Ok((json, explained)) => {
            match args.json {
                true => print_json(&json),
                false => print!("{}", text(&explained)),
            }
            if explained.overall_code == "OVER_LIMIT" { ExitCode::from(DENIED) } else { ExitCode::SUCCESS }
        }
        Err(error) => complain(&error),
    }
}

fn ask(args: &ExplainArgs) -> anyhow::Result<(Value, Explained)> {
    let server = args.server.server()?;
    let entries: Vec<Value> =
        args.request.entries.iter().map(|(key, value)| json!({"key": key, "value": value})).collect();
    let descriptor = json!({"entries": entries, "hitsAddend": args.request.hits.to_string()});
    let body = json!({"domain": args.request.domain, "descriptors": [descriptor]}).to_string();
    let asking = server.post::<Value>("/v1/explain", body.into_bytes());
    let json = run_within(args.server.address(), asking)?;
    let explained = Explained::deserialize(&json)?;
    Ok((json, explained))
}

fn text(explained: &Explained) -> String {
    let mut text = format!("overall_code: {}\n", plain(&explained.overall_code));
    if explained.limits.is_empty() {
        text.push_str("no limit matches\n");
    }
    for limit in &explained.limits {
        let lines = [limit.left(), limit.why()];
        text.push_str(&format!("\n{}\n  written in {}\n", plain(&limit.key), plain(&limit.origin)));
        for line in lines {
            text.push_str(&format!("  {line}\n"));
        }
    }
    text
}

impl Limit {
    fn left(&self) -> String {
        let capacity = self.capacity;
        let mut text = match (self.window_seconds, self.timeout_seconds) {
            (Some(seconds), _) => format!("{capacity} in {seconds} s"),
            (None, Some(_)) => format!("{capacity} at a time"),
            (None, None) => capacity.to_string(),
        };
        if let Some(to) = self.pending_decrease_to {
            text.push_str(&format!(", decreasing to {to}"));
        }
        match (self.used, self.available) {
            (Some(used), Some(left)) => text.push_str(&format!(": {used} used, {left} left")),
            _ => text.push_str(": what is left is not known, because the ledger does not answer"),
        }
        if let Some(slab) = &self.slab {
            text.push_str(&format!(" and {} in a slab of this instance", slab.held));
        }
        match self.debt {
            None | Some(0) => {}
            Some(debt) => text.push_str(&format!(", {debt} owed")),
        }
        text
    }

    fn why(&self) -> String {
        let amount = self.amount;
        if self.passes {
            return format!("passes: the request takes {amount}");
        }
        let because = match self.reason.as_str() {
            "over_limit" => format!("the request takes {amount}, which is more than what is left"),
            "never_fits" => format!("the request takes {amount}, which is more than the whole limit"),
            "limit_decreasing" => "nothing is admitted until the limit has come down".to_owned(),
            "debt" => "nothing is admitted until what is owed has been paid".to_owned(),
            _ => format!("the request takes {amount}"),
        };
        let reason = plain(&self.reason);
        match self.enforcement.as_str() {
            "shadow" => {
                format!("would deny, {reason}: {because}; but it is in shadow mode, which never denies")
            }
            "quota" => {
                format!(
                    "over, {reason}: {because}; a quota denies only if all quotas of the request are over"
                )
            }
            _ => format!("denies, {reason}: {because}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(more: &Value) -> String {
        let mut limit = json!({
            "key": "d:a=1", "capacity": 3, "window_seconds": 60, "used": 3, "available": 0, "debt": 0,
            "origin": "limits/a.yaml:4", "amount": 1, "passes": false, "reason": "over_limit", "enforcement": "enforced",
        });
        for (key, value) in more.as_object().expect("a test must change fields") {
            limit[key] = value.clone();
        }
        let answer = json!({"overall_code": "OK", "limits": [limit]});
        text(&Explained::deserialize(&answer).expect("a test must be an answer"))
    }

    #[test]
    fn every_reason_has_its_words() {
        let rows = [
            (json!({}), "denies, over_limit: the request takes 1, which is more than what is left"),
            (json!({"enforcement": "shadow"}), "but it is in shadow mode"),
            (json!({"enforcement": "quota"}), "a quota denies only if all"),
            (json!({"reason": "never_fits", "amount": 9}), "takes 9, which is more than the whole limit"),
            (
                json!({"reason": "limit_decreasing", "pending_decrease_to": 1}),
                "3 in 60 s, decreasing to 1: 3 used",
            ),
            (json!({"reason": "debt", "debt": 7}), "0 left, 7 owed"),
            (
                json!({"passes": true, "slab": {"held": 2}}),
                "0 left and 2 in a slab of this instance\n  passes",
            ),
            (json!({"used": null, "available": null}), "the ledger does not answer"),
            (json!({"window_seconds": null, "timeout_seconds": 5}), "3 at a time: 3 used"),
            (json!({"key": "d:a=\u{1b}[2J"}), "\nd:a=\\u{1b}[2J\n  written in limits/a.yaml:4\n"),
        ];
        for (more, said) in rows {
            let text = explained(&more);
            assert!(text.contains(said), "no {said:?} in {text}");
        }
    }
}
