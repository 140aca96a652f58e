//! A PUT that is made while the satellite is away: taken at one gateway, carried out at the other when it is
//! there again.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bentpipe_link::Profile;
use bentpipe_testbed::{
    Child, Namespace, Need, SatelliteLink, Subnet, default_route, forwarding, require, veth,
};

const NEEDS: &[Need] =
    &[Need::Privileges, Need::Namespaces, Need::Tun, Need::Program("ip"), Need::Program("nft")];
const PATIENCE: Duration = Duration::from_secs(60);
const LAN: Subnet = Subnet::new(1);
const SATELLITE: Subnet = Subnet::new(2);
const FAR: Subnet = Subnet::new(3);

const RULES: &str = "[legs.satellite]\ninterface = \"sat0\"\ncongestion = \"cubic\"\n\
                     [[rules]]\naction = \"bundle\"\nclient_interface = \"lan0\"\nport = 80\n";
/// The leg's connections die long before the outage is over.
const LEG: &str = "[legs.satellite]\ninterface = \"sat0\"\ncongestion = \"cubic\"\nrestart_within = \"1s\"\nsurvive_outage = \"2s\"\n";

/// client – gateway ~ satellite ~ terminal – server.
struct Net {
    client: Namespace,
    gateway: Namespace,
    terminal: Namespace,
    server: Namespace,
    link: SatelliteLink,
}

impl Net {
    fn new() -> Self {
        let [client, gateway, terminal, server] =
            ["client", "gateway", "terminal", "server"].map(|name| Namespace::new(name).unwrap());
        veth(&gateway, "lan0", &client, "up0").unwrap();
        veth(&terminal, "lan0", &server, "up0").unwrap();
        let config = Profile::Geo.config();
        let link = SatelliteLink::start(&gateway, "sat0", &terminal, "sat0", &config, 1, 1500).unwrap();
        LAN.assign(&gateway, "lan0", &client, "up0").unwrap();
        SATELLITE.assign(&gateway, "sat0", &terminal, "sat0").unwrap();
        FAR.assign(&terminal, "lan0", &server, "up0").unwrap();
        let ways: [(&Namespace, [IpAddr; 2]); 4] = [
            (&client, [LAN.left4().into(), LAN.left6().into()]),
            (&gateway, [SATELLITE.right4().into(), SATELLITE.right6().into()]),
            (&terminal, [SATELLITE.left4().into(), SATELLITE.left6().into()]),
            (&server, [FAR.left4().into(), FAR.left6().into()]),
        ];
        for (host, ways) in ways {
            for way in ways {
                default_route(host, way).unwrap();
            }
        }
        forwarding(&gateway).unwrap();
        forwarding(&terminal).unwrap();
        Self { client, gateway, terminal, server, link }
    }

    /// What a client is answered to a PUT to the server.
    fn put(&self, to: IpAddr, body: &str) -> String {
        let to = SocketAddr::new(to, 80);
        let mut stream = self.client.run(|| TcpStream::connect_timeout(&to, PATIENCE)).unwrap().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let len = body.len();
        let request = format!(
            "PUT /up/{len}?x=1 HTTP/1.1\r\nHost: files.example\r\nConnection: close\r\nContent-Length: {len}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

/// Starts the program on a host and returns when it says that it is ready.
fn start(host: &Namespace, arguments: &[&str], config: &Path) -> Child {
    let mut command = host.command(env!("CARGO_BIN_EXE_bentpipe"));
    command.args(arguments).arg("-c").arg(config).stdin(Stdio::null()).stderr(Stdio::piped());
    let mut child = Child::spawn(command).unwrap();
    let mut log = BufReader::new(child.stderr().unwrap()).lines().map_while(Result::ok);
    let mut said = String::new();
    let ready = log.any(|line| {
        said = format!("{said}{line}\n");
        line.contains("ready")
    });
    assert!(ready, "{arguments:?} has ended: {said}");
    std::thread::spawn(move || log.for_each(|line| println!("{line}")));
    child
}

/// Answers each PUT with 201, and tells what it was.
fn serve(host: &Namespace) -> mpsc::Receiver<String> {
    let listener = host.run(|| TcpListener::bind((Ipv6Addr::UNSPECIFIED, 80))).unwrap().unwrap();
    let (sender, told) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let Some(request) = request(&mut stream) else { continue };
            if sender.send(request).is_err() {
                return;
            }
            let answer = b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            stream.get_mut().write_all(answer).unwrap();
        }
    });
    told
}

