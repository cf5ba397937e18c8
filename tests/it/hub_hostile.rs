//! The hub port towards those who may not come in, can't be understood, or mean no good.

use std::time::Duration;

use sluice::config::settings::secret::Secret;
use sluice::config::settings::value::LedgerUri;
use sluice::ledger::hub::pb;
use sluice::ledger::hub::pb::answer::What as Answer;
use sluice::ledger::hub::pb::ask::What as Ask;
use sluice::ledger::hub::pb::ledger_service_client::LedgerServiceClient;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use crate::ask::request;
use crate::hub::{address, hub_on, ledger, ready, sidecar};
use crate::sluice::{directory, run, serve};
use crate::testapp::{TestApp, channel};
use crate::wait::until;

const LIMITS: &str = "
domain: d
descriptors:
- {key: k, rate_limit: {unit: hour, requests_per_unit: 5}}
";

fn hello() -> pb::Hello {
    pb::Hello { version: "0.1.0".to_owned(), name: "a test".to_owned(), major: 1, minor: 0 }
}

/// A stream by hand.
pub struct Raw {
    out: mpsc::Sender<pb::SidecarMessage>,
    from_hub: Streaming<pb::HubMessage>,
}

async fn client(hub: &TestApp) -> LedgerServiceClient<Channel> {
    let address = address(hub).parse().expect("an address");
    LedgerServiceClient::new(channel(&sluice::config::settings::value::Listen::Tcp(address)).await)
}

impl Raw {
    async fn open(hub: &TestApp, first: pb::SidecarMessage) -> Result<Self, Status> {
        let (out, messages) = mpsc::channel(64);
        out.send(first).await.unwrap();
        let from_hub = client(hub).await.open(ReceiverStream::new(messages)).await?.into_inner();
        Ok(Self { out, from_hub })
    }

    pub async fn greeted(hub: &TestApp) -> Self {
        let first = pb::SidecarMessage { hello: Some(hello()), ..Default::default() };
        let mut raw = Self::open(hub, first).await.unwrap();
        let answer = raw.from_hub.message().await.unwrap().unwrap();
        assert!(
            answer.hello.is_some() && answer.status.is_some_and(|status| status.ready),
            "its first words"
        );
        raw
    }

    pub async fn say(&self, message: pb::SidecarMessage) {
        self.out.send(message).await.unwrap();
    }

    pub async fn ask(&mut self, number: u64, what: Option<Ask>) -> Answer {
        self.say(pb::SidecarMessage { asks: vec![pb::Ask { number, what }], ..Default::default() }).await;
        loop {
            let message = self.from_hub.message().await.unwrap().expect("the stream must go on");
            if let Some(answer) = message.answers.into_iter().find(|answer| answer.number == number) {
                return answer.what.unwrap();
            }
        }
    }

    /// How the hub ends it.
    pub async fn ended(mut self) -> Status {
        loop {
            match self.from_hub.message().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("it ended without a word"),
                Err(status) => return status,
            }
        }
    }
}

fn chain(key: &str, amount: u64) -> pb::Chain {
    let transfer = pb::Transfer {
        key: key.to_owned(),
        action: pb::Action::Reserve.into(),
        amount,
        lifetime_seconds: 3600,
        capacity: 5,
        overage: pb::Overage::Deny.into(),
    };
    pb::Chain {
        lease: format!("{key}-{amount}"),
        keep: pb::Keep::ForRetries.into(),
        transfers: vec![transfer],
        slab_window_seconds: 0,
    }
}

pub fn failure(answer: Answer) -> (pb::FailureCode, String) {
    match answer {
        Answer::Failure(failure) => (failure.code(), failure.text),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn another_major_version_is_refused_and_another_minor_one_is_not() {
    let hub = hub_on(LedgerUri::Memory).start().await;
    let open = async |hello| {
        let first = pb::SidecarMessage { hello: Some(hello), ..Default::default() };
        Raw::open(&hub, first).await.map(|_| ())
    };
    open(pb::Hello { minor: 9, ..hello() }).await.unwrap();
    let status = open(pb::Hello { major: 2, ..hello() }).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("speaks version 2.0 of LedgerService"), "{status}");
    let status = Raw::open(&hub, pb::SidecarMessage::default()).await.map(|_| ()).unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::InvalidArgument, "the first message must have `hello`")
    );
}

