//! What leases must do on every ledger, a line each.

use crate::lease_scenario::{LIMITS, Port, run};
use crate::testapp::TestApp;

pub const ROWS: &[&str] = &[
    // through Envoy: concurrency comes back at the end of the stream, hits stay what they were
    "A: ask x10 = lease | B: ask x1 = lease | ask x1 = over held | done A = ok | ask x1 = lease | used tokens 12",
    "A: ask x10 = lease | done A = ok | used held 0 | used tokens 10 | used bytes 10 | used calls 1",
    // a look holds nothing
    "ask x0 = ok | used held 0",
    // hits at the end are what was used of the limits that cost hits and are reconciled
    "A: ask x10 = lease | done A x4 = ok | used held 0 | used tokens 4 | used bytes 4 | used calls 1",
    "A: ask x10 = lease | done A x10 = ok | used held 0 | used tokens 10",
    "A: ask x10 = lease | done A x0 = ok | used held 0 | used tokens 0 | used bytes 0 | used calls 1",
    "A: ask x10 = lease | done A x30 = ok | used held 0 | used tokens 30 | used bytes 30 | used calls 1",
    "A: ask x10 = lease | done A x4 limit=tokens = ok | used tokens 4 | used bytes 10 | used held 0",
    "A: ask x10 = lease | done A x4 limit=nothing = ok | used tokens 10 | used held 0",
    // more than fits is a debt, or is let go
    "A: ask x90 = lease | done A x101 = ok | used tokens 90 | owes tokens 11 | used bytes 100 | owes bytes 0",
    "A: ask x90 = lease | done A x100 = ok | used tokens 100 | owes tokens 0",
    // repay: what doesn't fit is owed and paid first, from what is free and from whatever comes back
    "A: ask-owing x10 = lease | done A x150 = ok | ask-owing x1 = debt tokens | paid | used tokens 100 | owes tokens 50",
    "A: ask-owing x10 = lease | B: ask-owing x40 = lease | done A x80 = ok | paid | used tokens 100 | owes tokens 20 | done B x5 = ok | paid | owes tokens 0 | used tokens 85 | ask-owing x15 = lease",
    "A: ask-owing x90 = lease | done A x100 = ok | owes tokens 0 | used tokens 100 | ask-owing x1 = over tokens",
    "A: ask-owing x90 = lease | done A x120 = ok | done A x120 = ok | done A x130 = ok | paid | owes tokens 20 | used tokens 100",
    "A: ask-owing x10 = lease | done A x150 = ok | reserve tokens 1 = debt tokens | ask-owing x0 = debt tokens",
    "A: ask-owing x10 = lease | done A x150 = ok | paid | forgive tokens | owes tokens 0 | used tokens 100 | ask-owing x1 = over tokens | forgive tokens",
    "A: ask x90 = lease | done A x120 = ok | owes tokens 30 | forgive tokens | owes tokens 0 | used tokens 90",
    // charges that come afterwards take what is left; the rest is dropped, or owed
    "ask-late x40 = ok | used tokens 40 | used calls 1 | ask-late x40 = over owed | used tokens 80 | used owed 50 | owes owed 30 | used repaid 50 | owes repaid 30 | used calls 1",
    "ask-late x200 = never tokens | used tokens 100 | owes tokens 0 | used owed 50 | owes owed 150 | owes repaid 150 | used calls 0",
    "ask-late x40 = ok | ask-late x11 = over owed | owes owed 1 | forgive repaid | ask-late x1 = over owed | used tokens 51",
    "ask-late-as r x40 = ok | ask-late-as s x40 = over owed | forgive repaid | ask-late-as s x40 = over | used tokens 80 | owes owed 30 | ask-late-as r x40 = ok | used tokens 80",
    // a refund is of what was reserved
    "A: ask x10 = lease | done A -x3 = ok | used tokens 7 | used bytes 7 | used held 0",
    "A: ask x10 = lease | done A -x30 = ok | used tokens 0 | used held 0",
    // several completions of one call count together
    "A: ask x10 = lease | done A + A x3 limit=tokens + A x4 limit=tokens + A x1 limit=bytes = ok | used tokens 7 | used bytes 1 | used held 0",
    "A: ask x10 = lease | B: ask x20 = lease | done A x1 + B x2 = ok | used tokens 3 | used held 0",
    "A: reserve tokens 10 held 1 = ok | done A x3 + id:A x1 = ok | used tokens 4 | used held 0",
    // a second completion changes nothing
    "A: ask x10 = lease | done A x4 = ok | done A x4 = ok | done A x2 = ok | done A x90 = ok | used tokens 4 | used held 0",
    "A: ask x10 = lease | done A = ok | done A x4 = ok | used tokens 10 | used held 0",
    "A: ask x10 = lease | done A x0 = ok | done A x50 = ok | used tokens 0",
    "A: ask x90 = lease | done A x120 = ok | done A x120 = ok | done A x130 = ok | owes tokens 30 | used tokens 90",
    // a denial holds nothing and has no lease
    "ask x100 = lease | ask x1 = over tokens | used held 1",
    // what Envoy sends again is charged once, and its lease is one lease
    "A: ask-as r x10 = lease | B: ask-as r x10 = lease | used tokens 10 | used held 1 | done A x3 = ok | done B x5 = ok | used tokens 3 | used held 0",
    // after its end what a lease held has come back; what was used beyond that is owed once, where the limit has debts
    "A: ask-short x10 = lease | wait 7 | done A x4 = ok | used tokens 0 | used held 0 | owes tokens 0",
    "A: ask-short x10 = lease | wait 7 | done A x10 = ok | done A x40 = ok | used tokens 0 | owes tokens 0",
    "A: ask-short x10 = lease | wait 7 | done A x40 = ok | done A x40 = ok | done A x50 = ok | used bytes 0 | used tokens 0 | owes tokens 30 | paid | used repaid 30 | owes repaid 0",
    "A: ask-short x10 = lease | wait 7 | ask-short x90 = lease | done A x40 = ok | ask-short x1 = debt repaid | used bytes 90 | used tokens 90 | owes tokens 30 | paid | used repaid 100 | owes repaid 20",
    "A: ask-short x10 = lease | wait 3 | done A x4 = ok | wait 4 | done A x40 = ok | used tokens 0 | owes tokens 0",
    "A: ask-short x10 = lease | wait 1 | done A x4 = ok | used tokens 4 | wait 7 | used tokens 0",
    // a limit in shadow mode is held and released too
    "A: ask-dark = lease | B: ask-dark = lease | C: ask-dark = ok | used held 2 | done A = ok | used held 1 | done B = ok | used held 0",
    // the lease API: all or nothing
    "A: reserve tokens 10 held 1 = ok | used tokens 10 | used held 1 | complete A = ok | used tokens 10 | used held 0",
    "reserve tokens 60 = ok | reserve bytes 10 tokens 41 = over tokens | used bytes 0 | used tokens 60",
    "reserve tokens 101 = never tokens | used tokens 0",
    "reserve nonsense 1 = unknown_limit_key:d:row=",
    "reserve tokens 0 = invalid_request requirements[0].amount: ",
    // amounts of one key are added
    "reserve tokens 60 held 1 tokens 41 = never tokens | reserve tokens 60 tokens 40 = ok | used tokens 100",
    // any rolling limit can be given what was used
    "A: reserve tokens 10 calls 10 held 2 = ok | complete A tokens 3 calls 4 = ok | used tokens 3 | used calls 4 | used held 0",
    "A: reserve tokens 10 calls 10 held 2 = ok | complete id:A calls 30 = ok | used tokens 10 | used calls 30 | used held 0",
    "A: reserve calls 50 = ok | complete A calls 60 = ok | used calls 50 | owes calls 0",
    "A: reserve tokens 50 = ok | complete A tokens 160 = ok | used tokens 50 | owes tokens 110",
    "A: reserve tokens 50 held 1 = ok | complete A tokens 0 held 9 = ok | used tokens 0 | used held 0",
    "A: reserve tokens 50 held 1 = ok | complete A calls 1 = invalid_request actuals[0].key: | used held 1 | used tokens 50",
    "A: reserve tokens 10 = ok | complete A tokens 4 = ok | complete A tokens 1 = ok | complete id:A tokens 90 = ok | used tokens 4",
    "A: reserve tokens 10 = ok | complete A tokens 10 = ok | complete A tokens 4 = ok | used tokens 10",
    // names: once is enough, refused stays refused
    "A: reserve-as x tokens 10 held 1 = ok | A: reserve-as x tokens 10 held 1 = ok | used tokens 10 | used held 1 | complete A = ok | used held 0",
    "A: reserve-as x tokens 10 held 1 = ok | B: reserve-as x held 1 tokens 10 = ok | used tokens 10 | used held 1 | complete B tokens 0 = ok | used held 0 | used tokens 0",
    // names: one that holds something else is refused before anything is charged
    "A: reserve-as x tokens 10 = ok | reserve-as x tokens 11 = lease_id_used | used tokens 10 | complete A tokens 0 = ok | used tokens 0",
    "A: reserve-as x tokens 10 = ok | reserve-as x bytes 10 = lease_id_used | used bytes 0 | complete id:A tokens 0 = ok | used tokens 0",
    "reserve-as x tokens 10 = ok | reserve-as x tokens 10 bytes 5 = lease_id_used | used tokens 10 | used bytes 0",
    "reserve-as x tokens 10 bytes 5 = ok | reserve-as x tokens 10 = lease_id_used | used tokens 10 | used bytes 5",
    "reserve-as x tokens 10 bytes 5 = ok | reserve-as x tokens 10 bytes 9 = lease_id_used | used bytes 5",
    "A: reserve tokens 95 = ok | reserve-as x tokens 10 = over tokens | complete A tokens 0 = ok | reserve-as x tokens 10 = over tokens | reserve-as y tokens 10 = ok",
    // names: one that was completed is used up
    "A: reserve-as x held 1 = ok | complete id:A = ok | reserve-as x held 1 = lease_id_used | used held 0 | reserve-as y held 1 = ok | used held 1",
    "A: reserve-as x tokens 10 = ok | complete A = ok | reserve-as x tokens 10 = lease_id_used | used tokens 10",
    // a request that comes again after its lease was completed is another request
    "A: ask-as r x10 = lease | done A = ok | B: ask-as r x10 = lease | used held 1 | used tokens 20 | done B = ok | used held 0",
    // a lease of one way in can be completed through the other
    "A: reserve tokens 10 held 1 = ok | done A x4 = ok | used tokens 4 | used held 0",
    "A: reserve tokens 10 held 1 = ok | done id:A x4 = ok | used tokens 4 | used held 0",
    "A: ask x10 = lease | complete A tokens 4 = ok | used tokens 4 | used bytes 10 | used held 0",
    "A: ask x10 = lease | complete A calls 1 = invalid_request actuals[0].key: | used held 1",
];

