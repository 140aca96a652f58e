//! SIGKILL of sender and receiver at any moment: what was accepted is delivered, and what was acknowledged
//! never comes again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::node_common::*;
use bentpipe_dtn::app::Client;
use bentpipe_dtn::config::NodeConfig;
use bentpipe_dtn::daemon::Prepared;
use http_body_util::Full;
use hyper::body::Bytes;

const FOLDER: &str = "BENTPIPE_TEST_NODE";
/// Bundles of a request with many.
const BATCH: u64 = 40;
const LENGTHS: [usize; 5] = [8, 3000, 70_000, 900_000, 4_000_000];

/// A node as a process of its own.
struct Process {
    folder: PathBuf,
    child: Option<Child>,
}

impl Process {
    fn new(folder: &Path, id: &str, rest: &str) -> Self {
        std::fs::create_dir_all(folder).unwrap();
        std::fs::write(folder.join("node.toml"), config(folder, id, "", rest)).unwrap();
        Self { folder: folder.to_owned(), child: None }
    }

    fn start(&mut self) {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "node_kill::child", "--ignored", "--nocapture"])
            .env(FOLDER, &self.folder)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.child = Some(child.unwrap());
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    fn client(&self) -> Client {
        Client::new(self.folder.join("sock"))
    }

    async fn until_empty(&self) {
        let until = Instant::now() + LONG;
        loop {
            let status = self.client().get::<serde_json::Value>("/status", &[]).await;
            let files = std::fs::read_dir(self.folder.join("store/payloads")).unwrap().count();
            if status.as_ref().is_ok_and(|status| status["store"]["bundles"] == 0) && files == 0 {
                return;
            }
            assert!(Instant::now() < until, "{files} files left, {status:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_at_any_moment_loses_nothing_and_repeats_nothing() {
    let seed = std::env::var("SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64);
    let rounds = std::env::var("KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(10);
    println!("SEED={seed} KILLS={rounds}");
    let random = bytes(seed, 50 + 2 * rounds);
    let folder = tempfile::tempdir().unwrap();
    let address = free_address();
    let mut a = Process::new(&folder.path().join("a"), "dtn://a/", &peer("dtn://b/", Some(address), ""));
    let mut b =
        Process::new(&folder.path().join("b"), "dtn://b/", &(listen(address) + &peer("dtn://a/", None, "")));
    a.start();
    b.start();
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let sender = tokio::spawn(send(a.client(), stopped.clone()));
    let receiver = tokio::spawn(receive(b.client(), stopped));
    for round in 0..rounds {
        tokio::time::sleep(Duration::from_millis(50 + u64::from(random[10 + round]))).await;
        let who = if round < 3 { round } else { usize::from(random[20 + rounds + round]) % 3 };
        if who != 0 {
            b.kill();
        }
        if who != 1 {
            a.kill();
        }
        a.child.is_none().then(|| a.start());
        b.child.is_none().then(|| b.start());
    }
    stop.send(true).unwrap();
    let (accepted, perhaps) = sender.await.unwrap();
    a.until_empty().await;
    let mut received = receiver.await.unwrap();
    receive_rest(&b.client(), &mut received, &accepted).await;
    b.until_empty().await;
    let delivered: BTreeSet<u64> = received.keys().copied().collect();
    assert!(accepted.len() > 5, "only {} were accepted", accepted.len());
    assert!(accepted.is_subset(&delivered), "lost: {:?}", accepted.difference(&delivered));
    assert!(delivered.iter().all(|number| accepted.contains(number) || perhaps.contains(number)));
    println!("{} accepted, {} of unknown fate, {} delivered", accepted.len(), perhaps.len(), delivered.len());
}

/// Sends until it is told to stop. What was accepted, and what may have been.
async fn send(client: Client, stopped: tokio::sync::watch::Receiver<bool>) -> (BTreeSet<u64>, BTreeSet<u64>) {
    let (mut accepted, mut perhaps) = (BTreeSet::new(), BTreeSet::new());
    let query = [("destination", "dtn://b/in".to_owned())];
    let mut next = 1;
    while !*stopped.borrow() {
        let number = next;
        // Small ones, many at a time: they are on their way to the disk together.
        if number % 5 == 0 {
            next += BATCH;
            let payloads: Vec<Vec<u8>> = (number..next).map(|number| bytes(number, 100)).collect();
            let payloads: Vec<&[u8]> = payloads.iter().map(Vec::as_slice).collect();
            let outcome = client.send_all(&query, &payloads).await;
            if outcome.is_ok() {
                accepted.extend(number..next);
            } else {
                perhaps.extend(number..next);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            continue;
        }
        next += 1;
        let payload = bytes(number, LENGTHS[number as usize % LENGTHS.len()]);
        match client.send(&query, Full::new(Bytes::from(payload))).await {
            Ok(_) => drop(accepted.insert(number)),
            Err(_) => {
                perhaps.insert(number);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
    (accepted, perhaps)
}

/// Receives until it is told to stop. Each number, and whether its acknowledgement was answered.
async fn receive(client: Client, stopped: tokio::sync::watch::Receiver<bool>) -> BTreeMap<u64, bool> {
    let mut received = BTreeMap::new();
    while !*stopped.borrow() {
        if !receive_one(&client, &mut received).await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        receive_many(&client, &mut received).await;
    }
    received
}

async fn receive_rest(client: &Client, received: &mut BTreeMap<u64, bool>, accepted: &BTreeSet<u64>) {
    let until = Instant::now() + LONG;
    // After the last one, once more: nothing comes again.
    while accepted.iter().any(|number| !received.contains_key(number)) || receive_one(client, received).await
    {
        receive_many(client, received).await;
        let missing = accepted.iter().filter(|number| !received.contains_key(number)).count();
        assert!(Instant::now() < until, "{missing} of {} have not come", accepted.len());
    }
}

/// One bundle, unless the node dies meanwhile. `false` if there was none.
async fn receive_one(client: &Client, received: &mut BTreeMap<u64, bool>) -> bool {
    let Ok(Some(mut delivery)) = client.next("in", Duration::from_millis(200)).await else { return false };
    let mut payload = Vec::new();
    loop {
        match delivery.part().await {
            Ok(Some(part)) => payload.extend_from_slice(&part),
            Ok(None) => break,
            Err(_) => return true,
        }
    }
    if payload.len() as u64 != delivery.len {
        return true;
    }
    let number = number(&payload);
    assert_ne!(received.get(&number), Some(&true), "{number} comes again after its acknowledgement");
    let acknowledged = client.acknowledge(delivery.key).await.is_ok();
    received.insert(number, acknowledged);
    true
}

/// The bundles that are there now, acknowledged together, unless the node dies meanwhile.
async fn receive_many(client: &Client, received: &mut BTreeMap<u64, bool>) {
    let Ok(bundles) = client.next_all("in", Duration::ZERO, 100).await else { return };
    let keys: Vec<u64> = bundles.iter().map(|bundle| bundle.line.key).collect();
    let numbers: Vec<u64> = bundles.iter().map(|bundle| number(&bundle.payload)).collect();
    for number in &numbers {
        assert_ne!(received.get(number), Some(&true), "{number} comes again after its acknowledgement");
    }
    let acknowledged = !keys.is_empty() && client.acknowledge_all(&keys).await.is_ok();
    received.extend(numbers.into_iter().map(|number| (number, acknowledged)));
}

/// Not a test of its own: a node until it is killed.
#[test]
#[ignore = "run by the test above"]
fn child() {
    let Ok(folder) = std::env::var(FOLDER).map(PathBuf::from) else { return };
    // Who has started it may be killed itself.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let config = NodeConfig::load(folder.join("node.toml")).unwrap();
        let running = Prepared::new(config, None).unwrap().start().await.unwrap();
        std::future::pending::<()>().await;
        drop(running);
    });
}
