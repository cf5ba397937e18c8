//! An xDS server as a source: its limits come over an aggregated discovery stream, each answer with all of them.
//!
//! The state-of-the-world protocol: we ask once, the server answers whenever something changes, and every answer is
//! acknowledged or refused with every problem it has. A refused answer leaves what was live. Each stream starts from nothing,
//! with an empty version and nonce: versions of a server that was restarted say nothing about those before, so they are
//! never compared. Refuses to know what a limit means.

mod resources;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use self::resources::{TYPE_URL, content};
use super::Control;
use crate::config::Problem;
use crate::config::settings::Xds;
use crate::protos::envoy::config::core::v3::Node;
use crate::protos::envoy::config::core::v3::node::UserAgentVersionType;
use crate::protos::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use crate::protos::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use crate::protos::google::rpc::Status as Refusal;
pub use crate::protos::ratelimit as pb;
use crate::retry::backoff::Backoff;
use crate::tls::{self, Alpn, Certificates};

/// What this source is called.
pub const SOURCE: &str = "xds";

/// An answer has all limits of all domains; gRPC's own default of 4 MB is too little for a large site.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// What may be on its way before anybody has read it: large answers should not wait for acknowledgements.
const WINDOW_BYTES: u32 = 1 << 20;

/// The longest text of a refusal: gRPC servers take messages of 4 MB, and hang up on who sends more.
const REFUSAL_BYTES_MAX: usize = 1 << 20;
/// The longest text of one problem in a refusal.
const PROBLEM_BYTES_MAX: usize = 4 << 10;

const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// A peer that is gone without a word is noticed after both. gRPC servers in Go hang up on who asks more often than once in
/// five minutes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(330);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// The least pause between a connection that was lost and the next one, for a server that accepts connections and closes them at once.
const RECONNECT_AFTER: Duration = Duration::from_millis(200);

/// A server, and the TLS towards it.
#[derive(Debug)]
pub(crate) struct XdsServer {
    settings: Xds,
    tls: Option<Arc<tls::ClientTls>>,
}

impl XdsServer {
    /// Its certificates are read now and followed from now on; nobody is called yet.
    pub(crate) fn open(settings: Xds, certificates: &Certificates) -> Result<Self, tls::FileError> {
        let tls = settings.tls.as_ref().map(|files| certificates.client(files, Alpn::Http2)).transpose()?;
        Ok(Self { settings, tls })
    }

    /// Whether this instance is not ready before the server has answered.
    pub(crate) fn must_answer(&self) -> bool {
        self.settings.must_answer
    }

    async fn connect(&self) -> Result<Channel, Status> {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.settings.server))
            .map_err(|error| Status::invalid_argument(error.to_string()))?
            .user_agent(concat!("sluice/", env!("CARGO_PKG_VERSION")))
            .map_err(|error| Status::internal(error.to_string()))?
            .connect_timeout(CONNECT_WITHIN)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT);
        let connected = match &self.tls {
            Some(tls) => endpoint.connect_with_connector(tls.connector(CONNECT_WITHIN)).await,
            None => endpoint.connect().await,
        };
        connected.map_err(|error| Status::unavailable(whole(&error)))
    }
}

/// Follows a server for as long as it runs.
pub(crate) async fn run(control: Arc<Control>, server: XdsServer) {
    let name = server.settings.server.to_string();
    let mut follower =
        Follower { control, server, backoff: Backoff::default(), is_heard: false, refused: None };
    let mut said = String::new();
    loop {
        let error = follower.follow().await;
        if std::mem::take(&mut follower.is_heard) {
            said.clear();
        }
        // An error that repeats is logged once.
        if error != said {
            tracing::warn!(server = name, error, "no stream to the xDS server: what it said last stays");
            said = error;
        }
        let wait = follower.backoff.wait(|n| fastrand::u64(0..=n));
        tokio::time::sleep(RECONNECT_AFTER + wait).await;
    }
}

