//! Hosts as namespaces, and that nothing of them stays.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};
use std::thread;

use crate::common::{Topology, can_run, delay, wait_until};
use bentpipe_testbed::{Child, Error, Namespace, Need, Subnet, default_route, forwarding, require, veth};

/// The number by which the kernel knows a namespace.
fn inode(namespace: &Namespace) -> u64 {
    rustix::fs::fstat(namespace.as_fd()).unwrap().st_ino
}

/// The processes of the machine that are in the namespace with this number.
fn inhabitants(inode: u64) -> Vec<String> {
    let namespace = format!("net:[{inode}]");
    fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().into_string().ok())
        .filter(|pid| {
            fs::read_link(format!("/proc/{pid}/ns/net")).is_ok_and(|ns| ns.as_os_str() == &*namespace)
        })
        .collect()
}

#[test]
fn two_hosts_talk_through_a_router() {
    if !can_run() {
        return;
    }
    let [client, router, server] = ["client", "router", "server"].map(|name| Namespace::new(name).unwrap());
    let (near, far) = (Subnet::new(1), Subnet::new(2));
    veth(&client, "eth0", &router, "eth0").unwrap();
    veth(&router, "eth1", &server, "eth0").unwrap();
    near.assign(&client, "eth0", &router, "eth0").unwrap();
    far.assign(&router, "eth1", &server, "eth0").unwrap();
    default_route(&client, near.right4()).unwrap();
    default_route(&client, near.right6()).unwrap();
    default_route(&server, far.left4()).unwrap();
    default_route(&server, far.left6()).unwrap();
    forwarding(&router).unwrap();
    let any = if server.has_ipv6() { "[::]:80" } else { "0.0.0.0:80" };
    let listener = server.run(|| TcpListener::bind(any)).unwrap().unwrap();
    client.run(|| TcpStream::connect((far.right4(), 80))).unwrap().unwrap();
    if server.has_ipv6() {
        client.run(|| TcpStream::connect((far.right6(), 80))).unwrap().unwrap();
    }
    drop(listener);
}

#[test]
fn a_sysctl_is_the_namespaces_own() {
    if !can_run() {
        return;
    }
    let key = "/proc/sys/net/ipv4/tcp_retries2";
    let before = fs::read_to_string(key).unwrap();
    let namespace = Namespace::new("host").unwrap();
    namespace.sysctl("net.ipv4.tcp_retries2", "7").unwrap();
    assert_eq!(namespace.run(|| fs::read_to_string(key)).unwrap().unwrap().trim(), "7");
    assert_eq!(fs::read_to_string(key).unwrap(), before);
    let error = namespace.sysctl("net.ipv4.no_such_setting", "1").unwrap_err().to_string();
    assert!(error.contains("net.ipv4.no_such_setting"), "{error}");
}

#[test]
fn a_tool_that_fails_is_quoted() {
    if !can_run() {
        return;
    }
    let namespace = Namespace::new("lonely").unwrap();
    let error = namespace.ip("link set nowhere up").unwrap_err();
    assert!(matches!(error, Error::Tool { .. }));
    let text = error.to_string();
    assert!(text.contains("`ip link set nowhere up`") && text.contains("lonely"), "{text}");
    assert!(text.contains("nowhere"), "{text}");
    if require(&[Need::Program("nft")]).is_ok() {
        namespace.nft("table inet mine { }").unwrap();
        assert!(namespace.nft("no ruleset").unwrap_err().to_string().contains("nft"));
    }
}

#[test]
fn a_panic_inside_goes_on_outside() {
    if !can_run() {
        return;
    }
    let namespace = Namespace::new("host").unwrap();
    let caught = thread::spawn(move || namespace.run(|| panic!("on purpose"))).join();
    assert_eq!(caught.unwrap_err().downcast_ref::<&str>(), Some(&"on purpose"));
}

#[test]
fn a_namespace_has_no_name_that_others_see() {
    if !can_run() {
        return;
    }
    let Topology { gateway, terminal, .. } = Topology::new(&delay(1));
    let mine = [inode(&gateway), inode(&terminal)];
    // Others on this machine may have named namespaces, so only what the names lead to tells.
    let named =
        fs::read_dir("/run/netns").into_iter().flatten().filter_map(|entry| entry.ok()?.metadata().ok());
    assert!(named.into_iter().all(|namespace| !mine.contains(&namespace.ino())));
}

#[test]
fn the_devices_are_gone_when_the_link_is() {
    if !can_run() {
        return;
    }
    let Topology { gateway, terminal, link, .. } = Topology::new(&delay(1));
    gateway.ip("link show dev sat0").unwrap();
    drop(link);
    for namespace in [&gateway, &terminal] {
        assert!(namespace.ip("link show dev sat0").is_err());
    }
}

#[test]
fn a_namespace_is_removed_with_its_last_handle() {
    if !can_run() {
        return;
    }
    let namespace = Namespace::new("short-lived").unwrap();
    let host = Namespace::new("witness").unwrap();
    // The cable's other end disappears with the namespace that it leads to.
    veth(&host, "cable", &namespace, "eth0").unwrap();
    let clone = namespace.clone();
    drop(namespace);
    host.ip("link show dev cable").unwrap();
    drop(clone);
    wait_until("the kernel removes the namespace", || host.ip("link show dev cable").is_err());
}

#[test]
fn a_dropped_child_leaves_the_namespace_empty() {
    if !can_run() {
        return;
    }
    let namespace = Namespace::new("host").unwrap();
    let mut command = namespace.command("sh");
    command.args(["-c", "sleep 1000 & sleep 1000 & wait"]);
    let child = Child::spawn(command).unwrap();
    wait_until("the shell and its two children run", || inhabitants(inode(&namespace)).len() == 3);
    drop(child);
    wait_until("nobody is left", || inhabitants(inode(&namespace)).is_empty());
}

/// Not a test of its own: what `a_killed_process_leaves_no_child_behind` runs and kills.
#[test]
#[ignore = "a process for another test to start and kill"]
fn victim() {
    let Some(path) = std::env::var_os("BENTPIPE_VICTIM") else { return };
    let namespace = Namespace::new("victim").unwrap();
    let mut command = namespace.command("sh");
    command.args(["-c", "sleep 1000 & sleep 1000; :"]);
    let child = Child::spawn(command).unwrap();
    wait_until("the family is complete", || inhabitants(inode(&namespace)).len() == 3);
    // To the file that the other test reads; standard output belongs to the test harness.
    fs::File::create(path).unwrap().write_all(inode(&namespace).to_string().as_bytes()).unwrap();
    loop {
        thread::sleep(std::time::Duration::from_secs(child.id().into()));
    }
}

#[test]
fn a_killed_process_leaves_no_child_behind() {
    if !can_run() {
        return;
    }
    let path = std::env::temp_dir().join(format!("bentpipe-victim-{}", std::process::id()));
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "namespace::victim"])
        .env("BENTPIPE_VICTIM", &path)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut number = String::new();
    wait_until("the victim tells its namespace", || {
        number.clear();
        fs::File::open(&path).and_then(|mut file| file.read_to_string(&mut number)).is_ok()
            && !number.is_empty()
    });
    let inode = number.parse().unwrap();
    assert_eq!(inhabitants(inode).len(), 3);
    victim.kill().unwrap();
    victim.wait().unwrap();
    fs::remove_file(&path).unwrap();
    wait_until("nobody is left", || inhabitants(inode).is_empty());
}
