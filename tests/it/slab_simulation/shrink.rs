//! The shortest history that still fails: events are left out, many at first and then one by one.

use std::time::{Duration, Instant};

use super::plan::{Event, Plan};
use super::world::{Failure, World};

/// Time spent on it, at most.
const SHRINK_FOR: Duration = Duration::from_secs(20);

/// What to print of a plan that fails.
pub fn report(plan: Plan) -> String {
    let seed = plan.seed;
    let before = plan.events.len();
    let plan = shorten(plan);
    let failure = World::new(&plan, true).run().expect_err("a plan that failed must fail again");
    let Failure { what, history } = *failure;
    let events: Vec<String> = plan.events.iter().map(|(at_us, event)| line(*at_us, event)).collect();
    format!(
        "seed {seed}: {what}\n{} instances, {} us one way, {:?}\nthe shortest of {before} events that fails:\n{}\n\
         what happened:\n{}",
        plan.instances,
        plan.latency_us,
        plan.limits,
        events.join("\n"),
        history.join("\n"),
    )
}

fn line(at_us: u64, event: &Event) -> String {
    format!("{:>10.3} ms  {event:?}", at_us as f64 / 1_000.0)
}

#[allow(clippy::disallowed_methods, reason = "how long it may take is not part of what it finds")]
fn shorten(mut plan: Plan) -> Plan {
    let started = Instant::now();
    let mut size = plan.events.len().div_ceil(2);
    while size > 0 {
        let mut at = 0;
        let mut shorter = false;
        while at < plan.events.len() && started.elapsed() < SHRINK_FOR {
            let mut events = plan.events.clone();
            events.drain(at..(at + size).min(events.len()));
            let candidate = Plan { events, ..plan.clone() };
            if World::new(&candidate, false).run().is_err() {
                plan = candidate;
                shorter = true;
            } else {
                at += size;
            }
        }
        if !shorter || size > 1 {
            size /= 2;
        }
        if started.elapsed() >= SHRINK_FOR {
            break;
        }
    }
    plan
}