/// What a hub doesn't know is an answer and no end, so that a newer sidecar can go on without it.
#[tokio::test]
async fn what_a_hub_does_not_know_is_said() {
    let hub = hub_on(LedgerUri::Memory).start().await;
    let mut raw = Raw::greeted(&hub).await;
    let (code, text) = failure(raw.ask(7, None).await);
    assert_eq!(code, pb::FailureCode::Invalid);
    assert!(text.contains("doesn't know what was asked"), "{text}");
    let rows: [(&str, fn(&mut pb::Chain), &str); 4] = [
        ("action", |it| it.transfers[0].action = 77, "action: 77 is none of those that this hub knows"),
        ("key", |it| it.transfers[0].key = "x".repeat(300_000), "key: must have 1 to 262144 bytes"),
        ("lifetime", |it| it.transfers[0].lifetime_seconds = 0, "lifetime_seconds: must be at least 1"),
        ("many", |it| it.transfers = vec![it.transfers[0].clone(); 65], "there must be 1 to 64, not 65"),
    ];
    for (number, (name, change, expected)) in rows.into_iter().enumerate() {
        let mut bad = chain(name, 1);
        change(&mut bad);
        let (code, text) = failure(raw.ask(100 + number as u64, Some(Ask::Apply(bad))).await);
        assert!(code == pb::FailureCode::Invalid && text.contains(expected), "{name}: {code:?} {text}");
    }
    let void = pb::Transfer { key: "k".to_owned(), action: pb::Action::Void.into(), ..Default::default() };
    let settles = pb::Chain { transfers: vec![void], ..chain("k", 1) };
    let (_, text) = failure(raw.ask(200, Some(Ask::GiveBack(settles))).await);
    assert!(text.contains("only what reserves can be given back"), "{text}");
    let outcome = raw.ask(201, Some(Ask::Apply(chain("good", 5)))).await;
    assert!(matches!(outcome, Answer::Outcome(pb::Outcome { refusal: None, .. })), "{outcome:?}");
}

#[tokio::test]
async fn who_breaks_the_rules_is_told_and_sent_away() {
    let hub = hub_on(LedgerUri::Memory).start().await;
    let raw = Raw::greeted(&hub).await;
    let ask = |number| pb::Ask { number, what: Some(Ask::Apply(chain("k", 1))) };
    raw.say(pb::SidecarMessage { asks: (0..4097).map(ask).collect(), ..Default::default() }).await;
    let status = raw.ended().await;
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("there may be 4096 in a message, not 4097"), "{status}");
    let raw = Raw::greeted(&hub).await;
    let long = pb::Hello { name: "x".repeat(2 << 20), ..hello() };
    raw.say(pb::SidecarMessage { hello: Some(long), ..Default::default() }).await;
    let status = raw.ended().await;
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    let long = pb::Hello { name: "x".repeat(300), ..hello() };
    let first = pb::SidecarMessage { hello: Some(long), ..Default::default() };
    let status = Raw::open(&hub, first).await.map(|_| ()).unwrap_err();
    assert!(status.message().contains("may have 256 bytes"), "{status}");
}

/// Seeded bytes, some of them behind a good preface; the hub goes on for everybody else.
#[tokio::test]
async fn hostile_bytes_harm_nobody() {
    let hub = hub_on(LedgerUri::Memory).start().await;
    let app = sidecar(LIMITS, &[&hub]).start().await;
    ready(&app).await;
    let mut random = fastrand::Rng::with_seed(7);
    for n in 0..200 {
        let mut stream = TcpStream::connect(address(&hub)).await.unwrap();
        let mut bytes = if n % 2 == 0 { Vec::new() } else { b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec() };
        let count = random.usize(..4_000);
        bytes.extend(std::iter::repeat_with(|| random.u8(..)).take(count));
        // It may be closed already.
        let _ = stream.write_all(&bytes).await;
        if n % 3 == 0 {
            let mut answer = Vec::new();
            drop(tokio::time::timeout(Duration::from_millis(20), stream.read_to_end(&mut answer)).await);
        }
    }
    let mut raw = Raw::greeted(&hub).await;
    let outcome = raw.ask(1, Some(Ask::Apply(chain("after", 5)))).await;
    assert!(matches!(outcome, Answer::Outcome(pb::Outcome { refusal: None, .. })), "{outcome:?}");
    let answer = app.client().should_rate_limit(request("k=v")).await.unwrap().into_inner();
    assert_eq!(answer.overall_code(), sluice::api::pb::Code::Ok);
}