/// All rows at once: they share the server but no limit.
pub async fn run_all(app: &TestApp, port: Port) {
    let rows = ROWS.iter().enumerate().map(|(index, row)| async move {
        run(app, port, &format!("{port:?}{index}"), row).await;
    });
    futures_util::future::join_all(rows).await;
}

/// The same for names that have left the lease table: then the ledger is asked.
pub const FORGOTTEN_ROWS: &[&str] = &[
    // the second reserve takes the only place of the table
    "A: reserve-as x held 1 = ok | reserve-as y held 1 = ok | reserve-as x held 1 = ok | used held 2",
    "A: reserve-as x tokens 10 = ok | reserve calls 1 = ok | reserve-as x tokens 10 bytes 5 = lease_id_used | used bytes 0 | used tokens 10",
    "A: reserve-as x tokens 10 = ok | reserve calls 1 = ok | reserve-as x tokens 11 = lease_id_used | used tokens 10",
    "A: reserve-as x held 1 = ok | reserve calls 1 = ok | complete A = ok | reserve calls 1 = ok | reserve-as x held 1 = lease_id_used | used held 0",
    "A: reserve-as x tokens 10 held 1 = ok | complete A tokens 3 = ok | reserve calls 1 = ok | reserve-as x tokens 10 held 1 = lease_id_used | used held 0 | used tokens 3",
    "A: ask-as r x10 = lease | done A = ok | reserve calls 1 = ok | B: ask-as r x10 = lease | used held 1 | used tokens 20",
];

/// One after the other on a server with `leases.book_max: 1`.
pub async fn run_forgotten(app: &TestApp) {
    for (index, row) in FORGOTTEN_ROWS.iter().enumerate() {
        run(app, Port::Http, &format!("forgotten{index}"), row).await;
    }
}

#[tokio::test]
async fn memory_with_names_forgotten() {
    let app =
        TestApp::with_limits(LIMITS).and_settings(|settings| settings.leases.book_max = 1).start().await;
    run_forgotten(&app).await;
}

#[tokio::test]
async fn memory() {
    let app = TestApp::with_limits(LIMITS).start().await;
    run_all(&app, Port::Http).await;
    run_all(&app, Port::Grpc).await;
}
