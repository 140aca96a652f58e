use super::*;
use proptest::prelude::*;

const ALICE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const BOB: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

fn admission_limits() -> AdmissionLimits {
    AdmissionLimits {
        connections: 4,
        per_client: Some(2),
        connecting: 3,
        buffered: 1000,
        descriptors: 100,
        at_limit: AtLimit::Refuse,
    }
}

/// A permit of a admission of its own.
pub(crate) fn permit() -> Permit {
    unlimited().admit(ALICE).unwrap()
}

/// One that has no limit for a client.
pub(crate) fn unlimited() -> Arc<AdmissionControl> {
    admission(AdmissionLimits { per_client: None, ..admission_limits() })
}

fn admission(admission_limits: AdmissionLimits) -> Arc<AdmissionControl> {
    Arc::new(AdmissionControl::new(admission_limits).unwrap())
}

/// Connections: all of them, and those that wait for their server.
fn counts(admission: &AdmissionControl) -> (usize, usize) {
    (admission.state().open, admission.connecting())
}

/// Takes the signal, if there was one.
fn was_signalled(admission: &AdmissionControl) -> bool {
    rustix::io::read(admission.changed(), &mut [0; 8]).is_ok()
}

#[test]
fn a_client_at_its_limit_is_diverted_and_others_are_not() {
    let admission = admission(admission_limits());
    let permits = [admission.admit(ALICE).unwrap(), admission.admit(ALICE).unwrap()];
    assert_eq!(admission.admit(ALICE).unwrap_err(), Limit::PerClient);
    let over_limit = OverLimit { clients: vec![ALICE.into()], ..OverLimit::default() };
    assert_eq!(admission.over_limit(), over_limit);
    assert!(was_signalled(&admission));
    let _bob = admission.admit(BOB).unwrap();
    drop(permits);
    assert!(was_signalled(&admission));
    assert_eq!(admission.over_limit(), OverLimit::default());
}

#[test]
fn connections_that_wait_for_their_server_are_limited_until_it_answers() {
    let admission = admission(admission_limits());
    let mut permits: Vec<_> = [ALICE, ALICE, BOB].map(|client| admission.admit(client).unwrap()).into();
    assert_eq!(admission.admit(BOB).unwrap_err(), Limit::Connecting);
    assert!(was_signalled(&admission) && admission.over_limit().everybody.is_some());
    permits[0].connected();
    assert!(was_signalled(&admission) && admission.over_limit().everybody.is_none());
    permits[0].connected();
    assert_eq!(counts(&admission), (3, 2));
    drop(permits);
    assert_eq!(counts(&admission), (0, 0));
}

#[test]
fn answered_connections_are_admitted_beyond_a_limit_that_lets_others_pass_but_never_beyond_the_descriptors() {
    let lenient =
        AdmissionLimits { at_limit: AtLimit::Pass, per_client: None, connecting: 1000, ..admission_limits() };
    let roomy = admission(lenient);
    let permits: Vec<_> = std::iter::from_fn(|| roomy.admit(ALICE).ok()).collect();
    assert_eq!(permits.len(), with_accept_queue_slack(4));
    let tight = admission(AdmissionLimits { descriptors: 6, ..lenient });
    let permits: Vec<_> = std::iter::from_fn(|| tight.admit(ALICE).ok()).collect();
    assert_eq!((permits.len(), tight.admit(BOB).unwrap_err()), (6, Limit::Descriptors));
}

#[test]
fn full_buffers_and_missing_descriptors_divert_everybody_until_they_are_over() {
    let admission = admission(admission_limits());
    for (begin, end) in [
        (
            Box::new(|admission: &AdmissionControl| admission.set_buffered(1000))
                as Box<dyn Fn(&AdmissionControl)>,
            Box::new(|admission: &AdmissionControl| admission.set_buffered(999))
                as Box<dyn Fn(&AdmissionControl)>,
        ),
        (
            Box::new(|admission: &AdmissionControl| admission.set_short_of_descriptors(true)),
            Box::new(|admission: &AdmissionControl| admission.set_short_of_descriptors(false)),
        ),
    ] {
        begin(&admission);
        assert!(was_signalled(&admission) && admission.over_limit().everybody.is_some());
        end(&admission);
        assert!(was_signalled(&admission) && admission.over_limit().everybody.is_none());
    }
}

#[test]
fn while_one_of_two_workers_has_no_descriptors_no_connection_is_admitted() {
    let admission = admission(admission_limits());
    let full = |short| {
        admission.set_short_of_descriptors(short);
        admission.over_limit().everybody.is_some()
    };
    assert_eq!([true, true, false, false].map(full), [true, true, true, false]);
}

#[test]
fn a_host_cannot_be_many_clients_by_choosing_among_its_ipv6_addresses() {
    let client = |text: &str| Client::from(text.parse::<IpAddr>().unwrap());
    assert_eq!(client("2001:db8:1:2::1"), client("2001:db8:1:2:ffff::9"));
    assert_ne!(client("2001:db8:1:2::1"), client("2001:db8:1:3::1"));
    assert_eq!(client("::ffff:10.0.0.1"), client("10.0.0.1"));
    assert_eq!(client("2001:db8:1:2::1").address().to_string(), "2001:db8:1:2::");
}

