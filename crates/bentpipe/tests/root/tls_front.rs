//! TLS in front of the page, with the lines of docs/operating.md.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bentpipe_testbed::{Child, find_tool};

use crate::operated::{PATIENCE, Topology};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const CONFIGURATION: &str = "# /etc/haproxy/haproxy.cfg";

/// HAProxy's configuration as the page prints it.
fn printed_configuration() -> String {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operating.md");
    let page = std::fs::read_to_string(page).unwrap();
    let after = page.split(CONFIGURATION).nth(1).expect("the page has a configuration");
    let lines = after.lines().skip(1).take_while(|line| line.starts_with("    "));
    lines.map(|line| format!("{}\n", &line[4..])).collect()
}

/// What curl prints for the page's metrics, and the status code.
fn ask(topology: &Topology, arguments: &[&str]) -> (String, String) {
    let mut command = topology.gateway.command("curl");
    command.args(["-sk", "-m", "10", "--resolve", "gateway.example:7443:127.0.0.1", "-w", "\n%{http_code}"]);
    let output = command.args(arguments).stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (body, code) = text.rsplit_once('\n').unwrap();
    (body.to_owned(), code.to_owned())
}

#[test]
fn the_page_is_reached_through_haproxy_with_the_printed_lines_and_with_none_less() {
    if ["haproxy", "openssl", "curl"].iter().any(|program| !find_tool(program).is_file()) {
        return println!("skipped: needs haproxy, openssl and curl (scripts/setup-peers haproxy)");
    }
    let program = Path::new(env!("CARGO_BIN_EXE_bentpipe"));
    let Some(mut topology) = Topology::new(program, None) else { return };
    let folder = topology.folder().to_owned();
    let token = folder.join("token");
    std::fs::write(&token, TOKEN).unwrap();
    // Whatever account the daemon runs as, it may read it; others may not.
    std::fs::set_permissions(&token, Permissions::from_mode(0o440)).unwrap();
    let give_to = |account: &str| Command::new("chown").arg(account).arg(&token).status().unwrap().success();
    assert!(["bentpipe:", "nobody:"].into_iter().any(give_to));
    let admin = format!("listen = \"127.0.0.1:7500\"\ntoken_file = \"{}\"", token.display());
    topology.configure("", &admin);
    topology.start();

    let pem = folder.join("bentpipe.pem");
    let certificate = format!(
        "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=gateway.example -keyout {0}.key -out {0}.crt \
         && cat {0}.crt {0}.key > {0}",
        pem.display()
    );
    let made = Command::new("sh").args(["-c", &certificate]).stderr(Stdio::null()).status();
    assert!(made.unwrap().success());
    let printed = printed_configuration().replace("/etc/haproxy/bentpipe.pem", pem.to_str().unwrap());
    let with_token = format!("Authorization: Bearer {TOKEN}");
    let url = "https://gateway.example:7443/metrics";
    let start = |configuration: &str| {
        let file = folder.join("haproxy.cfg");
        std::fs::write(&file, configuration).unwrap();
        let mut command = topology.gateway.command(find_tool("haproxy"));
        command.args(["-db", "-f"]).arg(&file).stdin(Stdio::null());
        let haproxy = Child::spawn(command).unwrap();
        let started = Instant::now();
        while ask(&topology, &[url]).1 == "000" {
            assert!(started.elapsed() < PATIENCE, "HAProxy does not answer");
            std::thread::sleep(Duration::from_millis(50));
        }
        haproxy
    };

    let haproxy = start(&printed);
    let (metrics, code) = ask(&topology, &["-H", &with_token, url]);
    assert_eq!((code.as_str(), metrics.contains("bentpipe_ready 1")), ("200", true), "{metrics}");
    assert_eq!(ask(&topology, &[url]).1, "401", "without the token");
    let login = format!("https://gateway.example:7443/?token={TOKEN}");
    let jar = folder.join("cookies");
    let jar = jar.to_str().unwrap();
    let (page, code) = ask(&topology, &["-L", "-c", jar, "-b", jar, &login]);
    assert_eq!((code.as_str(), page.contains("<html")), ("200", true), "{page}");
    drop(haproxy);

    let host = printed.lines().find(|line| line.contains("Host")).expect("the line that the page explains");
    let haproxy = start(&printed.replace(host, ""));
    let (text, code) = ask(&topology, &["-H", &with_token, url]);
    assert_eq!((code.as_str(), text.contains("the Host is not this host")), ("421", true), "{text}");
    drop(haproxy);
    topology.stop();
}
