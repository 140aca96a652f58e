//! Elements of nftables sets in the running kernel, compared with what `nft` says of them.

use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{in_namespace, run, wait_for};
use bentpipe_kernel::nftables::{Change, Key, NfTables, NfTablesError};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

const TCP: Key = Key::Protocol(6);
const UDP: Key = Key::Protocol(17);
const HOUR: Duration = Duration::from_secs(3600);
/// The kernel counts time-outs in ticks, of 10 ms at the longest, and `nft` prints whole milliseconds.
const TICK: Duration = Duration::from_millis(20);

const TABLE: &str = "table inet pep {
    set alive { type inet_proto; flags timeout; }
    set v4 { type ipv4_addr; flags timeout; size 70000; }
    set v6 { type ipv6_addr; flags timeout; size 70000; }
    set small { type ipv4_addr; flags timeout; size 2; }
    set plain { type inet_proto; }
}";

fn put(set: &str, key: impl Into<Key>, timeout: Duration) -> Change<'_> {
    Change::Put { set, key: key.into(), timeout }
}

/// Says at its end, a panic's included, that threads which wait for it may end.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs the test with the table installed.
fn with_table(test: impl FnOnce(&mut NfTables) + Send) {
    in_namespace(&["nft"], || {
        run("nft", "-f -", TABLE);
        test(&mut NfTables::open().unwrap());
    });
}

/// The elements of a set, as `nft` prints them, with the time that they have left where they have a time-out.
fn elements(set: &str) -> Vec<(String, Option<Duration>)> {
    let listing = run("nft", &format!("list set inet pep {set}"), "");
    let Some((_, rest)) = listing.split_once("elements = {") else { return Vec::new() };
    let (inner, _) = rest.split_once('}').unwrap();
    inner
        .split(',')
        .map(|element| {
            let words: Vec<&str> = element.split_whitespace().collect();
            let left = words.iter().position(|word| *word == "expires").map(|at| duration(words[at + 1]));
            (words[0].to_owned(), left)
        })
        .collect()
}

fn names(set: &str) -> Vec<String> {
    elements(set).into_iter().map(|(name, _)| name).collect()
}

fn time_left(set: &str) -> Duration {
    elements(set)[0].1.unwrap()
}

/// Reads `nft`'s `59m59s990ms`.
fn duration(text: &str) -> Duration {
    let mut total = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap();
        let unit = rest[digits..].find(|c: char| c.is_ascii_digit()).map_or(rest.len(), |n| digits + n);
        let millis = match &rest[digits..unit] {
            "d" => 86_400_000,
            "h" => 3_600_000,
            "m" => 60_000,
            "s" => 1000,
            "ms" => 1,
            other => panic!("{other} in {text}"),
        };
        total += rest[..digits].parse::<u64>().unwrap() * millis;
        rest = &rest[unit..];
    }
    Duration::from_millis(total)
}

#[test]
fn elements_are_put_and_removed() {
    with_table(|nftables| {
        let (v4, v6) = (Ipv4Addr::new(192, 0, 2, 1), "2001:db8::1".parse::<Ipv6Addr>().unwrap());
        nftables.apply("pep", &[put("alive", TCP, HOUR), put("v4", v4, HOUR), put("v6", v6, HOUR)]).unwrap();
        assert_eq!((names("alive"), names("v4")), (vec!["tcp".to_owned()], vec!["192.0.2.1".to_owned()]));
        assert_eq!(names("v6"), ["2001:db8::1"]);
        nftables.apply("pep", &[put("alive", UDP, HOUR), Change::Remove { set: "alive", key: TCP }]).unwrap();
        assert_eq!(names("alive"), ["udp"]);
    });
}

#[test]
fn removing_a_missing_entry_is_no_error() {
    with_table(|nftables| {
        nftables.apply("pep", &[Change::Remove { set: "alive", key: TCP }, put("alive", UDP, HOUR)]).unwrap();
        assert_eq!(names("alive"), ["udp"]);
    });
}

#[test]
fn putting_an_element_again_begins_its_time_out_anew() {
    with_table(|nftables| {
        nftables.apply("pep", &[put("alive", TCP, HOUR)]).unwrap();
        wait_for("the element ages", || (time_left("alive") < HOUR - 10 * TICK).then_some(()));
        let start = Instant::now();
        nftables.apply("pep", &[put("alive", TCP, HOUR)]).unwrap();
        let left = time_left("alive");
        // At least the whole hour, less what has passed since: however slow this machine is at the moment.
        let least = HOUR - start.elapsed() - TICK;
        assert!(left >= least && left <= HOUR, "{left:?} left, not {least:?} to {HOUR:?}");
    });
}

