//! Faults planted in the link: each is found, and told with what was expected; without one, nothing is.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use bentpipe_link::packet_log::{COLUMNS, Crossing, Row, Step, sums};
use bentpipe_link::{Arrival, Direction, Fault, InFlight, LinkConfig};
use bentpipe_sim::file::Source;
use bentpipe_units::Time;
use bentpipe_verify::{Check, Report, Scenario, verify};

const PACKETS: u64 = 50_000;

/// What a packet needs to know when it arrives.
#[derive(Clone, Copy)]
struct Sent {
    number: u64,
    bytes: usize,
    crossing: Crossing,
}

/// A link with these keys, as a scenario.
fn scenario(keys: &str) -> String {
    let flow = "[[flow]]\nname = \"f\"\nfrom = \"a\"\nto = \"b\"\n";
    format!("duration = \"10m\"\n[[link]]\nname = \"sat\"\nbetween = [\"a\", \"b\"]\n{keys}\n{flow}")
}

fn link(scenario: &str) -> LinkConfig {
    Source::parse("fault.toml", scenario).unwrap().with(&[]).unwrap().links.remove(0).config
}

/// Lets a direction carry packets that keep it a little more than busy, and logs them.
fn carry(direction: &mut Direction) -> String {
    let mut log = format!("{COLUMNS}\n");
    let mut in_flight: InFlight<Sent> = InFlight::default();
    let mut write = |at, number, bytes, step| {
        writeln!(log, "{}", Row { at, link: "sat", direction: "forward", number, bytes, step }).unwrap();
    };
    let mut now = Time::ZERO;
    for number in 1..=PACKETS {
        // Half of the packets are small ones. Bursts of 40 come at once, and fill the queue.
        let bytes = if number % 2 == 0 { 1500 } else { 40 + (number * 7919 % 200) as usize };
        if number % 40 == 1 {
            now += Duration::from_nanos(27_000_000 + number * 104_729 % 5_000_000);
        }
        while let Some((at, sent)) = in_flight.pop_due(now) {
            write(at, sent.number, sent.bytes, Step::Arrived(sent.crossing));
        }
        write(now, number, bytes, Step::Entered { queue: direction.backlog(now) });
        let arrivals = match direction.transmit(now, bytes, bytes) {
            Ok(arrivals) => arrivals,
            Err(cause) => {
                write(now, number, bytes, Step::Lost(cause));
                continue;
            }
        };
        let mut launch = |copy: Arrival, is_duplicate| {
            let crossing = Crossing {
                entered: now,
                departure: arrivals.departure,
                due: copy.at,
                is_corrupted: copy.flipped_bit.is_some(),
                is_duplicate,
            };
            in_flight.launch(copy.at, Sent { number, bytes, crossing });
        };
        launch(arrivals.packet, false);
        if let Some(copy) = arrivals.duplicate {
            launch(copy, true);
        }
    }
    let end = now + Duration::from_secs(10);
    while let Some((at, sent)) = in_flight.pop_due(end) {
        write(at, sent.number, sent.bytes, Step::Arrived(sent.crossing));
    }
    log += &sums(end, "sat", "forward", direction.counters(), direction.impairment_counters());
    log + &sums(end, "sat", "reverse", &Default::default(), &Default::default())
}

fn check(keys: &str, log: &str) -> Report {
    let scenario = Scenario::parse(&scenario(keys), Path::new(""), &[]).unwrap();
    verify(log.as_bytes(), &scenario, Duration::ZERO).unwrap()
}

/// The link in which a fault shows, and what finds it.
fn shows(fault: Fault) -> (&'static str, Check) {
    const BUSY: &str = "rate = \"10Mbit/s\"\ndelay = \"300ms\"\nqueue = \"40kB\"";
    // It has no room for the end of each burst.
    const FULL: &str = "rate = \"10Mbit/s\"\ndelay = \"300ms\"\nqueue = \"25kB\"";
    match fault {
        Fault::TooFast | Fault::Idles | Fault::CoarseClock => (BUSY, Check::Departure),
        Fault::NoEncapsulation => {
            ("rate = \"10Mbit/s\"\ndelay = \"300ms\"\nencapsulation = \"dvb-mpe\"", Check::Departure)
        }
        Fault::ShortDelay => (BUSY, Check::Delay),
        Fault::Vanishes => (BUSY, Check::Fate),
        Fault::Duplicates | Fault::Corrupts => (BUSY, Check::Copies),
        Fault::Swaps => (BUSY, Check::Order),
        Fault::DeepQueue | Fault::ShallowQueue => (FULL, Check::Queue),
        Fault::MoreLosses => ("rate = \"20Mbit/s\"\ndelay = \"300ms\"\nper = \"5%\"", Check::Losses),
        Fault::UntoldLosses => (BUSY, Check::Losses),
        Fault::LargePacketsOnly => {
            ("rate = \"20Mbit/s\"\ndelay = \"300ms\"\nper = \"5%\"", Check::Independence)
        }
        Fault::ShortBursts => (
            "rate = \"20Mbit/s\"\ndelay = \"300ms\"\n\
             gilbert_elliott = { good_to_bad = 0.01, bad_to_good = 0.25 }",
            Check::Independence,
        ),
        // Packets without room have no number.
        Fault::ForgetsLoss => (
            "rate = \"10Mbit/s\"\ndelay = \"300ms\"\nqueue = \"25kB\"\nper = \"1%\"\nlosses = [20000, 44]",
            Check::Losses,
        ),
        Fault::ShortOutages => (
            "rate = \"10Mbit/s\"\ndelay = \"300ms\"\noutages = [{ start = \"5s\", duration = \"2s\" }]",
            Check::Outage,
        ),
        Fault::WrongCause => (FULL, Check::Outage),
        Fault::Miscounts => (BUSY, Check::Counters),
    }
}

#[test]
fn each_planted_fault_is_found_and_nothing_without_it() {
    for fault in Fault::ALL {
        let (keys, by) = shows(fault);
        let config = link(&scenario(keys)).forward;
        let report = check(keys, &carry(&mut Direction::new(&config, 7)));
        assert_eq!(report.findings, [], "without {fault:?}");
        assert_eq!(report.packets, PACKETS);
        let report = check(keys, &carry(&mut Direction::with_fault(&config, 7, fault)));
        let texts: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
        println!("{fault:?}:\n    {}", texts.join("\n    "));
        assert!(report.findings.iter().any(|finding| finding.check == by), "{fault:?}: {texts:?}");
        assert!(texts[0].starts_with("sat forward: "), "{fault:?}: {texts:?}");
    }
}

#[test]
fn a_finding_names_the_packet_what_was_expected_and_what_was_found() {
    let text = |fault: Fault| {
        let (keys, check_by) = shows(fault);
        let log = carry(&mut Direction::with_fault(&link(&scenario(keys)).forward, 7, fault));
        let findings = check(keys, &log).findings;
        findings.into_iter().find(|finding| finding.check == check_by).unwrap().to_string()
    };
    let expected = "sat forward: delay: packet 1 of 159 bytes, offered at 0.027104729 s: expected that it \
                    arrives 0.300000000 s after it has left, found 0.299000000 s";
    assert_eq!(text(Fault::ShortDelay), expected);
    let vanished = text(Fault::Vanishes);
    assert!(vanished.contains("packet 10000 of 1500 bytes") && vanished.contains("vanished"), "{vanished}");
}
