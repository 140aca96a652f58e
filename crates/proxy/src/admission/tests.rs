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
    assert_eq!(admission.over_limit(), OverLimit { everybody: None, clients: vec![ALICE.into()] });
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

proptest! {
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