fn request(stream: &mut impl BufRead) -> Option<String> {
    let (mut text, mut len) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if let Some(number) = line.to_lowercase().strip_prefix("content-length: ") {
            len = number.trim().parse().unwrap();
        }
        text.push_str(&line);
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; len];
    stream.read_exact(&mut body).ok()?;
    Some(text + std::str::from_utf8(&body).unwrap())
}

/// Sessions that a node has with its only peer, as `bentpipe dtn status` says.
fn sessions(host: &Namespace, socket: &Path) -> u64 {
    let mut command = host.command(env!("CARGO_BIN_EXE_bentpipe"));
    let output = command.args(["dtn", "status", "--json", "--socket"]).arg(socket).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    document["peers"][0]["sessions"].as_u64().unwrap_or_else(|| panic!("{document:#}"))
}

fn until(what: &str, is: impl Fn() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < PATIENCE, "not so: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_put_during_an_outage_that_no_connection_survives_is_answered_at_once_and_carried_out_after_it() {
    if let Err(missing) = require(NEEDS) {
        println!("skipped: needs root: {missing}");
        return;
    }
    let net = Net::new();
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let node = |name: &str, rest: &str| {
        let text = format!(
            "[node]\nid = \"dtn://{name}/\"\nstore = \"{name}\"\nsocket = \"{name}.sock\"\nkeep_free = \"0B\"\n{LEG}{rest}"
        );
        file(&format!("{name}.toml"), &text)
    };
    let far = SATELLITE.right4();
    let gateway = node(
        "gateway",
        &format!(
            "[[peers]]\nid = \"dtn://terminal/\"\naddress = \"{far}:4556\"\nleg = \"satellite\"\nretry_within = \"1s\"\n\
             [[inlets]]\nkind = \"http\"\naddress = [\"127.0.0.1:7690\", \"[::1]:7690\"]\nto = \"dtn://terminal/put\"\n"
        ),
    );
    let terminal = node(
        "terminal",
        &format!(
            "[[listen]]\naddress = \"{far}:4556\"\nleg = \"satellite\"\n[[peers]]\nid = \"dtn://gateway/\"\n\
             [[outlets]]\nkind = \"http\"\nservice = \"put\"\nfrom = \"dtn://gateway/*\"\n\
             to = [\"10.98.3.0/24\", \"{}/64\"]\n",
            FAR.left6().to_string().trim_end_matches('1')
        ),
    );
    let sockets = folder.path().join("run");
    let admin = format!("[admin]\nfolder = \"{}\"\nlisten = \"off\"\n", sockets.display());
    let rules = file("bentpipe.toml", &format!("{RULES}{admin}"));
    let told = serve(&net.server);
    let servers: [IpAddr; 2] = [FAR.right4().into(), FAR.right6().into()];

    // Without a node a PUT passes to its server.
    let _daemon = start(&net.gateway, &["run"], &rules);
    assert!(net.put(servers[0], "direct").starts_with("HTTP/1.1 201 "));
    assert!(told.recv_timeout(PATIENCE).unwrap().ends_with("direct"));

    let _terminal = start(&net.terminal, &["dtn", "run"], &terminal);
    let _gateway = start(&net.gateway, &["dtn", "run"], &gateway);
    let socket = folder.path().join("gateway.sock");
    until("the nodes have a session", || sessions(&net.gateway, &socket) == 1);
    let doctor =
        net.gateway.command(env!("CARGO_BIN_EXE_bentpipe")).args(["doctor", "-c"]).arg(&rules).output();
    let doctor = String::from_utf8(doctor.unwrap().stdout).unwrap();
    assert!(doctor.contains("listens on 127.0.0.1:7690 and [::1]:7690"), "{doctor}");

    net.link.set_outage(true);
    for (server, body) in servers.into_iter().zip(["over four", "over six!!"]) {
        let answer = net.put(server, body);
        assert!(answer.starts_with("HTTP/1.1 202 ") && answer.contains("dtn://terminal/put"), "{answer}");
    }
    until("the nodes' connection is dead", || sessions(&net.gateway, &socket) == 0);
    assert!(told.try_recv().is_err(), "the server was told of it through an outage");

    net.link.set_outage(false);
    let mut puts = [0; 2].map(|_| told.recv_timeout(PATIENCE).unwrap());
    puts.sort_by_key(String::len);
    for (put, (body, target)) in puts.iter().zip([("over four", "/up/9?x=1"), ("over six!!", "/up/10?x=1")]) {
        assert!(put.starts_with(&format!("PUT {target} HTTP/1.1\r\n")) && put.ends_with(body), "{put}");
        assert!(put.contains("host: files.example\r\n"), "{put}");
    }
}
