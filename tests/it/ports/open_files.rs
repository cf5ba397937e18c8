//! Connections and the limit of open files: those that nobody uses make way for others.

use tokio::net::TcpStream;
use tonic::Code;

use super::{LIMITS, post, send};
use crate::sluice::{Sluice, directory, serve};
use crate::wire::{METHOD, Wire};

/// So many descriptors and no more.
async fn with_descriptors(limit: &str) -> Sluice {
    let dir = directory(&[("config/limits/limits.yaml", LIMITS)]);
    let serving = serve(dir.path(), &["--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    let mut command = std::process::Command::new("sh");
    command.env_clear().current_dir(dir.path());
    command.args(["-c", &format!("ulimit {limit} && exec \"$0\" \"$@\"")]);
    command.arg(serving.get_program()).args(serving.get_args());
    Sluice::start(dir, command).await
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_nobody_uses_make_way() {
    // This process needs two thousand itself.
    sluice::listen::descriptors::shares(false);
    let sluice = with_descriptors("-n 512").await;
    let used = Wire::connect(sluice.grpc_address()).await;
    let unfinished_body = post("/v1/reserve", "content-length: 9\r\n\r\n{");
    // A connection of HTTP/2 that answers pings, and one whose call has no end.
    let mut kept = (Vec::new(), Vec::new(), Vec::new());
    for n in 0..600 {
        kept.0.push(send(sluice.admin, &unfinished_body).await);
        let stream = TcpStream::connect(sluice.grpc_address()).await.unwrap();
        // A connection that is closed before it began is what this is about.
        let Ok((send, connection)) = h2::client::handshake(stream).await else { continue };
        tokio::spawn(async move { drop(connection.await) });
        if n % 2 == 0
            && let Ok(mut send) = send.clone().ready().await
        {
            let request = ::http::Request::post(format!("http://sluice{METHOD}")).body(()).unwrap();
            if let Ok(call) = send.send_request(request, false) {
                kept.1.push(call);
            }
        }
        kept.2.push(send);
        if n % 50 == 0 {
            sluice.still_answers().await;
        }
    }
    sluice.still_answers().await;
    let reply = used.should_rate_limit(&[]).await;
    assert_eq!(reply.code, Code::InvalidArgument, "who has been answered stays: {reply:?}");
    for (port, max) in [("grpc", 288), ("admin", 96)] {
        let open = sluice.metric(&format!("sluice_connections{{port=\"{port}\"}}")).await;
        let closed = format!("sluice_connections_closed_total{{port=\"{port}\",reason=\"for_others\"}}");
        let closed = sluice.metric(&closed).await;
        println!("{port}: {open} open, {closed} closed for others");
        assert!(open <= max && open > max / 2 && closed >= 600 - max, "{port}: {open} open, {closed} closed");
    }
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", sluice.process.id())).unwrap().count();
    println!("{descriptors} descriptors open");
    assert!(descriptors <= 512 - 64, "{descriptors} descriptors: too few are left for files and the ledger");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limit_of_open_files_is_raised() {
    let sluice = with_descriptors("-Sn 40 && ulimit -Hn 700").await;
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", sluice.process.id())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words[3..5], ["700", "700"], "{line}");
    let kept: Vec<TcpStream> = {
        let mut kept = Vec::new();
        for _ in 0..60 {
            kept.push(TcpStream::connect(sluice.admin).await.unwrap());
        }
        kept
    };
    sluice.still_answers().await;
    assert_eq!(kept.len(), 60);
}