#[tokio::test]
async fn only_who_has_the_token_comes_in() {
    let token = Some(Secret::new("open sesame"));
    let hub =
        hub_on(LedgerUri::Memory).and_settings(move |settings| settings.hub.token = token).start().await;
    let others = [(None, "this hub needs a token"), (Some("open sesam"), "this hub has another token")];
    for (carried, expected) in others {
        let app = sidecar(LIMITS, &[&hub]);
        let app = app.and_settings(move |settings| settings.ledger.token = carried.map(Secret::new));
        let app = app.start().await;
        until("to be refused", async || {
            let answer = app.get("/readyz").await;
            let is_so = answer.status == 503 && answer.body.contains(&format!("Unauthenticated: {expected}"));
            if is_so { Ok(()) } else { Err(answer.body) }
        })
        .await;
    }
    let app = sidecar(LIMITS, &[&hub]);
    let app = app.and_settings(|settings| settings.ledger.token = Some(Secret::new("open sesame")));
    ready(&app.start().await).await;
}

#[tokio::test]
async fn a_hub_is_open_to_other_machines_only_with_a_token() {
    let open = |settings: &mut sluice::config::Settings| settings.hub.listen = "0.0.0.0:0".parse().ok();
    let (error, _) = hub_on(LedgerUri::Memory).and_settings(open).refused().await;
    let text = error.to_string();
    assert!(
        text.contains("the hub address 0.0.0.0:0 can be reached from other machines: set hub.tls"),
        "{text}"
    );
    let token = |settings: &mut sluice::config::Settings| settings.hub.token = Some(Secret::new("t"));
    hub_on(LedgerUri::Memory).and_settings(open).and_settings(token).start().await;
}

/// The binary: what it prints, its variables and its files.
#[tokio::test]
async fn the_binary_prints_where_its_sidecars_come() {
    let files = [
        ("config/sluice.yaml", "hub: {listen: '127.0.0.1:0', token_file: token}\n"),
        ("token", "open sesame\n"),
    ];
    let dir = directory(&files);
    let command = serve(dir.path(), &["--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    let mut hub = crate::sluice::Sluice::start(dir, command).await;
    let address = hub.process.line("hub listening on ").await;
    assert!(!hub.process.stderr().contains("there is no limits"), "a hub needs none");
    let dir = directory(&[("config/limits/limits.yaml", LIMITS)]);
    let uri = format!("hub:{address}");
    let mut command =
        serve(dir.path(), &["--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--ledger", &uri]);
    command.env("SLUICE_LEDGER_TOKEN", "open sesame");
    let sidecar = crate::sluice::Sluice::start(dir, command).await;
    until("readiness", async || {
        let answer = crate::http::get(sidecar.admin, "/readyz").await;
        if answer.status == 200 { Ok(()) } else { Err(answer.body) }
    })
    .await;
    let metrics = crate::http::get(hub.admin, "/metrics").await.body;
    assert!(metrics.contains("sluice_hub_streams 1"), "{metrics}");
    let dir = directory(&[]);
    let ran = run(&mut serve(
        dir.path(),
        &["--hub", "0.0.0.0:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"],
    ));
    assert!(ran.code == 1 && ran.stderr.contains("can be reached from other machines"), "{ran:?}");
}

/// A hub that goes and comes back at the same address is used again.
#[tokio::test]
async fn which_hub_is_away_and_why_is_said() {
    let hub = hub_on(LedgerUri::Memory).start().await;
    let gone = hub_on(LedgerUri::Memory).start().await;
    let away = address(&gone);
    let (there, port) = (ledger(&[&hub, &gone]).await, gone.app.hub);
    gone.stop().await;
    use sluice::ledger::Ledger;
    assert_eq!(there.ready(), Ok(()), "one is enough");
    hub.stop().await;
    until("both to be away", async || match there.ready() {
        Err(why) if why.contains(&format!("{away}: ")) && why.contains("no hub can be used") => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    let again =
        hub_on(LedgerUri::Memory).and_settings(move |settings| settings.hub.listen = port).start().await;
    until("one to be back", async || there.ready()).await;
    drop(again);
}
