//! `bentpipe dtn` as users meet it.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{
    assert_failure_on_a_full_disk, assert_misuse, assert_numbers, assert_success_without_reader,
    assert_texts, bentpipe, document, refusal, success,
};
use serde_json::Value;
use tempfile::TempDir;

/// A node that ends with the test.
struct Node {
    child: Child,
    socket: String,
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A folder that a node which root has started can reach as another account.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Writes a node's configuration: its name, port, and what else it says.
fn configure(folder: &Path, name: &str, port: u16, rest: &str) -> PathBuf {
    let path = folder.join(format!("{name}.toml"));
    let text = format!(
        "[node]\nid = \"dtn://{name}/\"\nstore = \"{name}-store\"\nsocket = \"{name}.sock\"\n{rest}\n\
         [[listen]]\naddress = \"127.0.0.1:{port}\"\n"
    );
    fs::write(&path, text).unwrap();
    path
}

/// Starts a node and waits until it answers.
fn start(config: &Path) -> Node {
    let child = Command::new(env!("CARGO_BIN_EXE_bentpipe"))
        .args(["dtn", "run", "-c"])
        .arg(config)
        .stderr(fs::File::create(config.with_extension("log")).unwrap())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let socket = config.with_extension("sock").display().to_string();
    let node = Node { child, socket };
    let begun = Instant::now();
    while bentpipe(&["dtn", "status", "--socket", &node.socket]).status.code() != Some(0) {
        let log = fs::read_to_string(config.with_extension("log")).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(60), "{log}");
        std::thread::sleep(Duration::from_millis(50));
    }
    node
}

/// Two nodes that know each other, encrypted if they have certificates.
fn pair(folder: &Path, with_certificates: bool) -> (Node, Node) {
    let (gateway, train) = (free_port(), free_port());
    let mut own = [String::new(), String::new()];
    let mut pins = [String::new(), String::new()];
    if with_certificates {
        for (index, name) in ["gateway", "train"].into_iter().enumerate() {
            let [certificate, key] = ["pem", "key"].map(|kind| folder.join(format!("{name}.{kind}")));
            let [certificate, key] = [&certificate, &key].map(|path| path.to_str().unwrap());
            let id = format!("dtn://{name}/");
            success(&bentpipe(&["dtn", "identity", &id, "--certificate", certificate, "--key", key]));
            own[index] = format!("certificate = \"{name}.pem\"\nkey = \"{name}.key\"");
            pins[1 - index] = format!("certificate = \"{name}.pem\"");
        }
    }
    let peer = |name: &str, port: Option<u16>, pin: &str| {
        let address = port.map(|port| format!("address = \"127.0.0.1:{port}\"")).unwrap_or_default();
        format!("[[peers]]\nid = \"dtn://{name}/\"\n{address}\n{pin}\n")
    };
    let of_gateway = format!("{}\n{}", own[0], peer("train", None, &pins[0]));
    let of_train = format!("{}\n{}", own[1], peer("gateway", Some(gateway), &pins[1]));
    let gateway = configure(folder, "gateway", gateway, &of_gateway);
    let train = configure(folder, "train", train, &of_train);
    (start(&gateway), start(&train))
}

#[test]
fn a_file_goes_there_and_back() {
    let folder = folder();
    let (gateway, train) = pair(folder.path(), false);
    let file = folder.path().join("file");
    let bytes: Vec<u8> = (0..3_000_000u32).map(|number| ((number * 7) >> 3) as u8).collect();
    fs::write(&file, &bytes).unwrap();
    let file = file.to_str().unwrap();
    for (from, to, name) in [(&gateway, &train, "train"), (&train, &gateway, "gateway")] {
        let destination = format!("dtn://{name}/files");
        let sent = document(&["dtn", "send", file, &destination, "--socket", &from.socket, "--json"]);
        assert_eq!(sent["payload_bytes"], bytes.len());
        assert_numbers(&sent, &["accepted_s"]);
        let output = folder.path().join(name).display().to_string();
        let received =
            ["dtn", "recv", "files", "--socket", &to.socket, "-o", &output, "--wait", "60s", "--json"];
        let received: Value = serde_json::from_str(&success(&bentpipe(&received))).unwrap();
        assert_eq!(received["id"], sent["id"]);
        assert_eq!(fs::read(&output).unwrap(), bytes);
        let none = bentpipe(&["dtn", "recv", "files", "--socket", &to.socket, "--wait", "0s"]);
        refusal(&none, &["no bundle for files"]);
    }
    let status = document(&["dtn", "status", "--socket", &gateway.socket, "--bundles", "--json"]);
    assert_eq!((&status["node"], &status["totals"]["delivered"]), (&"dtn://gateway/".into(), &1.into()));
    assert_eq!(status["peers"][0]["sessions"], 1);
    assert_texts(&status["peers"][0], &["peer", "address"]);
    let status = ["dtn", "status", "--socket", &gateway.socket];
    assert_success_without_reader(&status);
    assert_failure_on_a_full_disk(&status);
}

