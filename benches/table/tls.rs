//! TLS on the gRPC port beside the same port without it: what encrypting costs a call. Both on memory, in one run.

use super::load::{self, Shape};
use super::process::{self, Server};
use super::{SHAPES, Subject, Table, WIDEST, load_name};

const PLAIN: &str = "memory, beside TLS";
const TLS: &str = "memory, TLS";

impl Table {
    pub(super) fn tls_rows(&mut self) {
        let plain = Server::start(&mut process::sluice("memory"));
        let tls = Server::start(&mut process::sluice_with_tls());
        for shape in SHAPES {
            let subjects = [subject(PLAIN, &plain, "http", shape), subject(TLS, &tls, "https", shape)];
            self.together(&load_name(shape, true), &subjects);
        }
        let ratio = self.row(TLS, &load_name(WIDEST, true)).and_then(|row| row.ratio);
        let name = "TLS on the gRPC port, answers/s, of plain";
        self.target(name, ">= 0.85", ratio.unwrap_or(0.0), |n| n >= 0.85);
    }
}

fn subject<'a>(name: &'a str, server: &'a Server, scheme: &str, shape: Shape) -> Subject<'a> {
    let url = format!("{scheme}://{}", server.grpc);
    let run = move |seconds| load::hot_at(&url, "one", shape, seconds);
    Subject { name, run: Box::new(run), server: Some(server), disk: None }
}
