//! The files of TLS while a real process runs: what it says at start, what later, and that no call fails while they change.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::json;
use sluice::tls::{Alpn, ClientFiles, ClientTls};

use crate::authority::Authority;
use crate::http;
use crate::sluice::{Sluice, directory, run, serve};
use crate::tls::{LIMITS, ask_anew, ask_on, connect, files, port, start, start_grpc};
use crate::wait::until;

const FREE: [&str; 4] = ["--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tls").join(name)
}

/// What a process says that does not start with these settings.
fn refusal(settings: &str) -> String {
    let dir = directory(&[("config/limits/limits.yaml", LIMITS), ("config/sluice.yaml", settings)]);
    let ran = run(&mut serve(dir.path(), &FREE));
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{ran:?}");
    ran.stderr
}

#[test]
fn what_does_not_fit_at_start_ends_it_and_is_named() {
    let authority = Authority::new();
    authority.issue("other", |_| {});
    let (certificate, key) = (authority.path("server.pem"), authority.path("server.key"));
    let (other, ca) = (authority.path("other.key"), authority.path("ca.pem"));
    for name in ["grpc", "admin"] {
        let said = refusal(&port(name, &certificate, &other, None));
        let is_not = format!(
            "sluice: {name}.tls: {}: is not the key of the certificate in {}\n",
            other.display(),
            certificate.display()
        );
        assert!(said.ends_with(&is_not), "{said}");
        let said = refusal(&port(name, &certificate, &key, Some(&key)));
        let has_no = format!("{name}.tls: {}: has no certificate in it", key.display());
        assert!(said.contains(&has_no), "{said}");
        let said = refusal(&port(name, &authority.path("nowhere"), &key, Some(&ca)));
        let cannot = format!("{name}.tls: {}: can't be read: ", authority.path("nowhere").display());
        assert!(said.contains(&cannot), "{said}");
    }
    let half = fs::read_to_string(&certificate).unwrap();
    fs::write(authority.path("half.pem"), &half[..half.len() / 2]).unwrap();
    let said = refusal(&port("grpc", &authority.path("half.pem"), &key, None));
    assert!(said.contains("half.pem: is cut off: a line `-----END …-----` is missing"), "{said}");
}

/// Made by openssl: PKCS#1, and no extended key usage.
#[tokio::test]
async fn an_old_style_rsa_key_is_served() {
    let sluice = start(&port("grpc", &fixture("rsa.pem"), &fixture("rsa.key"), None)).await;
    let files = ClientFiles { ca_file: fixture("rsa-ca.pem"), pair: None, server_name: None };
    ask_anew(&sluice.grpc, &files).await.unwrap();
}

async fn metric(sluice: &Sluice, start: &str) -> String {
    let metrics = http::get(sluice.admin, "/metrics").await.body;
    let line = metrics.lines().find_map(|line| line.strip_prefix(start));
    line.unwrap_or_else(|| panic!("no {start} in\n{metrics}")).trim().to_owned()
}

async fn problems(sluice: &Sluice) -> serde_json::Value {
    http::get(sluice.admin, "/v1/config").await.json()["problems"].clone()
}

/// The last good pair stays while something is wrong; what is wrong is said until it is mended.
#[tokio::test]
async fn what_does_not_fit_later_changes_nothing_and_is_said() {
    let authority = Authority::new();
    authority.issue("other", |_| {});
    let sluice = start_grpc(&authority, false).await;
    let good = files(&authority, None);
    let key = authority.path("server.key");
    let text = fs::read_to_string(&key).unwrap();
    let mistakes = [
        (fs::read_to_string(authority.path("other.key")).unwrap(), "is not the key of the certificate in "),
        (text[..text.len() / 2].to_owned(), "is cut off: "),
        (String::new(), "is empty"),
    ];
    for (n, (wrong, expected)) in mistakes.iter().enumerate() {
        fs::write(&key, wrong).unwrap();
        let found = until("the mistake to be said", async || {
            let found = problems(&sluice).await;
            if found == json!([]) { Err("nothing is wrong".to_owned()) } else { Ok(found) }
        })
        .await;
        assert_eq!(found.as_array().unwrap().len(), 1, "{found}");
        assert_eq!(found[0]["file"], key.display().to_string());
        assert!(found[0]["message"].as_str().unwrap().starts_with(expected), "{found}");
        assert!(http::get(sluice.admin, "/v1/config").await.json()["failing_since"].is_u64());
        assert_eq!(metric(&sluice, "sluice_tls_reloads_total{result=\"error\"}").await, (n + 1).to_string());
        ask_anew(&sluice.grpc, &good).await.expect("the last good one must stay");
        fs::write(&key, &text).unwrap();
        until("it to be mended", async || {
            let found = problems(&sluice).await;
            if found == json!([]) { Ok(()) } else { Err(found.to_string()) }
        })
        .await;
    }
    assert!(sluice.process.stderr().contains("what was in use stays in use"));
    ask_anew(&sluice.grpc, &good).await.unwrap();
}

