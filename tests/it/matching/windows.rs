//! Units and windows: how they are told, and when what was spent comes back.

use crate::testapp::TestApp;

#[tokio::test]
async fn every_unit_is_told_as_it_was_written() {
    let units = ["second", "minute", "hour", "day", "week", "month", "year"];
    let descriptors: String = units
        .iter()
        .map(|unit| {
            let (unit, shout) = (unit, unit.to_uppercase());
            format!("- {{key: {unit}, rate_limit: {{unit: {shout}, requests_per_unit: 4294967295}}}}\n")
        })
        .collect();
    let app = TestApp::with_limits(&format!("domain: d\ndescriptors:\n{descriptors}")).start().await;
    let seconds = [1, 60, 3_600, 86_400, 604_800, 2_592_000, 31_536_000];
    for (unit, seconds) in units.iter().zip(seconds) {
        let rows = [
            format!("{unit}=x -> ok 4294967294/4294967295 {unit}"),
            format!("{unit}=x <3/{unit}> -> ok 2/3 {unit}"),
            format!("{unit}=x x4294967296 -> NEVER d:{unit}=x:{unit}; over …"),
            format!("{unit}=x <3/{unit}> x4 -> NEVER d:{unit}=x:override=3/{unit}; over 2/3 {unit}"),
        ];
        app.answers(&rows.each_ref().map(String::as_str)).await;
        let limit = app.get(&format!("/v1/limits/d:{unit}=x:{unit}")).await.json();
        assert_eq!(limit["window_seconds"], seconds, "{unit}");
    }
}

#[tokio::test]
async fn more_than_32_bits_of_room_are_told_as_all_of_them() {
    let app = TestApp::with_limits(
        "
domain: d
descriptors:
- {key: a, limits: [{name: huge, kind: rolling, capacity: 9223372036854775807, window_seconds: 3600}]}
",
    );
    let rows = [
        "a=1 -> ok 4294967295/4294967295 hour huge",
        "a=1 x9223372036854775806 -> ok 0/4294967295 hour huge",
        "a=1 -> OVER d:a=1:huge; over 0/4294967295 hour huge",
        "a=1 x18446744073709551615 -> NEVER d:a=1:huge; over 0/4294967295 hour huge",
    ];
    app.start().await.answers(&rows).await;
}

/// From both sides: while the first hits are in their window nothing gets in, and after it everything does.
#[tokio::test]
async fn windows_roll() {
    let app = TestApp::with_limits(
        "domain: d\ndescriptors: [{key: a, rate_limit: {unit: second, requests_per_unit: 2}}]",
    )
    .start()
    .await;
    let before = sluice::clock::instant();
    app.answers(&["a=1 -> ok 1/2 second", "a=1 -> ok 0/2 second"]).await;
    let mut admitted = 0;
    while admitted < 2 {
        let said = app.say("a=1").await;
        let elapsed = before.elapsed();
        assert!(elapsed.as_secs() < 5, "still {said}");
        if said.starts_with("ok") {
            assert!(elapsed.as_millis() >= 1000, "early: {elapsed:?}");
            admitted += 1;
        } else {
            assert_eq!(said, "OVER d:a=1:second; over 0/2 second");
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }
}

/// A hit comes back one window after it was spent, not when a clock's second begins.
#[tokio::test]
async fn each_hit_comes_back_for_itself() {
    let app = TestApp::with_limits(
        "domain: d\ndescriptors: [{key: a, limits: [{name: n, kind: rolling, capacity: 10, window_seconds: 2}]}]",
    )
    .start()
    .await;
    app.answers(&["a=1 x4 -> ok 6/10 unknown n"]).await;
    tokio::time::sleep(std::time::Duration::from_millis(1200)).await;
    app.answers(&["a=1 x6 -> ok 0/10 unknown n", "a=1 -> OVER d:a=1:n; over 0/10 unknown n"]).await;
    let said = crate::wait::until("the first four", async || {
        let said = app.say("a=1 x0").await;
        if said == "ok 0/10 unknown n" { Err(said) } else { Ok(said) }
    });
    assert_eq!(said.await, "ok 4/10 unknown n", "the six are still in their window");
    app.answers(&["a=1 x4 -> ok 0/10 unknown n", "a=1 -> OVER d:a=1:n; over 0/10 unknown n"]).await;
}
