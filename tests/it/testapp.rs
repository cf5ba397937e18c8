//! The whole of Sluice in this process, on free ports: `TestApp::with_limits("domain: d …").start().await`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use sluice::app::{App, Options, StartError};
use sluice::config::Settings;
use sluice::config::settings::value::Listen;
use sluice::protos::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tonic::transport::{Channel, Endpoint};

use crate::http::{self, Answer};
use crate::wait::until;

/// A server that runs until it is dropped.
pub struct TestApp {
    pub app: App,
    pub channel: Channel,
    pub dir: tempfile::TempDir,
}

type Change = Box<dyn FnOnce(&mut Settings)>;

/// What to start.
#[derive(Default)]
pub struct Builder {
    dir: Option<tempfile::TempDir>,
    files: Vec<(String, String)>,
    settings: Vec<Change>,
}

impl TestApp {
    pub fn with_limits(yaml: &str) -> Builder {
        Builder::default().and_limits(yaml)
    }

    pub fn client(&self) -> RateLimitServiceClient<Channel> {
        RateLimitServiceClient::new(self.channel.clone())
    }

    pub fn grpc(&self) -> SocketAddr {
        match &self.app.grpc {
            Listen::Tcp(address) => *address,
            Listen::Unix(path) => panic!("{} has no port", path.display()),
        }
    }

    pub async fn get(&self, path: &str) -> Answer {
        http::get(self.app.admin, path).await
    }

    /// Waits until `/readyz` answers so.
    pub async fn readiness(&self, expected: u16) {
        until("readiness", async || {
            let answer = self.get("/readyz").await;
            if answer.status == expected { Ok(()) } else { Err(format!("{answer:?}")) }
        })
        .await;
    }

    pub async fn post(&self, path: &str, body: &str) -> Answer {
        http::post(self.app.admin, path, body).await
    }

    pub async fn send(&self, method: &str, path: &str, body: &str) -> Answer {
        http::send(self.app.admin, method, path, &[], body.to_owned()).await
    }

    /// Stops it, and leaves its files for another.
    pub async fn stop(self) -> tempfile::TempDir {
        self.app.stop().await;
        self.dir
    }
}

impl Builder {
    /// On the files of an earlier one.
    pub fn in_dir(dir: tempfile::TempDir) -> Self {
        Self { dir: Some(dir), ..Self::default() }
    }

    /// One more limits file.
    pub fn and_limits(self, yaml: &str) -> Self {
        let name = format!("limits/{}.yaml", self.files.len());
        self.and_file(&name, yaml)
    }

    pub fn and_file(mut self, name: &str, text: &str) -> Self {
        self.files.push((name.to_owned(), text.to_owned()));
        self
    }

    pub fn and_settings(mut self, change: impl FnOnce(&mut Settings) + 'static) -> Self {
        self.settings.push(Box::new(change));
        self
    }

    pub fn on_socket(self, path: PathBuf) -> Self {
        self.and_settings(move |settings| settings.grpc.listen = Listen::Unix(path))
    }

    pub async fn start(self) -> TestApp {
        self.try_start().await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Why it does not start, and the files it refused.
    pub async fn refused(mut self) -> (StartError, tempfile::TempDir) {
        let dir = self.dir.take().unwrap_or_else(|| tempfile::tempdir().unwrap());
        match self.start_in(dir.path()).await {
            Ok(_) => panic!("it started"),
            Err(error) => (error, dir),
        }
    }

    pub async fn try_start(mut self) -> Result<TestApp, StartError> {
        let dir = self.dir.take().unwrap_or_else(|| tempfile::tempdir().unwrap());
        let app = self.start_in(dir.path()).await?;
        let channel = channel(&app.grpc).await;
        Ok(TestApp { app, channel, dir })
    }

    async fn start_in(self, dir: &Path) -> Result<App, StartError> {
        for (name, text) in &self.files {
            let path = dir.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let mut loaded = sluice::config::load(Some(dir))
            .unwrap_or_else(|problems| panic!("{problems:#?} in {:#?}", self.files));
        let free = SocketAddr::from(([127, 0, 0, 1], 0));
        loaded.settings.grpc.listen = Listen::Tcp(free);
        loaded.settings.admin.listen = free;
        // Every test is connected, and no test but its own waits for that.
        loaded.settings.drain.wait_seconds = 0;
        for change in self.settings {
            change(&mut loaded.settings);
        }
        let state_dir = dir.join("state");
        App::start(Options { loaded, files: dir.to_owned().into(), state_dir: Some(state_dir) }).await
    }
}

/// One connection.
pub async fn channel(address: &Listen) -> Channel {
    let uri = match address {
        Listen::Tcp(address) => format!("http://{address}"),
        Listen::Unix(path) => format!("unix://{}", path.display()),
    };
    Endpoint::from_shared(uri).unwrap().connect().await.expect("a started server must accept")
}
