//! A real Chromium without a window, driven over WebDriver. `SLUICE_TEST_CHROMIUM` and `SLUICE_TEST_CHROMEDRIVER` name the
//! programs; without them the tests fail.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use serde_json::{Value, json};

use crate::http;
use crate::process::Process;
use crate::wait::until;

/// One browser with one page. Closed when dropped.
pub struct Browser {
    driver: SocketAddr,
    session: String,
    _process: Process,
}

fn program(variable: &str) -> String {
    let found = std::env::var(variable).ok().filter(|name| !name.is_empty());
    found.unwrap_or_else(|| panic!("{variable} must name a program: run `make test`, which installs it"))
}

impl Browser {
    pub async fn open(url: &str) -> Self {
        let mut command = Command::new(program("SLUICE_TEST_CHROMEDRIVER"));
        let mut process = Process::start("chromedriver", command.arg("--port=0"));
        let said = process.line("ChromeDriver was started successfully on port ").await;
        let port = said.trim_end_matches('.').parse().expect("a port");
        let driver = SocketAddr::from(([127, 0, 0, 1], port));
        // Without a sandbox, because tests may run as root; it sees only our own page.
        let arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"];
        let options = json!({"binary": program("SLUICE_TEST_CHROMIUM"), "args": arguments});
        let wanted = json!({"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}});
        let body = json!({"capabilities": {"alwaysMatch": wanted}}).to_string();
        let answer = http::post(driver, "/session", &body).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let session = answer.json()["value"]["sessionId"].as_str().expect("a session").to_owned();
        let browser = Self { driver, session, _process: process };
        browser.go(url).await;
        browser
    }

    async fn call(&self, path: &str, body: Value) -> Value {
        let path = format!("/session/{}/{path}", self.session);
        let answer = http::post(self.driver, &path, &body.to_string()).await;
        assert_eq!(answer.status, 200, "{path} {body}: {answer:?}");
        answer.json()["value"].take()
    }

    pub async fn go(&self, url: &str) {
        self.call("url", json!({ "url": url })).await;
    }

    /// What a JavaScript expression is in the page.
    pub async fn value(&self, expression: &str) -> Value {
        self.call("execute/sync", json!({"script": format!("return {expression}"), "args": []})).await
    }

    /// Waits until an expression is true. `seen` is told if it never is.
    pub async fn until(&self, expression: &str, seen: &str) {
        until(expression, async || match self.value(expression).await {
            Value::Bool(true) => Ok(()),
            _ => Err(self.value(seen).await.to_string()),
        })
        .await;
    }

    /// Types into an element as a person would.
    pub async fn type_in(&self, selector: &str, text: &str) {
        let found = self.call("element", json!({"using": "css selector", "value": selector})).await;
        let element = found.as_object().and_then(|it| it.values().next()?.as_str()).expect("an element");
        self.call(&format!("element/{element}/value"), json!({ "text": text })).await;
    }

    /// What the browser complained about since the last time: errors, warnings, broken rules of the security policy.
    pub async fn complaints(&self) -> Vec<String> {
        let log = self.call("se/log", json!({"type": "browser"})).await;
        let entries = log.as_array().expect("a list").iter();
        let bad = entries.filter(|entry| entry["level"] == "SEVERE" || entry["level"] == "WARNING");
        bad.map(|entry| entry["message"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// As wide and high as a phone or a desk, and dark or light.
    pub async fn look_like(&self, width: u32, height: u32, scheme: &str) {
        let metrics = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        let feature = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        for (command, parameters) in
            [("Emulation.setDeviceMetricsOverride", metrics), ("Emulation.setEmulatedMedia", feature)]
        {
            self.call("goog/cdp/execute", json!({"cmd": command, "params": parameters})).await;
        }
    }

    /// A picture of what is shown, as PNG in base64.
    pub async fn picture(&self) -> String {
        let path = format!("/session/{}/screenshot", self.session);
        let answer = http::get(self.driver, &path).await;
        answer.json()["value"].as_str().expect("a picture").to_owned()
    }
}

impl Drop for Browser {
    /// The driver would leave Chromium behind if it were only killed.
    fn drop(&mut self) {
        let Ok(mut stream) = TcpStream::connect(self.driver) else { return };
        let call = format!(
            "DELETE /session/{} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n",
            self.session, self.driver
        );
        // A driver that is gone has no session.
        let _ = stream.write_all(call.as_bytes());
        let _ = stream.read(&mut [0; 1024]);
    }
}