struct Follower {
    control: Arc<Control>,
    server: XdsServer,
    /// Counts the tries since the server last answered.
    backoff: Backoff,
    /// The server has answered since the last try.
    is_heard: bool,
    /// Repeats of an answer that was refused.
    refused: Option<Backoff>,
}

impl Follower {
    /// One stream, from its start to its end: why it ended.
    async fn follow(&mut self) -> String {
        match self.stream().await {
            Ok(()) => "the server ended the stream".to_owned(),
            Err(status) => match status.message() {
                "" => status.code().description().to_owned(),
                message => message.to_owned(),
            },
        }
    }

    async fn stream(&mut self) -> Result<(), Status> {
        let channel = self.server.connect().await?;
        let mut client =
            AggregatedDiscoveryServiceClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
        // At most one request is on its way while its answer is awaited.
        let (requests, outgoing) = mpsc::channel(2);
        let ended = |_| Status::unavailable("the server ended the stream");
        requests.send(self.request()).await.map_err(ended)?;
        let answers = client.stream_aggregated_resources(ReceiverStream::new(outgoing)).await;
        let mut answers = answers?.into_inner();
        tracing::info!(server = %self.server.settings.server, "the xDS server has answered");
        // What was accepted on this stream; a refusal names it.
        let mut accepted = String::new();
        while let Some(answer) = answers.message().await? {
            self.backoff.reset();
            self.is_heard = true;
            if answer.type_url != TYPE_URL {
                tracing::warn!(type_url = answer.type_url, "the xDS server sent what was not asked for");
                continue;
            }
            let error_detail = match self.update(&answer).await {
                Ok(()) => {
                    accepted.clone_from(&answer.version_info);
                    None
                }
                Err(problems) => Some(refusal(&problems)),
            };
            let reply = DiscoveryRequest {
                version_info: accepted.clone(),
                response_nonce: answer.nonce,
                error_detail,
                ..self.request()
            };
            requests.send(reply).await.map_err(ended)?;
        }
        Ok(())
    }

    /// The first of a stream: everything is wanted, nothing is known.
    fn request(&self) -> DiscoveryRequest {
        let version = UserAgentVersionType::UserAgentVersion(env!("CARGO_PKG_VERSION").to_owned());
        let node = Node {
            id: self.server.settings.node_id.clone(),
            user_agent_name: "sluice".to_owned(),
            user_agent_version_type: Some(version),
            ..Default::default()
        };
        DiscoveryRequest { node: Some(node), type_url: TYPE_URL.to_owned(), ..Default::default() }
    }

    async fn update(&mut self, answer: &DiscoveryResponse) -> Result<(), Vec<Problem>> {
        let (version, count) = (answer.version_info.as_str(), answer.resources.len());
        let content = Arc::new(content(&answer.resources));
        match self.control.update(SOURCE, content).await {
            Ok(()) => {
                tracing::debug!(version, resources = count, "limits of the xDS server are live");
                self.refused = None;
                self.control.service.configured();
                Ok(())
            }
            Err(problems) => {
                tracing::debug!(version, resources = count, "limits of the xDS server were refused");
                // Some servers send what was refused again at once, and would do so for ever.
                let again = self.refused.get_or_insert_default();
                tokio::time::sleep(again.wait(|n| fastrand::u64(0..=n))).await;
                Err(problems)
            }
        }
    }
}

fn refusal(problems: &[Problem]) -> Refusal {
    let mut message = String::new();
    for (told, problem) in problems.iter().enumerate() {
        if message.len() > REFUSAL_BYTES_MAX - PROBLEM_BYTES_MAX {
            message.push_str(&format!("; and {} more problems", problems.len() - told));
            break;
        }
        let text = problem.to_string();
        message.push_str(if told == 0 { "" } else { "; " });
        message.push_str(&text[..text.floor_char_boundary(PROBLEM_BYTES_MAX)]);
    }
    Refusal { code: Code::InvalidArgument as i32, message, details: Vec::new() }
}

/// An error and all that caused it; some say themselves what caused them.
fn whole(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = error.source();
    }
    text
}