#[test]
fn an_element_that_is_not_renewed_goes_by_itself_and_can_come_back() {
    with_table(|nftables| {
        let timeout = Duration::from_millis(300);
        for _ in 0..2 {
            let start = Instant::now();
            nftables.apply("pep", &[put("alive", TCP, timeout), put("alive", UDP, HOUR)]).unwrap();
            wait_for("tcp goes", || (names("alive") == ["udp"]).then_some(()));
            assert!(start.elapsed() + TICK >= timeout, "gone after {:?}", start.elapsed());
        }
    });
}

#[test]
fn a_table_or_set_that_is_gone_is_an_error_of_its_own() {
    with_table(|nftables| {
        let changes = [put("alive", TCP, HOUR), put("lost", UDP, HOUR)];
        let error = nftables.apply("pep", &changes).unwrap_err();
        assert!(matches!(&error, NfTablesError::Missing { set, .. } if set == "lost"), "{error}");
        assert!(names("alive").is_empty(), "all or nothing");
        run("nft", "flush ruleset", "");
        for change in [changes[0], Change::Remove { set: "alive", key: TCP }] {
            let error = nftables.apply("pep", &[change]).unwrap_err();
            assert!(matches!(&error, NfTablesError::Missing { set, .. } if set == "alive"), "{error}");
        }
        run("nft", "-f -", TABLE);
        nftables.apply("pep", &changes[..1]).unwrap();
        assert_eq!(names("alive"), ["tcp"], "and the connection is as good as before");
    });
}

#[test]
fn an_element_that_does_not_fit_its_set_is_refused() {
    with_table(|nftables| {
        let address = |last| Ipv4Addr::new(192, 0, 2, last);
        for change in [put("alive", address(1), HOUR), put("v6", address(1), HOUR), put("plain", TCP, HOUR)] {
            let error = nftables.apply("pep", &[change]).unwrap_err();
            assert!(matches!(error, NfTablesError::Refused { .. }), "{error}");
        }
        let three = [1, 2, 3].map(|last| put("small", address(last), HOUR));
        let error = nftables.apply("pep", &three).unwrap_err();
        assert!(error.to_string().contains("full"), "{error}");
        nftables.apply("pep", &three[..2]).unwrap();
        nftables.apply("pep", &three[..2]).unwrap();
        assert_eq!(elements("small").len(), 2, "a renewal needs no room");
    });
}

#[test]
fn a_thread_without_privileges_is_told_so() {
    with_table(|nftables| {
        let before = capabilities(None).unwrap();
        let mut less = before;
        less.effective.remove(CapabilitySet::NET_ADMIN);
        set_capabilities(None, less).unwrap();
        let error = nftables.apply("pep", &[put("alive", TCP, HOUR)]).unwrap_err();
        assert!(matches!(error, NfTablesError::NotPermitted { .. }), "{error}");
        assert!(NfTables::open().is_ok(), "opening takes none");
        set_capabilities(None, before).unwrap();
        nftables.apply("pep", &[put("alive", TCP, HOUR)]).unwrap();
    });
}

#[test]
fn thousands_of_changes_are_one_transaction() {
    with_table(|nftables| {
        let keys: Vec<Ipv6Addr> = (1..=10_000u128).map(Ipv6Addr::from).collect();
        let mut changes: Vec<Change<'_>> = keys.iter().map(|key| put("v6", *key, HOUR)).collect();
        for count in [1000, 10_000] {
            nftables.apply("pep", &changes[..count]).unwrap();
            assert_eq!(elements("v6").len(), count);
        }
        changes.push(put("lost", TCP, HOUR));
        changes[0] = Change::Remove { set: "v6", key: keys[0].into() };
        assert!(nftables.apply("pep", &changes).is_err());
        assert_eq!(elements("v6").len(), 10_000, "all or nothing, however many");
    });
}

#[test]
fn more_than_a_message_can_hold_is_an_error_of_its_own() {
    with_table(|nftables| {
        let changes: Vec<_> = (0..100_000u128).map(|n| put("v6", Ipv6Addr::from(n), HOUR)).collect();
        let error = nftables.apply("pep", &changes).unwrap_err();
        assert!(matches!(error, NfTablesError::TooLarge { changes: 100_000, .. }), "{error}");
        nftables.apply("pep", &changes[..1]).unwrap();
    });
}

/// Each missing set is an error message, and all of them are more than a socket's receive buffer holds.
#[test]
fn more_errors_than_fit_are_still_reported() {
    with_table(|nftables| {
        let sets: Vec<String> = (0..5000).map(|n| format!("lost{n:04}")).collect();
        let changes: Vec<_> = sets.iter().map(|set| put(set, TCP, HOUR)).collect();
        let error = nftables.apply("pep", &changes).unwrap_err();
        assert!(matches!(&error, NfTablesError::Missing { set, .. } if set == "lost0000"), "{error}");
        nftables.apply("pep", &[put("alive", TCP, HOUR)]).unwrap();
        assert_eq!(names("alive"), ["tcp"]);
    });
}

