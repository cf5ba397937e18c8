//! Every way in which people, editors and orchestrators change a file is live within two seconds; mistakes never are.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::Duration;

use crate::live::{PATH, config_map, limits, named, within};
use crate::stall::steadily;
use crate::testapp::TestApp;

async fn start() -> (TestApp, PathBuf) {
    let app = TestApp::with_limits(&limits(10)).start().await;
    assert_eq!(app.capacity(PATH).await, Some(10));
    let file = app.dir.path().join("limits/0.yaml");
    (app, file)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_in_place() {
    let (app, file) = start().await;
    fs::write(&file, limits(20)).unwrap();
    app.becomes(PATH, Some(20)).await;
    assert_eq!(app.version().await, 2);
    assert_eq!(app.metric("sluice_config_reloads_total{result=\"ok\"}").await, 2.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rename_over_the_file() {
    let (app, file) = start().await;
    let new = app.dir.path().join("limits/.0.yaml.swp");
    fs::write(&new, limits(20)).unwrap();
    fs::rename(&new, &file).unwrap();
    app.becomes(PATH, Some(20)).await;
    assert_eq!(app.version().await, 2);
}

/// In between there is no file: its limits hold all the same.
#[tokio::test(flavor = "multi_thread")]
async fn deleted_and_written_again() {
    let (app, file) = start().await;
    fs::remove_file(&file).unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    fs::write(&file, limits(20)).unwrap();
    app.becomes(PATH, Some(20)).await;
    assert_eq!(app.version().await, 2, "it was never seen without the file");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_editor_that_writes_twice_is_one_change() {
    let (app, file) = start().await;
    for text in ["", "domain: d\ndescr", &limits(15), &limits(20)] {
        fs::write(&file, text).unwrap();
        tokio::time::sleep(Duration::from_millis(15)).await;
    }
    app.becomes(PATH, Some(20)).await;
    assert_eq!(app.version().await, 2);
    assert_eq!(app.metric("sluice_config_reloads_total{result=\"error\"}").await, 0.0);
}

/// What has been written so far may be right, and yet mean something else than the whole.
#[tokio::test(flavor = "multi_thread")]
async fn half_a_file_never_goes_live() {
    use std::io::Write;
    let (app, file) = start().await;
    let whole = format!("{}- {{key: user, rate_limit: {{unit: hour, requests_per_unit: 3}}}}\n", limits(20));
    let (first, second) = whole.split_at(limits(20).len());
    let mut writer = File::create(&file).unwrap();
    writer.write_all(first.as_bytes()).unwrap();
    let started = sluice::clock::instant();
    while started.elapsed() < Duration::from_millis(600) {
        assert_eq!((app.capacity(PATH).await, app.version().await), (Some(10), 1));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    writer.write_all(second.as_bytes()).unwrap();
    drop(writer);
    app.becomes("d:user=1:hour", Some(3)).await;
    assert_eq!((app.capacity(PATH).await, app.version().await), (Some(20), 2), "one change");
}

/// Some programs never close what they have written.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_stays_open_is_live_all_the_same() {
    use std::io::Write;
    let (app, file) = start().await;
    let mut writer = File::create(&file).unwrap();
    writer.write_all(limits(20).as_bytes()).unwrap();
    app.becomes(PATH, Some(20)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_file_and_a_removed_one() {
    let (app, _) = start().await;
    let new = app.dir.path().join("limits/new.yml");
    fs::write(&new, named("extra", 7)).unwrap();
    app.becomes("extra", Some(7)).await;
    assert_eq!(app.config().await["files"].as_array().unwrap().len(), 2);
    assert_eq!(app.metric("sluice_limit_capacity{limit=\"extra\"}").await, 7.0);
    fs::remove_file(&new).unwrap();
    app.becomes("extra", None).await;
    assert_eq!(app.version().await, 3);
    assert!(!app.get("/metrics").await.body.contains("limit=\"extra\""), "its gauges would stand still");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_directory_of_limits_may_come_and_go() {
    let app = TestApp::with_limits(&limits(10)).start().await;
    let (limits_dir, aside) = (app.dir.path().join("limits"), app.dir.path().join("aside"));
    fs::rename(&limits_dir, &aside).unwrap();
    // A mount that was lost must not allow everything.
    crate::wait::until("the problem", async || {
        let config = app.get("/v1/config").await.json();
        if config["problems"][0]["file"] == "limits" { Ok(()) } else { Err(config.to_string()) }
    })
    .await;
    app.becomes(PATH, Some(10)).await;
    fs::create_dir(&limits_dir).unwrap();
    app.becomes(PATH, None).await;
    fs::write(limits_dir.join("a.yaml"), limits(20)).unwrap();
    app.becomes(PATH, Some(20)).await;
    // The directory is another one now, and its events are heard all the same.
    fs::write(limits_dir.join("a.yaml"), limits(30)).unwrap();
    app.becomes(PATH, Some(30)).await;
}

/// Same size, same time, as `cp -p` and `rsync -t` leave it.
#[tokio::test(flavor = "multi_thread")]
async fn an_edit_that_keeps_size_and_time() {
    let (app, file) = start().await;
    let before = fs::metadata(&file).unwrap();
    let copy = app.dir.path().join("copy");
    fs::write(&copy, limits(20)).unwrap();
    File::options().write(true).open(&copy).unwrap().set_modified(before.modified().unwrap()).unwrap();
    fs::copy(&copy, &file).unwrap();
    File::options().write(true).open(&file).unwrap().set_modified(before.modified().unwrap()).unwrap();
    let after = fs::metadata(&file).unwrap();
    assert_eq!((before.len(), before.modified().unwrap()), (after.len(), after.modified().unwrap()));
    app.becomes(PATH, Some(20)).await;
}

/// No event of a watched directory tells of it: the content does.
#[tokio::test(flavor = "multi_thread")]
async fn a_link_to_a_file_elsewhere() {
    let elsewhere = tempfile::tempdir().unwrap();
    let target = elsewhere.path().join("target.yaml");
    fs::write(&target, named("linked", 1)).unwrap();
    let (app, _) = start().await;
    symlink(&target, app.dir.path().join("limits/link.yaml")).unwrap();
    app.becomes("linked", Some(1)).await;
    fs::write(&target, named("linked", 2)).unwrap();
    app.becomes("linked", Some(2)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_config_map_mounted_at_limits() {
    let dir = tempfile::tempdir().unwrap();
    let limits_dir = dir.path().join("limits");
    config_map(&limits_dir, 1, &[("a.yaml", limits(10)), ("b.yaml", named("b", 1))]);
    let app = crate::testapp::Builder::in_dir(dir).start().await;
    for version in 2..5_u32 {
        let files = [("a.yaml", limits(u64::from(version))), ("b.yaml", named("b", u64::from(version)))];
        config_map(&limits_dir, version, &files);
        app.becomes(PATH, Some(u64::from(version))).await;
        assert_eq!(app.capacity("b").await, Some(u64::from(version)), "both at once");
        assert_eq!(app.version().await, u64::from(version));
    }
    assert_eq!(app.metric("sluice_config_reloads_total{result=\"error\"}").await, 0.0);
}

/// Paths in the items of a ConfigMap: `limits` itself is a link into what is swapped.
#[tokio::test(flavor = "multi_thread")]
async fn a_config_map_mounted_at_the_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().to_owned();
    let swap = |version: u64| {
        let new = root.join(format!("..{version}"));
        fs::create_dir_all(new.join("limits")).unwrap();
        fs::write(new.join("limits/a.yaml"), limits(version)).unwrap();
        fs::write(new.join("retry_policy.yaml"), format!("retry_policy: {{decreasing_ms: {version}}}"))
            .unwrap();
        symlink(format!("..{version}"), root.join("..data_tmp")).unwrap();
        fs::rename(root.join("..data_tmp"), root.join("..data")).unwrap();
        fs::remove_dir_all(root.join(format!("..{}", version - 1))).ok();
    };
    swap(1);
    symlink("..data/limits", root.join("limits")).unwrap();
    symlink("..data/retry_policy.yaml", root.join("retry_policy.yaml")).unwrap();
    let app = crate::testapp::Builder::in_dir(dir).start().await;
    for version in 2..5 {
        swap(version);
        app.becomes(PATH, Some(version)).await;
        assert_eq!(app.get("/v1/retry-policy").await.json()["decreasing_ms"], version);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_retry_policy_is_live_too() {
    let (app, _) = start().await;
    let file = app.dir.path().join("retry_policy.yaml");
    fs::write(&file, "retry_policy: {rolling: {base_ms: 777, max_ms: 777, jitter_ms: 0}}").unwrap();
    within("the policy", async || {
        let policy = app.get("/v1/retry-policy").await.json();
        if policy["rolling"]["max_ms"] == 777 { Ok(()) } else { Err(policy.to_string()) }
    })
    .await;
    for _ in 0..11 {
        app.say("path=/a").await;
    }
    let denied = app
        .post("/json", r#"{"domain": "d", "descriptors": [{"entries": [{"key": "path", "value": "/a"}]}]}"#);
    assert_eq!(denied.await.header("retry-after-ms"), "777");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mistake_stays_out_and_is_told_until_it_is_mended() {
    let (app, file) = start().await;
    fs::write(&file, "domain: d\ndescriptors:\n- {key: path, rate_limits: {}}\n- {kye: x}\n").unwrap();
    let failing = within("problems", async || {
        let config = app.config().await;
        if config["failing_since"].is_null() { Err(config.to_string()) } else { Ok(config) }
    })
    .await;
    let problems = failing["problems"].as_array().unwrap();
    let lines: Vec<u64> = problems.iter().map(|problem| problem["line"].as_u64().unwrap()).collect();
    assert_eq!(lines, [3, 4, 4], "{failing}");
    for problem in problems {
        assert!(problem["file"].as_str().unwrap().ends_with("limits/0.yaml"), "{problem}");
        assert!(problem["message"].is_string() && problem["field"].is_string(), "{problem}");
    }
    assert_eq!(app.metric("sluice_config_reloads_total{result=\"error\"}").await, 1.0);
    assert_eq!((app.capacity(PATH).await, app.version().await), (Some(10), 1), "the last good one stays");
    // Another mistake: since when it fails stays the same.
    fs::write(&file, "nonsense").unwrap();
    within("other problems", async || {
        let config = app.config().await;
        if config["problems"].as_array().unwrap().len() == 1 { Ok(()) } else { Err(config.to_string()) }
    })
    .await;
    assert_eq!(app.config().await["failing_since"], failing["failing_since"]);
    fs::write(&file, limits(30)).unwrap();
    app.becomes(PATH, Some(30)).await;
    let config = app.config().await;
    assert_eq!(
        (&config["problems"], &config["failing_since"]),
        (&serde_json::json!([]), &serde_json::Value::Null)
    );
    assert_eq!(config["version"], 2);
}

/// Good, bad, and back to what it was: nothing changed, but it is good to know.
#[tokio::test(flavor = "multi_thread")]
async fn a_mistake_that_is_taken_back() {
    let (app, file) = start().await;
    fs::write(&file, "nonsense").unwrap();
    let failing = async |expected: bool| {
        within("failing", async || {
            let config = app.config().await;
            if config["failing_since"].is_number() == expected { Ok(()) } else { Err(config.to_string()) }
        })
        .await;
    };
    failing(true).await;
    fs::write(&file, limits(10)).unwrap();
    failing(false).await;
    assert_eq!(app.version().await, 1);
    assert_eq!(app.metric("sluice_config_reloads_total{result=\"ok\"}").await, 2.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn comments_change_nothing_but_lines() {
    let (app, file) = start().await;
    let origin = async || app.limit(PATH).await.unwrap()["origin"].as_str().unwrap().to_owned();
    assert!(origin().await.ends_with("0.yaml:3"), "{}", origin().await);
    let before = app.config().await;
    fs::write(&file, format!("# a comment\n\n{}# and another\n", limits(10))).unwrap();
    within("the line", async || {
        let origin = origin().await;
        if origin.ends_with("0.yaml:5") { Ok(()) } else { Err(origin) }
    })
    .await;
    assert_eq!(app.config().await, before, "nothing else is different");
    assert_eq!(app.metric("sluice_config_reloads_total{result=\"ok\"}").await, 1.0);
}

/// A window that is changed holds for what is reserved from now on.
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_window_is_for_new_reservations() {
    let text = |seconds: u32| {
        format!(
            "domain: d\ndescriptors:\n- {{key: path, limits: [{{name: n, kind: rolling, capacity: 2, window_seconds: {seconds}}}]}}\n"
        )
    };
    let app = TestApp::with_limits(&text(1)).start().await;
    app.say("path=/a").await;
    fs::write(app.dir.path().join("limits/0.yaml"), text(300)).unwrap();
    within("the window", async || {
        let limit = app.limit("d:path=/a:n").await.unwrap();
        if limit["window_seconds"] == 300 { Ok(()) } else { Err(limit.to_string()) }
    })
    .await;
    app.say("path=/a").await;
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert_eq!(
        app.limit("d:path=/a:n").await.unwrap()["used"],
        1,
        "the first came back after its one second"
    );
}

/// Down only when there is room; up at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_capacity_that_falls_waits_for_room() {
    steadily(async |_| {
        let text = |capacity: u64| {
            format!("{}descriptors: [{{key: all, limits: [{{ref: shared}}]}}]\n", named("shared", capacity))
        };
        let app = TestApp::with_limits(&text(10)).start().await;
        let file = app.dir.path().join("limits/0.yaml");
        assert!(app.say("in shareds: all=x x8").await.starts_with("ok "));
        fs::write(&file, text(5)).unwrap();
        let limit = within("decreasing", async || {
            let limit = app.limit("shared").await.unwrap();
            if limit["status"] == "decreasing" { Ok(limit) } else { Err(limit.to_string()) }
        })
        .await;
        assert_eq!((&limit["capacity"], &limit["pending_decrease_to"]), (&10.into(), &5.into()));
        assert!(app.say("in shareds: all=x").await.starts_with("limit_decreasing shared;"));
        app.becomes("shared", Some(5)).await;
        assert_eq!(app.limit("shared").await.unwrap()["status"], "active");
        assert!(app.say("in shareds: all=x x5").await.starts_with("ok "));
        fs::write(&file, text(3)).unwrap();
        within("decreasing again", async || {
            let limit = app.limit("shared").await.unwrap();
            if limit["pending_decrease_to"] == 3 { Ok(()) } else { Err(limit.to_string()) }
        })
        .await;
        fs::write(&file, text(9)).unwrap();
        app.becomes("shared", Some(9)).await;
        assert_eq!(app.limit("shared").await.unwrap()["status"], "active", "raised while it was decreasing");
    })
    .await;
}
