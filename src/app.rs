//! The whole of Sluice, wired: bind, serve, and stop in an order that loses nothing.
//!
//! Used by the binary and, on port 0, by tests. Refuses to know command lines and signals.

mod hub;
pub(crate) mod ledger;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use self::hub::{HubPort, HubSocket, instance_name};
use self::ledger::{Opening, layered};
use crate::activity::Activity;
use crate::admin::{Admin, Gate, Part};
use crate::admission::Admission;
use crate::config::settings;
use crate::config::settings::secret::{Secret, check_admin_exposure, read_secrets, read_token};
use crate::config::settings::value::Listen;
use crate::config::{Layout, Loaded, Problem, Settings};
use crate::control::{Composed, Control, files, with_api, xds};
use crate::lease::Leases;
use crate::lease::token::Signer;
use crate::ledger::{Accounts, Ledger};
use crate::listen::{Listener, descriptors};
use crate::service::Service;
use crate::service::check::Tells;
use crate::service::ledgers::Ledgers;
use crate::snapshot::Snapshot;
use crate::state::{Broken, State};
use crate::tasks::Supervisor;
use crate::telemetry::Metrics;
use crate::tls::{self, Alpn, Certificates};
use crate::trace::{self, Otlp, Tracer};
use crate::{admin, clock, grpc, queue};

/// Calls in flight may take this long to finish when we stop; Envoy's own timeouts are far shorter.
const DRAIN_MAX: Duration = Duration::from_secs(10);

/// A collector may take this long for the last traces.
const TRACES_WITHIN: Duration = Duration::from_secs(3);

/// How often we look whether anybody is still connected.
const DRAIN_LOOK: Duration = Duration::from_millis(20);

/// Tasks may take this long to end after all that was promised is done. Idle connections stay open longer.
const TASKS_END_WITHIN: Duration = Duration::from_millis(500);

/// How often expired reservations of limits that nobody asks about are freed, and readiness is looked at.
const HOUSEKEEPING: Duration = Duration::from_millis(250);

