//! Latency: a small request and its reply on one open connection, again and again.

use std::io::{Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::SERVER;
use crate::way::Way;

const MESSAGE: [u8; 64] = [b'm'; 64];

/// Microseconds from the request to its reply.
pub(crate) struct Outcome {
    pub(crate) median: f64,
    pub p99: f64,
}

pub(crate) fn measure(way: &Way, time: Duration) -> Result<Outcome, String> {
    let listener = way.net.listen(SERVER[0]);
    let (mut client, mut server) = way.net.connection(&listener);
    for stream in [&client, &server] {
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
    }
    let answering = thread::spawn(move || {
        let mut message = MESSAGE;
        while server.read_exact(&mut message).and_then(|()| server.write_all(&message)).is_ok() {}
    });
    let mut exchange = || -> std::io::Result<f64> {
        let start = Instant::now();
        client.write_all(&MESSAGE)?;
        client.read_exact(&mut [0; MESSAGE.len()])?;
        Ok(start.elapsed().as_secs_f64() * 1e6)
    };
    let mut during = |time: Duration| {
        let start = Instant::now();
        let mut times = Vec::new();
        while start.elapsed() < time {
            times.push(exchange()?);
        }
        Ok::<_, std::io::Error>(times)
    };
    let times = during(time / 4).and_then(|_| during(time));
    let mut times = times.map_err(|error| format!("request and reply: {error}"))?;
    drop(client);
    answering.join().map_err(|_| "the answering thread panicked")?;
    times.sort_by(f64::total_cmp);
    Ok(Outcome { median: times[times.len() / 2], p99: times[times.len() * 99 / 100] })
}