#[test]
fn sending_can_wait_for_the_application_and_is_encrypted_between_certificates() {
    let folder = folder();
    let (gateway, train) = pair(folder.path(), true);
    let file = folder.path().join("file");
    fs::write(&file, "hello").unwrap();
    let receiver = std::thread::spawn({
        let socket = train.socket.clone();
        move || success(&bentpipe(&["dtn", "recv", "files", "--socket", &socket, "-o", "-", "--wait", "60s"]))
    });
    let arguments = [
        "dtn",
        "send",
        file.to_str().unwrap(),
        "dtn://train/files",
        "--socket",
        &gateway.socket,
        "--wait",
        "60s",
    ];
    assert!(success(&bentpipe(&arguments)).contains("delivered after"));
    assert_eq!(receiver.join().unwrap(), "hello");
    let status = document(&["dtn", "status", "--socket", &gateway.socket, "--json"]);
    assert_eq!(status["peers"][0]["encrypted"], true);
}

#[test]
fn a_files_name_travels_and_replaces_nothing() {
    let folder = folder();
    let (gateway, train) = pair(folder.path(), false);
    let (file, inbox) = (folder.path().join("report.pdf"), folder.path().join("inbox"));
    fs::create_dir(&inbox).unwrap();
    let [path, into] = [&file, &inbox].map(|path| path.to_str().unwrap());
    for (content, more) in [("one", &[][..]), ("two", &[]), ("three", &["--name", "minutes.txt"])] {
        fs::write(&file, content).unwrap();
        let arguments = ["dtn", "send", path, "dtn://train/files", "--socket", &gateway.socket];
        success(&bentpipe(&[&arguments[..], more].concat()));
    }
    let receive = ["--into", into, "--count", "3", "--wait", "60s", "--socket", &train.socket];
    let text = success(&bentpipe(&[&["dtn", "recv", "files"][..], &receive].concat()));
    assert!(text.contains("/inbox/report-2.pdf  3 bytes from dtn://gateway/"), "{text}");
    for (name, content) in [("report.pdf", "one"), ("report-2.pdf", "two"), ("minutes.txt", "three")] {
        assert_eq!(fs::read_to_string(inbox.join(name)).unwrap(), content);
    }
    assert_eq!(fs::read_dir(&inbox).unwrap().count(), 3);
    assert_misuse(&["dtn", "send", path, "dtn://train/files", "--name", "../up"], &["not a file's name"]);
}

