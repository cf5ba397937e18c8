//! What is read of a scenario, and what is said of one that is wrong.

use super::*;

#[test]
fn all_of_a_population() {
    let text = "
seed: 9
seconds: 60
populations:
- name: batch
  domain: llm
  descriptors: [[\"tenant=t{tenant}-x\", model=gpt], [a=, \"retry_attempt={attempt}\"]]
  tenants: 12
  clients: 3
  think_seconds: 0.5
  cost: 100
  hold_ms: 250
  retry: backoff
  attempts_max: 4
";
    let scenario = Scenario::parse("s.yaml", text).unwrap();
    assert_eq!((scenario.seed, scenario.seconds), (Some(9), 60));
    let text = |text: &str| Piece::Text(text.to_owned());
    let entry = |key: &str, value: Vec<Piece>| EntryTemplate { key: key.to_owned(), value };
    assert_eq!(
        scenario.populations,
        [Population {
            name: "batch".to_owned(),
            domain: "llm".to_owned(),
            descriptors: vec![
                vec![
                    entry("tenant", vec![text("t"), Piece::Tenant, text("-x")]),
                    entry("model", vec![text("gpt")])
                ],
                vec![entry("a", vec![]), entry("retry_attempt", vec![Piece::Attempt])],
            ],
            tenants: 12,
            arrivals: Arrivals::Clients { count: 3, think_seconds: 0.5 },
            cost: 100,
            hold_ms: 250,
            retry: Retry::Backoff,
            attempts_max: Some(4),
        }]
    );
}

#[test]
fn every_mistake_is_named() {
    let text = "
second: 60
populations:
- {name: a, domain: d, descriptors: [['t=x']], rate: 1, clients: 2}
- {name: b, domain: d, descriptors: [['t']], rate: 0, retry: obay}
- {name: c, domain: d, descriptors: [t=x], tenants: 0, clients: 5}
- {name: c, domain: d, descriptors: [['t={user}']], clients: 5, think_seconds: 0}
- {domain: '', descriptors: []}
";
    let problems = Scenario::parse("s.yaml", text).unwrap_err();
    let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
    insta::assert_snapshot!(problems.join("\n"), @r"
    s.yaml:2: second: is not a key of a scenario; did you mean `seconds`?
    s.yaml:2: seconds: is missing: how long it lasts
    s.yaml:4: populations[0].rate: is there beside `clients` or `think_seconds`; a population has one or the other
    s.yaml:5: populations[1].descriptors[0][0]: must be written key=value, not `t`
    s.yaml:5: populations[1].rate: is 0, must be above 0 and at most 10000000
    s.yaml:5: populations[1].retry: must be one of obey, ignore, backoff, never, not `obay`; did you mean `obey`?
    s.yaml:6: populations[2].descriptors[0]: must be a list of entries as `tenant=t{tenant}`, not a plain value
    s.yaml:6: populations[2].tenants: must be a whole number from 1 to 18446744073709551615, not `0`
    s.yaml:6: populations[2].think_seconds: is missing: how long each waits after a request, on average, before the next
    s.yaml:7: populations[3].descriptors[0][0]: `{user}`: what can stand in braces is {tenant} and {attempt}
    s.yaml:7: populations[3].think_seconds: is 0, must be 0.001 to 31536000
    s.yaml:8: populations[4].descriptors: is missing: a list of descriptors, each a list of entries as `tenant=t{tenant}`
    s.yaml:8: populations[4].domain: must not be empty
    s.yaml:8: populations[4].name: is missing: what it is called in the report
    s.yaml:8: populations[4].rate: is missing: requests a second, or else `clients` and `think_seconds`
    ");
    let empty = Scenario::parse("s.yaml", "").unwrap_err();
    assert_eq!(empty[0].to_string(), "s.yaml:1: is empty");
}