#[test]
fn others_may_change_the_rule_set_meanwhile() {
    with_table(|nftables| {
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let busy = scope.spawn(|| {
                let _done = Done(&done);
                for n in 0..40 {
                    let table = format!("add table inet other{n}; add element inet pep plain {{ {n} }}");
                    run("nft", "-f -", &table);
                    run("nft", &format!("delete table inet other{n}"), "");
                }
            });
            let other = scope.spawn(|| {
                let mut second = NfTables::open().unwrap();
                while !done.load(Ordering::Relaxed) {
                    second.apply("pep", &[put("alive", UDP, HOUR)]).unwrap();
                }
            });
            while !done.load(Ordering::Relaxed) {
                nftables.apply("pep", &[put("alive", TCP, HOUR)]).unwrap();
            }
            busy.join().unwrap();
            other.join().unwrap();
        });
        assert_eq!(elements("plain").len(), 40);
        let mut alive = names("alive");
        alive.sort();
        assert_eq!(alive, ["tcp", "udp"]);
    });
}

/// What matches only while an element is there must match during its renewal, for every packet.
#[test]
fn no_packet_misses_an_element_that_is_being_renewed() {
    let chain = "table inet pep { chain input { type filter hook input priority 0; \
                 meta l4proto udp meta l4proto != @alive counter; }; }";
    with_table(|nftables| {
        nftables.apply("pep", &[put("alive", UDP, HOUR)]).unwrap();
        run("nft", "-f -", chain);
        let packets = AtomicU64::new(0);
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let _done = Done(&done);
            let sender = scope.spawn(|| {
                let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
                let own = socket.local_addr().unwrap();
                while !done.load(Ordering::Relaxed) {
                    socket.send_to(b"x", own).unwrap();
                    packets.fetch_add(1, Ordering::Relaxed);
                }
            });
            let mut renewals = 0;
            while renewals < 2000 || packets.load(Ordering::Relaxed) < 20_000 {
                assert!(!sender.is_finished(), "no packets any more");
                nftables.apply("pep", &[put("alive", UDP, HOUR)]).unwrap();
                renewals += 1;
            }
        });
        let listing = run("nft", "list chain inet pep input", "");
        assert!(listing.contains("counter packets 0 "), "{listing}");
    });
}

#[test]
fn rules_that_track_connections_are_found_and_those_of_one_table_do_not_count() {
    in_namespace(&["nft"], || {
        let mut tables = NfTables::open().unwrap();
        assert!(!tables.has_tracking_rules("pep").unwrap());
        let chain = "chain c { type filter hook forward priority 0;";
        for (rule, tracks) in [
            ("table inet a { CHAIN tcp dport 80 meta mark set 1 accept; }; }", false),
            ("table inet pep { CHAIN ct state new accept; }; }", false),
            ("table ip6 b { CHAIN ct state established accept; }; }", true),
            ("table ip c { chain c { type nat hook postrouting priority 100; masquerade; }; }", true),
        ] {
            run("nft", "-f -", &rule.replace("CHAIN", chain));
            assert_eq!(tables.has_tracking_rules("pep").unwrap(), tracks, "{rule}");
            run("nft", &format!("delete {}", rule.split_once(" {").unwrap().0), "");
        }
    });
}

/// The kernel sends so many rules in several parts.
#[test]
fn rules_that_change_while_they_are_listed_are_listed_whole() {
    const RULES: usize = 1000;
    in_namespace(&["nft"], || {
        let rule = |number: usize| format!("meta mark {number} tcp dport {{ 80, 443 }} accept\n");
        let rules: String = (1..=RULES).map(rule).collect();
        run("nft", "-f -", &format!("table inet pep {{ chain c {{\n{rules}}}; }}"));
        let whole = NfTables::open().unwrap().rules_of("pep").unwrap();
        assert_eq!(whole.len(), RULES);
        let (done, changes) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            let _done = Done(&done);
            let changer = scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    // The first rule goes and comes back: what follows takes another place in between.
                    run("nft", "insert rule inet pep c meta mark 0 accept", "");
                    let listing = run("nft", "-a list chain inet pep c", "");
                    let handle = listing.lines().find(|line| line.contains("mark 0x00000000")).unwrap();
                    let handle = handle.rsplit_once(' ').unwrap().1;
                    run("nft", &format!("delete rule inet pep c handle {handle}"), "");
                    changes.fetch_add(1, Ordering::Relaxed);
                }
            });
            let mut tables = NfTables::open().unwrap();
            while changes.load(Ordering::Relaxed) < 20 {
                assert!(!changer.is_finished(), "no changes any more");
                let listed = tables.rules_of("pep").unwrap();
                assert!(listed.ends_with(&whole), "{} rules", listed.len());
                assert!(listed.len() <= RULES + 1, "{} rules", listed.len());
            }
        });
    });
}
