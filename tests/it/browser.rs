//! The page of the admin port in a real browser: it is live, it survives a restart, it asks for the token, and it shows what
//! clients send as text.

mod driver;

use std::time::Duration;

use base64::Engine;
use serde_json::json;
use sluice::clock;

use self::driver::Browser;
use crate::http;
use crate::sluice::{Sluice, directory, serve};

const LIMITS: &str = "\
domain: d
limits:
- {key: gpus, kind: concurrency, capacity: 4, timeout_seconds: 60}
descriptors:
- {key: tenant, rate_limit: {unit: hour, requests_per_unit: 1, name: rph}}
";

const TOKEN: &str = "a-token-of-the-admin-port";

/// It would run if any of it were taken for markup.
/// The last of it turns the direction of what follows.
const HOSTILE: &str =
    "<img src=x onerror=document.title='run'><script>document.title='run'</script>\"'&\u{202e}";

const READY: &str = "document.getElementById('status-text').textContent === 'ready'";
const STATUS: &str = "document.getElementById('status-text').textContent";

const PHONE: (u32, u32) = (390, 1400);
const DESK: (u32, u32) = (1366, 1200);

async fn ask(served: &Sluice, tenant: &str) -> u16 {
    let descriptor = json!({"entries": [{"key": "tenant", "value": tenant}]});
    let body = json!({"domain": "d", "descriptors": [descriptor]}).to_string();
    http::post(served.admin, "/json", &body).await.status
}

fn row(section: &str, key: &str) -> String {
    let key = json!(key);
    format!(
        "[...document.querySelectorAll('#{section} tr[data-key]')].some((row) => row.dataset.key === {key})"
    )
}

/// Nothing of it is wider than the window. With SLUICE_TEST_PICTURES, a directory, a picture is left there.
async fn fits(browser: &Browser, name: &str) {
    for ((width, height), scheme) in [(PHONE, "dark"), (DESK, "light")] {
        browser.look_like(width, height, scheme).await;
        let widest = "document.documentElement.scrollWidth <= window.innerWidth";
        assert_eq!(browser.value(widest).await, true, "{name} at {width}");
        if let Some(directory) = std::env::var_os("SLUICE_TEST_PICTURES") {
            let picture = base64::engine::general_purpose::STANDARD.decode(browser.picture().await).unwrap();
            std::fs::write(std::path::Path::new(&directory).join(format!("{name}-{width}.png")), picture)
                .unwrap();
        }
    }
}

#[tokio::test]
async fn the_page_is_live_and_survives_a_restart() {
    let mut served = Sluice::with_limits(LIMITS).await;
    let browser = Browser::open(&format!("http://{}/", served.admin)).await;
    browser.until(READY, STATUS).await;
    let sections = "['decisions', 'limits', 'denied', 'used', 'line', 'config', 'ledger'].every((id) => document.getElementById(id))";
    assert_eq!(browser.value(sections).await, true);
    browser.until(&row("limits", "gpus"), STATUS).await;
    fits(&browser, "quiet").await;

    assert_eq!([ask(&served, "acme").await, ask(&served, "acme").await], [200, 429]);
    let denied = clock::instant();
    browser.until(&row("denied", "d:tenant=acme:rph"), STATUS).await;
    assert!(denied.elapsed() < Duration::from_secs(2), "it took {:?}", denied.elapsed());
    browser.until(&row("used", "d:tenant=acme:rph"), STATUS).await;
    browser.until(&row("limits", "d:tenant=acme:rph"), STATUS).await;

    ask(&served, HOSTILE).await;
    ask(&served, HOSTILE).await;
    let shown =
        "[...document.querySelectorAll('#denied td.k')].some((cell) => cell.textContent.includes('onerror'))";
    browser.until(shown, "document.getElementById('denied').textContent").await;
    // The row has the key as it is; what is shown has nothing that turns it.
    let turned = "(name) => name.includes('\\u202e')";
    let keys = "[...document.querySelectorAll('#denied tr[data-key]')].map((row) => row.dataset.key)";
    assert_eq!(browser.value(&format!("{keys}.some({turned})")).await, true);
    assert_eq!(browser.value(&format!("({turned})(document.body.textContent)")).await, false);
    let markup = "[document.images.length, document.querySelectorAll('body script').length, document.title]";
    assert_eq!(browser.value(markup).await, json!([0, 0, "Sluice"]));
    assert_eq!(browser.complaints().await, [""; 0]);
    for tenant in 0..20 {
        ask(&served, &format!("customer-{tenant}")).await;
    }
    // A client's name may be long; its row is not.
    let long = "x".repeat(900);
    ask(&served, &long).await;
    browser.until(&row("limits", &format!("d:tenant={long}:rph")), STATUS).await;
    let tallest =
        "Math.max(...[...document.querySelectorAll('tr[data-key]')].map((row) => row.clientHeight))";
    fits(&browser, "busy").await;
    assert!(browser.value(tallest).await.as_f64().unwrap() < 200.0);

    served.process.signal("TERM");
    served.process.exit().await;
    browser.until(&format!("{STATUS}.includes('away')"), STATUS).await;
    let admin = served.admin.to_string();
    let dir = directory(&[("config/limits/limits.yaml", LIMITS)]);
    let command = serve(dir.path(), &["--grpc", "127.0.0.1:0", "--admin", &admin]);
    let served = Sluice::start(dir, command).await;
    browser.until(READY, STATUS).await;
    ask(&served, "globex").await;
    ask(&served, "globex").await;
    browser.until(&row("denied", "d:tenant=globex:rph"), STATUS).await;
    let complaints = browser.complaints().await;
    assert!(
        complaints.iter().all(|it| it.contains("net::ERR_")),
        "only that nobody was there: {complaints:?}"
    );
}