/// The clients that are shed where each of these has so many connections of at most `limit`.
fn shed(limit: usize, open: &[usize]) -> Vec<usize> {
    let limits = AdmissionLimits {
        connections: limit,
        per_client: None,
        connecting: 10_000,
        descriptors: 100_000,
        ..admission_limits()
    };
    let admission = admission(limits);
    let address = |number: usize| IpAddr::V4(Ipv4Addr::from_bits(number as u32));
    let permits: Vec<Permit> = open
        .iter()
        .enumerate()
        .flat_map(|(number, &count)| std::iter::repeat_n(number, count))
        .map(|number| admission.readmit(address(number), false))
        .collect();
    let over_limit = admission.over_limit();
    assert_eq!(over_limit.shedding.is_some(), !over_limit.clients.is_empty());
    assert_eq!(admission.shed_clients(), over_limit.clients.len());
    drop(permits);
    assert_eq!(admission.over_limit(), OverLimit::default());
    (0..open.len()).filter(|&number| over_limit.clients.contains(&address(number).into())).collect()
}

#[test]
fn near_a_limit_the_client_with_most_connections_is_shed_and_the_others_are_not() {
    assert!(shed(100, &[60, 10, 5]).is_empty());
    assert_eq!(shed(100, &[66, 10, 5]), [0]);
    assert_eq!(shed(100, &[66, 20, 5]), [0, 1]);
    assert_eq!(shed(100, &[80, 10, 1]), [0, 1]);
    assert_eq!(shed(100, &[79, 10, 10]), [0, 1, 2], "one is left");
}

#[test]
fn a_client_that_is_alone_has_all_there_is() {
    assert!(shed(100, &[99]).is_empty());
}

#[test]
fn memory_that_becomes_scarce_sheds_the_same_clients() {
    let admission = admission(AdmissionLimits {
        connections: 100,
        connecting: 100,
        per_client: None,
        ..admission_limits()
    });
    let _permits: Vec<Permit> =
        [ALICE, ALICE, ALICE, BOB].map(|client| admission.admit(client).unwrap()).into();
    was_signalled(&admission);
    admission.set_buffered(800);
    assert!(!was_signalled(&admission) && admission.over_limit() == OverLimit::default());
    admission.set_buffered(801);
    assert!(was_signalled(&admission));
    let over_limit = admission.over_limit();
    // Bob's quarter of 801 bytes is as much as the 199 that are left.
    assert_eq!(
        (over_limit.clients, over_limit.shedding),
        (vec![ALICE.into(), BOB.into()], Some(Limit::Buffered))
    );
    admission.set_buffered(500);
    assert!(was_signalled(&admission) && admission.over_limit() == OverLimit::default());
}

#[test]
fn more_clients_than_the_rules_can_hold_are_those_with_most_connections() {
    let open: Vec<usize> = (0..1500).map(|number| 1 + number % 3).collect();
    let total = open.iter().sum();
    let named = shed_named(total, &open);
    assert_eq!(named.len(), MOST_CLIENTS);
    let least = named.iter().map(|&number| open[number]).min().unwrap();
    assert_eq!(least, 2, "500 have three, 500 have two");
}

/// The clients that are named at the limit.
fn shed_named(limit: usize, open: &[usize]) -> Vec<usize> {
    let limits =
        AdmissionLimits { connections: limit, per_client: None, descriptors: 100_000, ..admission_limits() };
    let admission = admission(limits);
    let address = |number: usize| IpAddr::V4(Ipv4Addr::from_bits(number as u32));
    let _permits: Vec<Permit> = (0..open.len())
        .flat_map(|number| std::iter::repeat_n(number, open[number]))
        .map(|number| admission.readmit(address(number), false))
        .collect();
    let clients = admission.over_limit().clients;
    (0..open.len()).filter(|&number| clients.binary_search(&address(number).into()).is_ok()).collect()
}

proptest! {
    /// Whoever is shed has at least as many connections as everybody who is not; and as more connections
    /// come, nobody who was shed is let in again.
    #[test]
    fn those_with_most_are_shed_first_and_none_below_four_fifths(
        open in proptest::collection::vec(1usize..40, 2..12), spare in 0usize..100
    ) {
        let total: usize = open.iter().sum();
        let found = shed(total + spare, &open);
        if total * 5 <= (total + spare) * 4 {
            prop_assert!(found.is_empty());
        }
        let least = found.iter().map(|&number| open[number]).min().unwrap_or(usize::MAX);
        prop_assert!((0..open.len()).all(|number| found.contains(&number) == (open[number] >= least)));
        let closer = shed(total + spare.saturating_sub(1), &open);
        prop_assert!(found.iter().all(|number| closer.contains(number)));
        prop_assert_eq!(shed(total, &open).len(), open.len(), "at the limit it is everybody");
    }

    /// Whatever comes and goes: no number is exceeded, none is lost, and at the end nothing is left.
    #[test]
    fn numbers_are_those_of_living_connections(steps in proptest::collection::vec((0u8..6, any::<bool>()), 0..200)) {
        let admission = admission(admission_limits());
        let mut permits: Vec<(u8, Permit)> = Vec::new();
        for (number, come) in steps {
            if come {
                let outcome = admission.admit(Ipv4Addr::new(10, 0, 0, number).into());
                permits.extend(outcome.ok().map(|permit| (number, permit)));
            } else if !permits.is_empty() {
                let (_, mut permit) = permits.swap_remove(usize::from(number) % permits.len());
                if number % 2 == 0 {
                    permit.connected();
                }
            }
            prop_assert_eq!(counts(&admission).0, permits.len());
            prop_assert!(permits.len() <= 4 && counts(&admission).1 <= 3);
            for client in 0..6 {
                prop_assert!(permits.iter().filter(|(of, _)| *of == client).count() <= 2);
            }
            prop_assert_eq!(admission.over_limit().everybody.is_some(), permits.len() == 4 || counts(&admission).1 == 3);
        }
        drop(permits);
        prop_assert_eq!(counts(&admission), (0, 0));
        prop_assert!(admission.state().clients.is_empty());
    }
}
