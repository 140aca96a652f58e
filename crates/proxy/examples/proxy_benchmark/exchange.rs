//! Latency: a small request and its reply on an open connection, again and again.
//!
//! Where the threads of a connection happen to run decides much of it, so several connections have their
//! turn.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::SERVER;
use crate::way::Way;

const MESSAGE: [u8; 64] = [b'm'; 64];
/// Connections, one after the other.
const CONNECTIONS: u32 = 10;

/// Microseconds from the request to its reply.
pub(crate) struct Outcome {
    pub(crate) median: f64,
    pub(crate) p99: f64,
}

pub(crate) fn measure(way: &Way, time: Duration) -> Result<Outcome, String> {
    let listener = way.net.listen(SERVER[0]);
    let mut times = Vec::new();
    for _ in 0..CONNECTIONS {
        let (client, server) = way.net.connection(&listener);
        let of_this = exchange(client, server, time / CONNECTIONS);
        times.append(&mut of_this.map_err(|error| format!("request and reply: {error}"))?);
    }
    times.sort_by(f64::total_cmp);
    Ok(Outcome { median: times[times.len() / 2], p99: times[times.len() * 99 / 100] })
}

/// The times of all exchanges on one connection, but for those of a quarter of `time` to warm up.
fn exchange(mut client: TcpStream, mut server: TcpStream, time: Duration) -> std::io::Result<Vec<f64>> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut message = MESSAGE;
            while server.read_exact(&mut message).and_then(|()| server.write_all(&message)).is_ok() {}
        });
        let mut during = |time: Duration| {
            let start = Instant::now();
            let mut times = Vec::new();
            while start.elapsed() < time {
                times.push(ask(&mut client)?);
            }
            Ok(times)
        };
        let times = during(time / 4).and_then(|_| during(time));
        // The other thread ends with the connection.
        client.shutdown(std::net::Shutdown::Both)?;
        times
    })
}

fn ask(client: &mut TcpStream) -> std::io::Result<f64> {
    let start = Instant::now();
    client.write_all(&MESSAGE)?;
    client.read_exact(&mut [0; MESSAGE.len()])?;
    Ok(start.elapsed().as_secs_f64() * 1e6)
}
