//! What a download gets of a satellite whose router speaks XCP, and what the sender thinks of it, second by
//! second.
//!
//!     cargo run --release -p bentpipe-testbed --example xcp_goodput -- CONTROL RATE RTT PER SECONDS [full]
//!
//! CONTROL is `p-xcp`, `xcp` or what the kernel has. Both ends take it. With `full`, full acknowledgements
//! stay as they are, with no room for feedback.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use bentpipe_kernel::sockopt::{congestion, set_congestion};
use bentpipe_kernel::tcp_info::tcp_info;
use bentpipe_kernel::xcp::{Xcp, XcpParameters};
use bentpipe_link::agent::xcp::{Variant, XcpConfig};
use bentpipe_link::agent::{AgentConfig, LinkEndConfig};
use bentpipe_link::{DirectionConfig, LinkConfig};
use bentpipe_testbed::{Namespace, Result, SatelliteLink, Subnet};
use bentpipe_units::{ByteCount, Probability, Rate};
use socket2::{Domain, Socket, Type};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [control, rate, rtt, per, seconds, full @ ..] = &arguments[..] else {
        panic!("CONTROL RATE RTT PER SECONDS [full], as: p-xcp 10Mbit/s 600 0.01 60")
    };
    let rate: Rate = rate.parse().expect("a rate, as 10Mbit/s");
    let rtt = Duration::from_millis(rtt.parse().expect("milliseconds"));
    let per = Probability::new(per.parse().expect("a number")).expect("0 to 1");
    let seconds: u64 = seconds.parse().expect("seconds");
    let p_xcp = control == "p-xcp";
    let bdp = ByteCount::new((rate.bps() as f64 / 8.0 * rtt.as_secs_f64()) as u64);

    let direction = DirectionConfig {
        rate: Some(rate),
        delay: rtt / 2,
        per,
        queue: Some(bdp),
        ..DirectionConfig::default()
    };
    let config = LinkConfig {
        forward: direction.clone(),
        reverse: DirectionConfig { per: Probability::ZERO, ..direction },
    };
    let variant = if p_xcp { Variant::PXcp } else { Variant::Xcp };
    let router = AgentConfig::Xcp(XcpConfig { variant, ..XcpConfig::with_capacity(rate) });
    let ends_config = [LinkEndConfig { agents: vec![router], arq: None }, LinkEndConfig::default()];
    let (gateway, terminal) = (Namespace::new("gateway")?, Namespace::new("terminal")?);
    let ends = ((&gateway, "sat0"), (&terminal, "sat0"));
    let link = SatelliteLink::start_with_agents(ends.0, ends.1, &config, &ends_config, 42, 1500)?;
    // Room for three windows of the fastest link that is asked for.
    gateway.sysctl("net.ipv4.tcp_wmem", "4096 16384 67108864")?;
    terminal.sysctl("net.ipv4.tcp_rmem", "4096 131072 67108864")?;
    let subnet = Subnet::new(0);
    subnet.assign(&gateway, "sat0", &terminal, "sat0")?;

    let parameters = XcpParameters { p_xcp, capacity: Some(rate), fallback: "bbr" };
    let xcp = (p_xcp || control == "xcp").then(|| Xcp::acquire(parameters).expect("XCP"));
    let name = xcp.as_ref().map_or(control.clone(), |xcp| xcp.name().to_owned());
    let room = xcp.as_ref().filter(|_| full.is_empty());
    let _room =
        room.map(|xcp| terminal.run(|| xcp.make_room_on("sat0")).expect("the namespace").expect("room"));

    let address = (subnet.left4(), 80);
    // Before it listens: SYNs are answered as the listener was then.
    let listener: TcpListener = gateway.run(|| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        set_congestion(&socket, &name).expect("the control");
        socket.bind(&SocketAddr::from(address).into()).expect("a free port");
        socket.listen(1).expect("a listener");
        socket.into()
    })?;
    let received = Arc::new(AtomicU64::new(0));
    let sender = Arc::new(Mutex::new(None));
    let theirs = Arc::clone(&sender);
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        *theirs.lock().expect("no panic") = Some(stream.try_clone().expect("a descriptor"));
        let block = vec![7; 65536];
        while stream.write_all(&block).is_ok() {}
    });
    let mine = Arc::clone(&received);
    let mut client = terminal.run(|| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        set_congestion(&socket, &name).expect("the control");
        socket.connect(&SocketAddr::from(address).into()).expect("a connection");
        socket
    })?;
    thread::spawn(move || {
        let mut block = vec![0; 65536];
        while let Ok(length @ 1..) = client.read(&mut block) {
            mine.fetch_add(length as u64, Ordering::Relaxed);
        }
    });
    let limit = rate.bps() as f64 * 1432.0 / 1500.0 * (1.0 - per.get());
    let start = Instant::now();
    let (mut before, mut steady) = (0, 0);
    for second in 1..=seconds {
        thread::sleep((start + Duration::from_secs(second)).saturating_duration_since(Instant::now()));
        let now = received.load(Ordering::Relaxed);
        if second == 5 {
            steady = now;
        }
        let socket = sender.lock().expect("no panic");
        if let Some(socket) = socket.as_ref() {
            let info = tcp_info(socket).expect("TCP_INFO");
            println!(
                "{second:3} s {:6.2} Mbit/s cwnd {:5} unacked {:5} srtt {:4} ms timeouts {} retrans {} {}",
                (now - before) as f64 * 8e-6,
                info.cwnd,
                info.unacked,
                info.srtt.as_millis(),
                info.timeouts,
                info.retransmissions,
                congestion(socket).expect("a name"),
            );
        }
        before = now;
    }
    let goodput = (before - steady) as f64 * 8.0 / seconds.saturating_sub(5).max(1) as f64;
    println!(
        "behind the first 5 s: {:.3} Mbit/s, {:.1}% of {:.3}",
        goodput * 1e-6,
        100.0 * goodput / limit,
        limit * 1e-6
    );
    println!("link {:?}\nlink ends {:?}", link.counters().0, link.link_end_reports());
    Ok(())
}