/// One that has expired is shown all the same, because peers decide; and one that expires while it runs is said then.
#[tokio::test]
async fn a_certificate_that_ends_is_said() {
    let authority = Authority::new();
    let in_seconds = |seconds: u64| {
        let end = sluice::clock::unix_ms() / 1000 + seconds;
        let day = rcgen::date_time_ymd(1970, 1, 1);
        (end, day + Duration::from_secs(end))
    };
    let (end, not_after) = in_seconds(4);
    authority.issue("server", |params| params.not_after = not_after);
    let sluice = start_grpc(&authority, false).await;
    let file = authority.path("server.pem").display().to_string();
    let gauge = format!("sluice_tls_certificate_expiry_seconds{{file=\"{file}\"}}");
    assert_eq!(metric(&sluice, &gauge).await, end.to_string());
    let said = format!("TLS: {file}: its certificate has expired");
    let count = || sluice.process.stderr().matches(&said).count();
    until("the end to be said", async || if count() > 0 { Ok(()) } else { Err(sluice.process.stderr()) })
        .await;
    assert!(sluice::clock::unix_ms() / 1000 >= end, "not before it");
    let refused = ask_anew(&sluice.grpc, &files(&authority, None)).await.unwrap_err();
    assert!(refused.contains("Expired"), "{refused}");

    let (end, not_after) = in_seconds(3600);
    authority.issue("server", |params| params.not_after = not_after);
    until("the next one", async || ask_anew(&sluice.grpc, &files(&authority, None)).await).await;
    assert_eq!(metric(&sluice, &gauge).await, end.to_string());
    assert_eq!(count(), 1, "once: {}", sluice.process.stderr());
}

/// As Kubernetes does it: the files are links through `..data`, which is swapped for another.
struct Volume<'a> {
    authority: &'a Authority,
    dir: PathBuf,
    version: u32,
}

impl Volume<'_> {
    fn new(authority: &Authority) -> Volume<'_> {
        let dir = authority.path("volume");
        fs::create_dir(&dir).unwrap();
        let mut volume = Volume { authority, dir, version: 0 };
        volume.swap();
        for name in ["tls.crt", "tls.key"] {
            symlink(Path::new("..data").join(name), volume.dir.join(name)).unwrap();
        }
        volume
    }

    fn swap(&mut self) {
        self.version += 1;
        let name = format!("..version_{}", self.version);
        let next = self.dir.join(&name);
        fs::create_dir(&next).unwrap();
        self.authority.issue_as(&next.join("tls.crt"), &next.join("tls.key"), |_| {});
        symlink(&name, self.dir.join("..data_tmp")).unwrap();
        fs::rename(self.dir.join("..data_tmp"), self.dir.join("..data")).unwrap();
        if self.version > 1 {
            fs::remove_dir_all(self.dir.join(format!("..version_{}", self.version - 1))).unwrap();
        }
    }

    /// In place, one file after the other, as a careless script does it.
    async fn overwrite(&mut self) {
        let (certificate, key) = (self.authority.path("next.pem"), self.authority.path("next.key"));
        self.authority.issue_as(&certificate, &key, |_| {});
        fs::write(self.dir.join("tls.crt"), fs::read(&certificate).unwrap()).unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        let key = fs::read(&key).unwrap();
        fs::write(self.dir.join("tls.key"), &key[..100]).unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        fs::write(self.dir.join("tls.key"), &key).unwrap();
    }

    fn certificate(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_file(self.dir.join("tls.crt")).unwrap()
    }
}

async fn shown(sluice: &Sluice, client: &Arc<ClientTls>) -> CertificateDer<'static> {
    let uri = format!("http://{}", sluice.grpc).parse().unwrap();
    let stream = client.connector(Duration::from_secs(20)).connect(&uri).await.unwrap();
    stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_replaced_under_load_and_no_call_fails() {
    let authority = Authority::new();
    authority.issue("client", |_| {});
    let mut volume = Volume::new(&authority);
    let (certificate, key) = (volume.dir.join("tls.crt"), volume.dir.join("tls.key"));
    let sluice = start(&port("grpc", &certificate, &key, Some(&authority.path("ca.pem")))).await;
    let good = files(&authority, Some((&authority, "client")));
    let (stop, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut load = tokio::task::JoinSet::new();
    for is_new in [true, true, false, false] {
        let (stop, calls) = (Arc::clone(&stop), Arc::clone(&calls));
        let (address, good) = (sluice.grpc.clone(), good.clone());
        load.spawn(async move {
            let kept = connect(&address, &good).await.unwrap();
            while !stop.load(Ordering::Relaxed) {
                let answer = if is_new { ask_anew(&address, &good).await } else { ask_on(&kept).await };
                answer.unwrap_or_else(|error| panic!("a call failed: {error}"));
                calls.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        });
    }
    let client = ClientTls::load(&good, Alpn::Http2).unwrap();
    for round in 0..4 {
        if round % 2 == 0 {
            volume.swap();
        } else {
            volume.overwrite().await;
        }
        let (next, before) = (volume.certificate(), calls.load(Ordering::Relaxed));
        let changed = sluice::clock::instant();
        until("the new certificate", async || {
            if shown(&sluice, &client).await == next { Ok(()) } else { Err("the old one".to_owned()) }
        })
        .await;
        assert!(changed.elapsed() < Duration::from_secs(5), "{:?}", changed.elapsed());
        until("a call", async || {
            if calls.load(Ordering::Relaxed) > before { Ok(()) } else { Err("none yet".to_owned()) }
        })
        .await;
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(caller) = load.join_next().await {
        caller.expect("no call must fail");
    }
    assert_eq!(metric(&sluice, "sluice_tls_reloads_total{result=\"ok\"}").await, "4");
    println!("{} calls", calls.load(Ordering::Relaxed));
}