/// What to run.
#[derive(Debug)]
pub struct Options {
    pub loaded: Loaded,
    /// The hot files to watch.
    pub files: Layout,
    /// `None`: what the admin API changes lasts as long as this process.
    pub state_dir: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("{0}: can't listen on {1}")]
    Bind(&'static str, Listen, #[source] std::io::Error),
    #[error("{0}")]
    Ledger(String),
    #[error("leases: {0}")]
    Secrets(String),
    #[error("{0}")]
    Token(String),
    #[error(transparent)]
    State(#[from] Broken),
    #[error("{0}.tls: {1}")]
    Tls(&'static str, tls::FileError),
}

/// A running server.
#[derive(Debug)]
pub struct App {
    pub grpc: Listen,
    pub admin: SocketAddr,
    /// The addresses of `/rlconfig` and of the metrics, where those have ports of their own.
    pub debug: Option<SocketAddr>,
    pub metrics: Option<SocketAddr>,
    /// The address of the hub port, if this instance is a hub.
    pub hub: Option<SocketAddr>,
    pub service: Arc<Service>,
    pub control: Arc<Control>,
    /// Stops the gRPC port, then everything else.
    stop_grpc: CancellationToken,
    health: grpc::Health,
    drain_wait: Duration,
    stop_admin: CancellationToken,
    hub_port: Option<HubPort>,
    tasks: Supervisor,
}

impl App {
    /// Binds, connects and serves. When it returns, the sockets are open.
    pub async fn start(options: Options) -> Result<Self, StartError> {
        let Loaded { settings, hot, files } = options.loaded;
        let gate = gate(&settings)?;
        let state = State::load(options.state_dir.as_deref())?;
        let composed = with_api(hot, &state, None).map_err(|problems| unfit(&state, &problems))?;
        let metrics = match &settings.metrics {
            wanted if wanted.ratelimit_names => {
                Metrics::default().with_ratelimit_names(wanted.near_limit_ratio)
            }
            _ => Metrics::default(),
        };
        let metrics = Arc::new(metrics);
        let certificates = Certificates::new(Arc::clone(&metrics));
        let secure = |port, files: &Option<tls::ServerFiles>, alpn| {
            let tls = files.as_ref().map(|files| certificates.server(files, alpn)).transpose();
            tls.map_err(|error| StartError::Tls(port, error))
        };
        let grpc_tls = secure("grpc", &settings.grpc.tls, Alpn::Http2)?;
        let admin_tls = secure("admin", &settings.admin.tls, Alpn::Http1)?;
        let xds = settings.config.xds.clone().map(|xds| xds::XdsServer::open(xds, &certificates)).transpose();
        let xds = xds.map_err(|error| StartError::Tls("config.xds", error))?;
        let grpc_listener = bind("grpc", &settings.grpc.listen, grpc_tls).await?;
        let grpc = grpc_listener.address().unwrap_or_else(|_| settings.grpc.listen.clone());
        let (admin_listener, admin) = bind_tcp("admin", settings.admin.listen, admin_tls).await?;
        let mut admin_listeners = vec![(admin_listener, Part::Everything(gate))];
        let (mut debug, mut metrics_port) = (None, None);
        if let Some(in_place) = &settings.in_place {
            let (listener, address) = bind_tcp("debug", in_place.debug, None).await?;
            admin_listeners.push((listener, Part::Debug));
            debug = Some(address);
            if let Some((wish, path)) = &in_place.metrics {
                let (listener, address) = bind_tcp("metrics", *wish, None).await?;
                admin_listeners.push((listener, Part::Metrics(path.clone())));
                metrics_port = Some(address);
            }
        }
        let hub_tls = secure("hub", &settings.hub.tls, Alpn::Http2)?;
        let ledger_tls = settings.ledger.tls.as_ref();
        let ledger_tls = ledger_tls.map(|files| certificates.client(files, Alpn::Http2)).transpose();
        let ledger_tls = ledger_tls.map_err(|error| StartError::Tls("ledger", error))?;
        let hub_socket = HubSocket::bind(&settings.hub, hub_tls).await?;
        let traces = settings.telemetry.otlp.as_ref();
        let traces_tls = traces.map(|traces| traces_tls(traces, &certificates)).transpose();
        let traces_tls = traces_tls.map_err(|error| StartError::Tls("telemetry.otlp", error))?.flatten();
        let signer = open_signer(&settings.leases)?;
        let (events, capacity_events) = mpsc::unbounded_channel();
        let name = instance_name(&place_of(&grpc));
        let (tracer, exporter) =
            traces.map(|traces| Tracer::new(traces.clone(), traces_tls, &name, &metrics)).unzip();
        let opening =
            Opening { ledger: &settings.ledger, name, hub_tls: ledger_tls, metrics: &metrics, events };
        let backend = opening.open()?;
        let line = backend.line();
        let ledger = layered(Arc::clone(&backend), &settings.ledger, &metrics);
        metrics.reloaded(true);
        let Composed { hot, retry_override, taken_over } = composed;
        let snapshot = Snapshot::new(1, clock::unix_ms(), hot, retry_override, &metrics, None);
        metrics.config_live(&snapshot.hash);
        let live = Arc::new(ArcSwap::from_pointee(snapshot));
        let accounts = Accounts::new(settings.limits.dynamic_keys_max);
        let admission = Admission {
            ledger,
            accounts,
            share: Arc::default(),
            activity: Activity::default(),
            tracer,
            metrics: Arc::clone(&metrics),
        };
        let leases = Leases::new(signer, settings.leases.book_max, Arc::clone(&metrics));
        let tells = Tells {
            dynamic_metadata: settings.grpc.response_dynamic_metadata,
            limit_headers: settings.grpc.limit_headers.clone(),
        };
        let ledgers = Ledgers::new(settings.ledger.uris(), clock::unix_ms(), settings.hub.listen.is_some());
        let service = Arc::new(Service::new(live, admission, leases, ledgers, line, metrics, tells));
        let supervisor = Supervisor::new();
        let tasks = supervisor.tasks();
        let control = Arc::new(Control::new(Arc::clone(&service), &files, state, tasks.clone()));
        control.taken_over(&taken_over).await;

        let (stop_grpc, stop_admin) = (CancellationToken::new(), CancellationToken::new());
        let (health, health_set) = tokio::sync::oneshot::channel();
        let shares = descriptors::shares(hub_socket.is_some());
        let grpc_port = grpc::port(shares.grpc, &service.metrics);
        let admin_port = admin::port(shares.admin, &service.metrics);
        let age = settings.grpc.connection_age;
        let serving =
            grpc::serve(grpc_listener, grpc_port, Arc::clone(&service), age, stop_grpc.clone(), |it| {
                drop(health.send(it))
            });
        tasks.run_until("the gRPC port", stop_grpc.clone(), async {
            serving.await;
            Ok::<(), String>(())
        });
        tasks.run_forever("the certificates", Arc::clone(&certificates).keep_current());
        let hub_port = hub_socket
            .map(|socket| socket.serve(backend, &settings.ledger, Arc::clone(&service), shares.hub, &tasks));
        let hub = hub_port.as_ref().map(HubPort::hub);
        let admin_state = Admin::new(Arc::clone(&service), Arc::clone(&control), certificates, hub);
        for (listener, part) in admin_listeners {
            let (port, state) = (Arc::clone(&admin_port), admin_state.clone());
            let serving_admin = admin::serve(listener, port, state, part, stop_admin.clone());
            tasks.run_until("the admin port", stop_admin.clone(), async {
                serving_admin.await;
                Ok::<(), String>(())
            });
        }
        exporter.into_iter().for_each(|exporter| tasks.run_forever("the traces", exporter.run()));
        tasks.run_forever("the queue", queue::runner::run(Arc::clone(&service)));
        tasks.run_forever("what is watched", Arc::clone(&service).watch_activity());
        tasks.run_forever("provisioning", Arc::clone(&control).keep_provisioned());
        tasks.run_forever("the state", Arc::clone(&control).remember_capacity(capacity_events));
        if !options.files.is_empty() {
            tasks.run_forever("the files", files::run(Arc::clone(&control), options.files, files));
        }
        if let Some(xds) = xds {
            if xds.must_answer() {
                service.wait_for_configuration();
            }
            tasks.run_forever("the xDS client", xds::run(Arc::clone(&control), xds));
        }
        let Ok(health) = health_set.await else {
            return Err(StartError::Ledger("the gRPC server ended".to_owned()));
        };
        health.set(service.ready().is_ok()).await;
        tasks.run_forever("housekeeping", keep_house(Arc::clone(&service), health.clone()));
        let drain_wait = Duration::from_secs(settings.drain.wait_seconds);
        let tasks = supervisor;
        let hub = hub_port.as_ref().map(|port| port.address);
        Ok(Self {
            grpc,
            admin,
            debug,
            metrics: metrics_port,
            hub,
            service,
            control,
            stop_grpc,
            health,
            drain_wait,
            stop_admin,
            hub_port,
            tasks,
        })
    }

    /// Returns when a part of the server ends by itself, which none should. Says which part, and why.
    pub async fn failed(&self) -> String {
        self.tasks.failure().await
    }

    /// Stops. The order, and the race that each step prevents:
    ///
    /// 1. readiness falls while we still serve, and those who are connected get time to see it, or a router would send calls to
    ///    a port that is closing;
    /// 2. the queue closes: those who wait and those who watch would hold up the calls;
    /// 3. the gRPC port finishes its calls, and only then
    /// 4. the completions that their callers did not wait for: a call that finishes may start one;
    /// 5. sidecars are sent to other hubs, get their last answers, and what they were lent and did not spend is given back;
    /// 6. the ledger lands its last batch: the other way round, a call in flight would find no ledger and an admitted
    ///    request would be answered as an error;
    /// 7. the traces of all that are sent;
    /// 8. the admin port goes last, so that whoever watches can see all of it.
    pub async fn stop(self) {
        self.service.start_draining();
        self.health.set(false).await;
        // That they are still connected after that is no reason to wait longer.
        drop(tokio::time::timeout(self.drain_wait, self.nobody_connected()).await);
        self.stop_grpc.cancel();
        self.service.queue.close(DRAIN_MAX).await;
        // Calls, not connections: health clients hold streams open for as long as they like.
        if tokio::time::timeout(DRAIN_MAX, self.service.finish_calls()).await.is_err() {
            tracing::warn!("calls did not finish in time");
        }
        self.service.leases.close(DRAIN_MAX).await;
        if let Some(hub) = &self.hub_port {
            hub.leave(DRAIN_MAX).await;
        }
        self.service.admission.ledger.close().await;
        if let Some(tracer) = &self.service.admission.tracer {
            tracer.flush(TRACES_WITHIN).await;
        }
        self.service.end_watching();
        self.stop_admin.cancel();
        self.control.close().await;
        // Idle connections may stay open; nothing is promised on them.
        self.tasks.stop(TASKS_END_WITHIN).await;
    }

    async fn nobody_connected(&self) {
        while self.service.connected() > 0 {
            tokio::time::sleep(DRAIN_LOOK).await;
        }
    }
}

async fn bind(
    name: &'static str,
    address: &Listen,
    tls: Option<Arc<tls::ServerTls>>,
) -> Result<Listener, StartError> {
    let bound = Listener::bind(address).await;
    let listener = bound.map_err(|error| StartError::Bind(name, address.clone(), error))?;
    Ok(match tls {
        Some(tls) => listener.secured(tls),
        None => listener,
    })
}

async fn bind_tcp(
    name: &'static str,
    wish: SocketAddr,
    tls: Option<Arc<tls::ServerTls>>,
) -> Result<(Listener, SocketAddr), StartError> {
    let listener = bind(name, &Listen::Tcp(wish), tls).await?;
    let address = match listener.address() {
        Ok(Listen::Tcp(address)) => address,
        _ => wish,
    };
    Ok((listener, address))
}

/// TLS towards the collector, if it has any.
fn traces_tls(traces: &Otlp, certificates: &Certificates) -> Result<Option<trace::Tls>, tls::FileError> {
    if !traces.endpoint.is_tls() {
        return Ok(None);
    }
    let files = traces.tls.clone().unwrap_or_else(tls::ClientFiles::of_this_machine);
    let client = |alpn| certificates.client(&files, alpn);
    Ok(Some(trace::Tls { grpc: client(Alpn::Http2)?, http: client(Alpn::Http1)? }))
}

/// What signs lease tokens.
fn open_signer(leases: &settings::Leases) -> Result<Signer, StartError> {
    let secrets = match &leases.secrets_file {
        Some(path) => read_secrets(path).map_err(StartError::Secrets)?,
        None => leases.secrets.clone(),
    };
    if let Some(signer) = Signer::new(secrets.iter().map(|secret| secret.expose().as_bytes())) {
        return Ok(signer);
    }
    tracing::warn!(
        "leases.secrets is not set: lease tokens are signed with a secret made up for this process. They can't be \
         completed by other instances, nor by this one after a restart; what they hold then comes back when it expires"
    );
    Signer::made_up().map_err(|error| StartError::Secrets(format!("no randomness: {error}")))
}

/// Who may use the admin port.
fn gate(settings: &Settings) -> Result<Gate, StartError> {
    let admin = &settings.admin;
    let token = token_of(admin.token.as_ref(), admin.token_file.as_deref())?;
    if settings.in_place.is_some() {
        return Ok(Gate::in_place(token.as_ref()));
    }
    check_admin_exposure(admin.listen, token.is_some()).map_err(StartError::Token)?;
    Ok(Gate::new(token.as_ref(), admin.open_reads))
}

/// A token as it was given, or that of a file.
fn token_of(token: Option<&Secret>, file: Option<&Path>) -> Result<Option<Secret>, StartError> {
    match (token, file) {
        (Some(token), _) => Ok(Some(token.clone())),
        (None, Some(file)) => read_token(file).map(Some).map_err(StartError::Token),
        (None, None) => Ok(None),
    }
}

/// What tells this instance from others on the same machine: its port or its socket.
fn place_of(grpc: &Listen) -> String {
    match grpc {
        Listen::Tcp(address) => address.port().to_string(),
        Listen::Unix(path) => path.display().to_string(),
    }
}

fn unfit(state: &State, problems: &[Problem]) -> Broken {
    let words: Vec<String> = problems.iter().map(ToString::to_string).collect();
    state.override_does_not_fit(&words.join("; "))
}

/// Frees what expired and tells health checks what readiness is.
async fn keep_house(service: Arc<Service>, health: grpc::Health) {
    let mut was_ready = None;
    loop {
        service.admission.ledger.sweep();
        service.leases.sweep();
        let ready = service.ready().is_ok();
        if was_ready != Some(ready) {
            health.set(ready).await;
            was_ready = Some(ready);
        }
        tokio::time::sleep(HOUSEKEEPING).await;
    }
}