#[test]
fn a_ping_shows_how_long_it_took_and_a_trace_which_way() {
    let folder = folder();
    let (gateway, _train) = pair(folder.path(), false);
    let of = |more: &[&str]| bentpipe(&[&["dtn", "ping", "--socket", &gateway.socket][..], more].concat());
    let text = success(&of(&["dtn://train/", "-c", "3", "-i", "50ms", "-w", "60s"]));
    for part in [
        "64 bytes from dtn://train/echo: bundle 2 after",
        "3 bundles sent, 3 answers, 0% without",
        "round trip: ",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let text = success(&of(&["dtn://train/echo", "-c", "1", "-s", "1000", "-w", "60s", "--trace"]));
    for part in
        ["1000 bytes", "received by dtn://gateway/", "received by dtn://train/", "delivered by dtn://train/"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let nobody = of(&["dtn://nobody/", "-c", "1", "-w", "200ms"]);
    assert_eq!(nobody.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&nobody.stdout).contains("0 answers, 100% without"), "{nobody:?}");
}

#[test]
fn a_running_node_reads_its_configuration_again() {
    let folder = folder();
    let config = configure(folder.path(), "gateway", free_port(), "contact_plan = \"plan.ionrc\"\n");
    let plan = folder.path().join("plan.ionrc");
    fs::write(&plan, "# nothing yet\n").unwrap();
    let node = start(&config);
    let reload = || bentpipe(&["dtn", "reload", "--socket", &node.socket]);
    assert!(success(&reload()).contains("no route or contact has changed"));
    fs::write(&plan, "a contact +0 +60 1 2 1000\n").unwrap();
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace("[node]\n", "[node]\nquota = \"1GB\"\n")).unwrap();
    let report = success(&reload());
    for part in [
        "warning: ",
        "plan.ionrc:1: no range from 1 to 2 covers a contact",
        "node.quota has changed in the file, and keeps its old value",
        "the node uses the new configuration; changed: contacts",
    ] {
        assert!(report.contains(part), "{part}: {report}");
    }
    let checked = success(&bentpipe(&["check", config.to_str().unwrap()]));
    assert!(checked.contains("plan.ionrc:1: no range") && checked.contains("1 warning"), "{checked}");
    let checked = document(&["check", config.to_str().unwrap(), "--json"]);
    assert_eq!(
        (&checked["warnings"][0]["file"], &checked["warnings"][0]["line"]),
        (&plan.to_str().into(), &1.into())
    );
    fs::write(&plan, "a contact\n").unwrap();
    refusal(&reload(), &["plan.ionrc:1: a contact has 5 or 6 values"]);
    assert_eq!(bentpipe(&["check", config.to_str().unwrap()]).status.code(), Some(1));
    let log = || fs::read_to_string(config.with_extension("log")).unwrap();
    assert!(log().contains("the old one stays in force"), "{}", log());
    // By a signal, too.
    fs::write(&plan, "a contact +0 +60 1 2 2000\na range +0 +60 1 2 1\n").unwrap();
    let before = log().matches("read the configuration again").count();
    let pid = rustix::process::Pid::from_child(&node.child);
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    let begun = Instant::now();
    while log().matches("read the configuration again").count() == before {
        assert!(begun.elapsed() < Duration::from_secs(60), "{}", log());
        std::thread::sleep(Duration::from_millis(20));
    }
    success(&bentpipe(&["dtn", "status", "--socket", &node.socket]));
}

#[test]
fn impossible_values_are_refused_with_the_reason() {
    let folder = folder();
    let path = folder.path().display().to_string();
    let nowhere = folder.path().join("nobody.sock").display().to_string();
    let send = |file: &str| bentpipe(&["dtn", "send", file, "dtn://b/x", "--socket", &nowhere]);
    refusal(&send(&path), &["is a folder", "archive"]);
    refusal(&send("/no/such/file"), &["cannot open /no/such/file", "No such file"]);
    refusal(&send("/dev/null"), &["cannot reach the node", "nobody.sock", "dtn run"]);
    refusal(&bentpipe(&["dtn", "run", "-c", "/no/such.toml"]), &["cannot read /no/such.toml"]);
    let bad = folder.path().join("bad.toml");
    fs::write(&bad, "[node]\nid = \"gateway\"\n").unwrap();
    refusal(&bentpipe(&["dtn", "identity", "dtn://a/files"]), &["is no node"]);
    let output = bentpipe(&["dtn", "run", "-c", bad.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && text.contains("dtn://node/service"), "{text}");
    assert_misuse(&["dtn", "send", "x", "moon"], &["moon", "dtn://node/service"]);
    assert_misuse(&["dtn", "recv"], &["SERVICE"]);
}

#[test]
fn a_second_node_does_not_take_the_first_ones_socket_or_store() {
    let folder = folder();
    let first = configure(folder.path(), "first", free_port(), "");
    let _node = start(&first);
    let text = fs::read_to_string(&first).unwrap();
    let port = text.rsplit(':').next().unwrap().trim_end_matches(['"', '\n']).to_owned();
    let elsewhere = text.replace(&port, &free_port().to_string());
    let second = folder.path().join("second.toml");
    fs::write(&second, &elsewhere).unwrap();
    let run = || {
        let output = bentpipe(&["dtn", "run", "-c", second.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let taken = run();
    assert!(taken.contains("another node answers"), "{taken}");
    fs::write(&second, elsewhere.replace("first.sock", "second.sock")).unwrap();
    let locked = run();
    assert!(locked.contains("first-store"), "{locked}");
}