#[tokio::test]
async fn the_page_asks_for_the_token_and_keeps_it_to_itself() {
    let dir = directory(&[("config/limits/limits.yaml", LIMITS)]);
    let mut command = serve(dir.path(), &["--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    command.env("SLUICE_ADMIN_TOKEN", TOKEN);
    let served = Sluice::start(dir, command).await;
    let browser = Browser::open(&format!("http://{}/", served.admin)).await;
    browser.until("document.querySelector('input[type=password]').offsetParent !== null", STATUS).await;
    assert_eq!(browser.value("document.getElementById('main').hidden").await, true);
    fits(&browser, "login").await;
    let alert = "document.querySelector('[role=alert]').textContent";
    browser.type_in("input[type=password]", "wrong\n").await;
    browser.until(&format!("{alert}.includes('not the token')"), alert).await;
    browser.type_in("input[type=password]", &format!("{TOKEN}\n")).await;
    browser.until(READY, STATUS).await;
    browser.until(&row("limits", "gpus"), STATUS).await;
    assert_eq!(browser.value("document.getElementById('main').hidden").await, false);
    let kept = "[location.href, document.cookie, JSON.stringify(localStorage), JSON.stringify(sessionStorage), document.documentElement.outerHTML, document.querySelector('input[type=password]').value].join()";
    let kept = browser.value(kept).await.to_string();
    assert!(!kept.contains(TOKEN), "{kept}");
    let complaints = browser.complaints().await;
    assert!(complaints.iter().all(|it| it.contains("401")), "only that a token was needed: {complaints:?}");
}

#[tokio::test]
async fn the_page_holds_with_ten_thousand_limits_and_a_broken_file() {
    let limit = |n| format!("- {{key: limit-{n:05}, kind: rolling, capacity: 10, window_seconds: 60}}\n");
    let yaml = format!("domain: d\nlimits:\n{}", (0..10_000).map(limit).collect::<String>());
    let served = Sluice::with_limits(&yaml).await;
    let browser = Browser::open(&format!("http://{}/", served.admin)).await;
    browser.until(READY, STATUS).await;
    let note = "document.getElementById('limits-note').textContent";
    browser.until(&format!("{note}.includes('of 10,000')"), note).await;
    let rows = "document.querySelectorAll('#limits tr[data-key]').length";
    assert_eq!(browser.value(rows).await, 200);
    browser.type_in("#prefix", "limit-0999").await;
    browser.until(&format!("{rows} === 10"), rows).await;
    assert_eq!(browser.value(&row("limits", "limit-09995")).await, true);

    let file = served.dir.path().join("config/limits/limits.yaml");
    std::fs::write(&file, "domain: d\nlimits:\n- {key: a, kind: rolling}\n").unwrap();
    let problems = "document.getElementById('problems').textContent";
    browser.until(&format!("{problems}.includes('limits.yaml:3')"), problems).await;
    fits(&browser, "broken").await;
    std::fs::write(&file, "domain: d\nlimits:\n- {key: a, kind: rolling, capacity: 1, window_seconds: 60}\n")
        .unwrap();
    browser.until(&format!("{problems} === ''"), problems).await;
    assert_eq!(browser.complaints().await, [""; 0]);
}

#[tokio::test]
async fn the_page_says_that_there_are_no_limits() {
    let dir = directory(&[("config/sluice.yaml", "{}\n")]);
    let command = serve(dir.path(), &["--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    let served = Sluice::start(dir, command).await;
    let browser = Browser::open(&format!("http://{}/", served.admin)).await;
    browser.until(READY, STATUS).await;
    let empty = "document.getElementById('limits-empty').textContent";
    browser.until(&format!("{empty} === 'There are no limits yet.'"), empty).await;
    browser.type_in("#prefix", "a").await;
    browser.until(&format!("{empty} === 'No limit has such a key.'"), empty).await;
    fits(&browser, "empty").await;
}

#[cfg(feature = "tigerbeetle")]
#[tokio::test]
async fn the_page_says_that_the_ledger_is_away() {
    let dir = directory(&[("config/limits/limits.yaml", LIMITS)]);
    // A port that was free a moment ago: no TigerBeetle is there.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let ledger = format!("tigerbeetle:0@{free}");
    let arguments = ["--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--ledger", &ledger];
    let command = serve(dir.path(), &arguments);
    let served = Sluice::start(dir, command).await;
    let browser = Browser::open(&format!("http://{}/", served.admin)).await;
    browser.until(&format!("{STATUS}.startsWith('not ready')"), STATUS).await;
    let text = "document.getElementById('ledger-text').textContent";
    browser.until(&format!("{text}.includes('does not answer')"), text).await;
    let limits = "document.getElementById('limits-empty').textContent";
    assert_eq!(
        browser.value(limits).await,
        "What is used is not known while the ledger does not answer.",
        "not that there are none"
    );
    fits(&browser, "ledger-away").await;
    assert_eq!(browser.complaints().await, [""; 0]);
}
