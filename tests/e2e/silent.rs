//! A host that drops packets, on loopback.

use std::time::Duration;

/// A port where connections are never made: its queue of those to accept is full.
pub struct Silent {
    pub port: u16,
    _held: Vec<tokio::net::TcpStream>,
    _listener: tokio::net::TcpListener,
}

impl Silent {
    pub async fn start() -> Self {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(1).unwrap();
        let address = listener.local_addr().unwrap();
        let mut held = Vec::new();
        for _ in 0..100 {
            let connecting = tokio::net::TcpStream::connect(address);
            match tokio::time::timeout(Duration::from_millis(300), connecting).await {
                Ok(connected) => held.push(connected.unwrap()),
                Err(_) => return Self { port: address.port(), _held: held, _listener: listener },
            }
        }
        panic!("the queue of {address} is never full");
    }
}
